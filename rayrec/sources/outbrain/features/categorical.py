"""Categorical features: ids, parts of a place, codes of small sets, and lists of a document's values."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa

from rayrec.features.mapped_columns import Numbers
from rayrec.sources.outbrain.features.definitions import MultiHot, OneHot
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.places import countries, states
from rayrec.sources.outbrain.statistics import Aspect

LIST_ROWS: dict[Aspect, int] = {"topic": 350, "entity": 10_000, "category": 100}
"""Rows of the embedding table of a list, by aspect."""
_PLACE_PARTS: dict[str, Callable[[pa.Array], pa.Array]] = {
    "place": lambda places: places,
    "state": states,
    "country": countries,
}


def id_feature(name: str, numbers: Callable[[Rows], Numbers], cardinality: int) -> OneHot:
    """An id, hashed into a table of `cardinality` rows."""
    return OneHot(name, lambda rows: _ids(numbers(rows)), cardinality)


def place_feature(name: str, part: Literal["place", "state", "country"], cardinality: int) -> OneHot:
    """The place of the event or a part of it, hashed into a table of `cardinality` rows."""
    return OneHot(name, lambda rows: _PLACE_PARTS[part](rows.place), cardinality, "strings")


def code_feature(name: str, values: Callable[[Rows], Numbers], first: int, size: int) -> OneHot:
    """One of `size` values from `first` on; they count from 1, and 0 is missing."""

    def compute(rows: Rows) -> pa.Array:
        found = values(rows)
        return _ids(Numbers(found.values - first + 1, found.valid))

    return OneHot(name, compute, size + 1, "codes")


def list_feature(
    name: str, aspect: Aspect, document: Literal["landing", "ad"], length: int, pooling: Literal["sum", "mean"]
) -> MultiHot:
    """The first `length` values of the landing or the ad document's list of an aspect; empty without values."""

    def compute(rows: Rows) -> pa.Array:
        found = rows.landing if document == "landing" else rows.ad_document
        lists = rows.statistics.documents.lists(f"{aspect}_list", found)
        values = lists.field()
        position = np.arange(len(values)) - np.repeat(np.cumsum(lists.lengths) - lists.lengths, lists.lengths)
        offsets = np.concatenate(([0], np.cumsum(np.minimum(lists.lengths, length)))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[position < length]))

    return MultiHot(name, compute, LIST_ROWS[aspect], length, pooling)


def _ids(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.values, pa.int64(), mask=~numbers.valid)
