"""Categorical features before hashing: ids, texts, codes of small sets, and lists of a document's values."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features.places import countries, states
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.statistics import Aspect

LEAST_COUNT = 10
"""Occurrences that the original's coding by count asks for; it codes rarer values as -1."""
_RARE = -1
_MISSING = 0
"""Of the original, where it is a value like others."""
_TEXTS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "place": lambda places: places,
    "state": states,
    "country": countries,
}

TextOf = Literal["place", "state", "country"]
Document = Literal["landing", "ad"]


def ids(numbers: Numbers) -> pa.Array:
    """Ids, null where missing."""
    return pa.array(numbers.values, pa.int64(), mask=~numbers.valid)


def ids_or_zero(numbers: Numbers) -> pa.Array:
    """As the original codes ids."""
    return pa.array(np.where(numbers.valid, numbers.values, _MISSING), pa.int64())


def texts(rows: Rows, of: TextOf) -> pa.Array:
    """Of the event's place; null where missing."""
    return _TEXTS[of](rows.place)


def text_counts(rows: Rows, of: TextOf) -> pa.Array:
    """As the original codes them: by the number of events with the same value."""
    texts = _TEXTS[of](rows.place)
    table = rows.statistics.counts(of)
    counts = _coded(table.numbers("count", table.find_texts("text", texts)))
    return pa.array(np.where(texts.is_valid().to_numpy(zero_copy_only=False), counts, _MISSING))


def codes(values: Numbers, first: int, *, original: bool) -> pa.Array:
    """Codes of a small set whose least value is `first`: from 1, 0 for missing; in the original from 0."""
    return ids(Numbers(values.values - first + (0 if original else 1), values.valid))


def value_list(rows: Rows, aspect: Aspect, document: Document, length: int) -> pa.Array:
    """The first `length` values of a document's list (list<int64>); empty where it has none."""
    return _cut(rows, aspect, document, length, lambda values: values)


def entity_count_list(rows: Rows, document: Document, length: int) -> pa.Array:
    """As the original codes entities: by the number of lines of their table with the same."""
    table = rows.statistics.counts("entity")
    return _cut(
        rows, "entity", document, length, lambda values: _coded(table.numbers("count", table.find({"value": values})))
    )


def _coded(counts: Numbers) -> NDArray[np.int64]:
    return np.where(counts.values < LEAST_COUNT, _RARE, counts.values)


def _cut(
    rows: Rows,
    aspect: Aspect,
    document: Document,
    length: int,
    recode: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> pa.Array:
    found = rows.landing if document == "landing" else rows.ad_document
    lists = rows.statistics.documents.lists(f"{aspect}_list", found)
    values = lists.field()
    place = np.arange(len(values)) - np.repeat(np.cumsum(lists.lengths) - lists.lengths, lists.lengths)
    lengths = np.minimum(lists.lengths, length)
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(recode(values[place < length])))
