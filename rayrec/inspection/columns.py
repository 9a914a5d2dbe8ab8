"""The facts about one column of a sample: how its values are written, how many there are, and what is missing."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.raw_values import read_column
from rayrec.features.schema import RawColumn
from rayrec.features.text_forms import BOOLEANS

Form = Literal["integer", "number", "text", "time", "list", "vector", "nested"]
"""How the values of a column are written: `nested` values can be no feature."""

NULL_WORDS = ("NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "none", "\\N", "?", "-")
"""Texts that stand for a missing value if the other values of a column are numbers or times."""
TRUE_WORDS, FALSE_WORDS = ("1", "true", "t", "yes", "y"), ("0", "-1", "false", "f", "no", "n")

_LEADING_ZERO = r"^[+-]?0[0-9]+$"
_LONG_INTEGER = r"^[0-9]{19,}$"
_DIGIT_FORMATS = ("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d%H", "%y%m%d%H%M", "%Y%m%d", "%y%m%d%H", "%y%m%d")
_DIGITS = {"%Y": 4}
_TEXT_FORMATS = tuple(
    day + clock
    for day in ("%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d.%m.%Y", "%d-%m-%Y", "%d/%b/%Y", "%d %b %Y")
    for clock in ("", " %H:%M", " %H:%M:%S", ":%H:%M:%S")
)
_TIME_WORDS = {
    "time", "timestamp", "ts", "date", "datetime", "day", "hour", "created", "updated", "at", "dt", "epoch", "when",
}  # fmt: skip
_EARLIEST, _LATEST = 1990, 2040
_EPOCHS = ("s", "ms", "us")
_TRIED = 2_000
"""Distinct values that a pattern is tried on before all of them."""
_SEPARATORS = ("|", ";", ",", " ")
_MAX_NUMBER_MISFITS = 0.005
"""Share of rows whose text is no number in a column of numbers; such rows are set aside by preprocessing."""


def name_words(name: str) -> list[str]:
    """The words of a column's name in lower case: `userId` and `user_id` have `user` and `id`."""
    parts = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^A-Za-z0-9]+", parts.lower()) if word]


@dataclass(frozen=True)
class Column:
    """A column of the sample: the distinct values, and which of them each row has."""

    name: str
    type: str
    """The type in the file: `text` for delimited files, otherwise Arrow's name."""
    form: Form
    codes: NDArray[np.int64]
    """(n,) the place in `texts` of each row's value; -1 if it is missing."""
    texts: Sequence[str]
    """The distinct values as text; of a list that is no text, of its items."""
    numbers: NDArray[np.float64] | None = None
    """The distinct values of a column of numbers, in the order of `texts`; NaN for texts that are no number."""
    time_format: str | None = None
    """How times are written, as `RawColumn.time_format` has it; also of integers that may be times."""
    seconds: NDArray[np.float64] | None = None
    """The distinct times in seconds since 1970, in the order of `texts`."""
    separator: str | None = None
    """What separates the items of a list in a text."""
    lengths: NDArray[np.int64] | None = None
    """(n,) the number of items of each row's list."""
    items: int = 0
    """Distinct items of lists."""
    notes: tuple[str, ...] = ()
    """What is remarkable about the way in which the values are written."""
    null_words: tuple[str, ...] = field(default=())
    """Texts that seem to stand for a missing value; their rows count as missing."""
    misfits: tuple[str, ...] = ()
    """Texts in a column of numbers that are no number, in few rows."""

    @property
    def rows(self) -> int:
        return len(self.codes)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """The number of rows with each distinct value."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.texts))

    @property
    def distinct(self) -> int:
        """Distinct values in the sample, of lists distinct items."""
        return self.items if self.form == "list" else int(np.count_nonzero(self.counts))

    @property
    def present(self) -> int:
        """Rows with a value."""
        return int(np.count_nonzero(self.codes >= 0))

    @property
    def missing_share(self) -> float:
        return 1.0 - self.present / self.rows if self.rows else 0.0

    def distinct_estimate(self, total_rows: int) -> int:
        """Chao's lower bound of the distinct values in all rows, from those that the sample has once and twice."""
        if self.rows >= total_rows:
            return self.distinct
        once, twice = (int(np.count_nonzero(self.counts == times)) for times in (1, 2))
        unseen = once * (once - 1) / (2 * (twice + 1))
        most = math.ceil(total_rows * self.present / max(self.rows, 1))
        return max(self.distinct, min(round(self.distinct + unseen), most))

    @property
    def repeated_share(self) -> float:
        """Share of the rows with a value whose value other rows have too."""
        return 1.0 - np.count_nonzero(self.counts == 1) / self.present if self.present else 0.0

    def examples(self, count: int = 3) -> list[str]:
        """The most frequent values."""
        order = np.argsort(-self.counts, kind="stable")[:count]
        return [self.texts[i] for i in order if self.counts[i]]

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the largest number."""
        if self.numbers is None:
            return None
        used = self.numbers[(self.counts > 0) & np.isfinite(self.numbers)]
        return (float(used.min()), float(used.max())) if len(used) else None

    @cached_property
    def row_numbers(self) -> NDArray[np.float64]:
        """(n,) each row's number, NaN if it has none."""
        return self._by_row(self.numbers)

    @cached_property
    def row_seconds(self) -> NDArray[np.float64]:
        """(n,) each row's time in seconds since 1970, NaN if it has none."""
        return self._by_row(self.seconds)

    def _by_row(self, values: NDArray[np.float64] | None) -> NDArray[np.float64]:
        assert values is not None
        return np.append(values, np.nan)[self.codes]  # code -1 is the last place

    @property
    def is_integral(self) -> bool:
        """Whether all numbers are integers."""
        if self.numbers is None:
            return False
        used = self.numbers[(self.counts > 0) & np.isfinite(self.numbers)]
        return bool(len(used)) and bool((used == np.floor(used)).all())

    @property
    def has_time_name(self) -> bool:
        return not _TIME_WORDS.isdisjoint(name_words(self.name))


def describe_column(name: str, values: pa.ChunkedArray, *, delimited: bool, named: bool = True) -> Column:
    """The facts about a column of the sample; `delimited` columns are texts, others have Arrow's types.

    `named`: the name comes from the files, so that it can say what the values are.
    """
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):  # more than 2 GiB
        array = pa.concat_arrays(array.chunks)
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    shown = "text" if delimited else str(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(name, array, shown)
    if pa.types.is_null(kind):
        return _column(name, shown, "text", np.full(len(array), -1), [])
    if pa.types.is_boolean(kind):
        array = pc.if_else(array, "true", "false")
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _typed_times(name, array, shown)
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _with_time(_typed_numbers(name, array, shown), named)
    elif not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        codes = np.where(array.is_null().to_numpy(zero_copy_only=False), -1, 0)
        return _column(name, shown, "nested", codes, [shown])
    return _with_time(_texts(name, array.cast(pa.large_string()), shown), named)


def _column(
    name: str, type_: str, form: Form, codes: NDArray[np.int64], texts: Sequence[str], **facts: object
) -> Column:
    return Column(name, type_, form, codes.astype(np.int64), texts, **facts)  # type: ignore[arg-type]


def _encoded(array: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    encoded = array.dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _typed_numbers(name: str, array: pa.Array, shown: str) -> Column:
    is_integer = pa.types.is_integer(array.type)
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    codes, distinct = _encoded(array)
    numbers = np.array([float(v) for v in distinct.to_pylist()], np.float64)
    texts = [f"{int(v)}" if is_integer else f"{v:g}" for v in distinct.to_pylist()]
    form: Form = "integer" if is_integer else "number"
    return _column(name, shown, form, codes, texts, numbers=numbers)


def _typed_times(name: str, array: pa.Array, shown: str) -> Column:
    codes, distinct = _encoded(array.cast(pa.timestamp("us"), safe=False))
    seconds = distinct.cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6
    texts = [v.isoformat(" ") for v in distinct.to_pylist()]
    return _column(name, shown, "time", codes, texts, time_format="iso", seconds=seconds)


def _lists(name: str, array: pa.Array, shown: str) -> Column:
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    flat = array.flatten()
    kind = flat.type
    present = lengths[~is_null]
    if pa.types.is_floating(kind):
        same = len(present) > 0 and (present == present[0]).mean() > 0.99
        examples = [str(v) for v in flat.slice(0, 3).to_pylist()]
        codes = np.where(is_null, -1, 0)
        if same and present[0] > 0:
            return _column(name, shown, "vector", codes, [f"[{', '.join(examples)}, ...]"], lengths=lengths)
        return _column(name, shown, "nested", codes, [shown])
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return _column(name, shown, "nested", np.where(is_null, -1, 0), [shown])
    return _list_column(name, shown, flat.cast(pa.large_string()), lengths, is_null, None)


def _list_column(
    name: str, shown: str, flat: pa.Array, lengths: NDArray[np.int64], is_null: NDArray[np.bool_], separator: str | None
) -> Column:
    """A column of lists; its codes are those of the first item, so that a row without one counts as missing."""
    item_codes, items = _encoded(flat)
    starts = np.cumsum(lengths) - lengths
    filled = ~is_null & (lengths > 0)
    codes = np.full(len(lengths), -1)
    codes[filled] = item_codes[starts[filled]]
    texts = items.to_pylist()
    frequent = np.argsort(-np.bincount(item_codes[item_codes >= 0], minlength=len(texts)), kind="stable")
    order = np.argsort(frequent)  # place of each item when the most frequent comes first
    codes = np.where(codes >= 0, order[np.maximum(codes, 0)] if len(order) else codes, -1)
    return _column(
        name, shown, "list", codes, [texts[i] for i in frequent], separator=separator, lengths=lengths,
        items=len(texts),
    )  # fmt: skip


def _texts(name: str, array: pa.Array, shown: str) -> Column:
    array = pc.if_else(pc.equal(array, ""), pa.scalar(None, array.type), array)
    codes, distinct = _encoded(array)
    texts: list[str] = distinct.to_pylist()
    if not texts:
        return _column(name, shown, "text", codes, texts)
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    is_word = pc.is_in(distinct, pa.array(NULL_WORDS, distinct.type)).to_numpy(zero_copy_only=False)
    null_words = tuple(t for t, w in zip(texts, is_word, strict=True) if w)
    without_words = np.where(np.append(is_word, False)[codes], -1, codes)
    numbers, is_number = _read(distinct, "number")
    is_number &= ~is_word & ~pc.is_in(distinct, pa.array(list(BOOLEANS), distinct.type)).to_numpy(zero_copy_only=False)
    misfits = ~is_number & ~is_word
    if is_number.any() and (not misfits.any() or _are_few(counts, is_number, misfits)):
        facts = {"null_words": null_words, "misfits": tuple(t for t, w in zip(texts, misfits, strict=True) if w)}
        return _number_texts(name, shown, without_words, distinct, numbers, is_number, facts)
    words = pc.if_else(pa.array(is_word), None, distinct)
    if form := _text_time_format(words):
        notes = ("day and month could be the other way round",) if _is_ambiguous(words, form) else ()
        return _column(
            name, shown, "time", without_words, texts, time_format=form, seconds=_read(distinct, "time", form)[0] / 1e6,
            notes=notes, null_words=null_words,
        )  # fmt: skip
    return _vector(name, shown, codes, texts) or _list(name, shown, codes, texts, counts) or _plain(
        name, shown, codes, texts
    )  # fmt: skip


def _are_few(counts: NDArray[np.int64], is_number: NDArray[np.bool_], misfits: NDArray[np.bool_]) -> bool:
    return bool(counts[misfits].sum() <= _MAX_NUMBER_MISFITS * counts.sum() and is_number.sum() > 20)


def _read(
    values: pa.Array, kind: Literal["number", "integer", "time"], time_format: str = "iso"
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n,) numbers, or microseconds since 1970, as preprocessing reads them, NaN for others; and which are some."""
    read, _ = read_column(values, RawColumn(name="", type=kind, time_format=time_format))
    if kind == "time":
        read = read.cast(pa.int64())
    numbers = read.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    return numbers, np.isfinite(numbers)


def _number_texts(
    name: str,
    shown: str,
    codes: NDArray[np.int64],
    distinct: pa.Array,
    numbers: NDArray[np.float64],
    is_number: NDArray[np.bool_],
    facts: dict[str, tuple[str, ...]],
) -> Column:
    texts = distinct.to_pylist()
    for pattern, note in (
        (_LEADING_ZERO, "digits with leading zeros, which are texts"),
        (_LONG_INTEGER, "integers too long for 64 bits, which are texts"),
    ):
        if pc.any(pc.match_substring_regex(distinct, pattern)).as_py():
            return _column(name, shown, "text", codes, texts, notes=(note,), null_words=facts["null_words"])
    _, is_integer = _read(distinct, "integer")
    form: Form = "integer" if is_integer[is_number].all() else "number"
    return _column(name, shown, form, codes, texts, numbers=np.where(is_number, numbers, np.nan), **facts)


def _plain(name: str, shown: str, codes: NDArray[np.int64], texts: Sequence[str]) -> Column:
    notes = []
    if all(re.fullmatch(r"[0-9a-f]{6,}|[0-9A-F]{6,}", t) for t in texts[:_TRIED]):
        notes.append("hexadecimal")
    elif all(t.startswith(("[", "{")) and t.endswith(("]", "}")) for t in texts[:_TRIED]):
        notes.append("JSON in a text, which is read as one value")
    return _column(name, shown, "text", codes, texts, notes=tuple(notes))


def _with_time(column: Column, named: bool) -> Column:
    """A column of integers as one of times, if they are times of a known format within plausible years."""
    found = _digit_time_format(column, named) if column.form == "integer" and not column.misfits else None
    if found is None:
        return column
    seconds = _read(pa.array(column.texts, pa.string()), "time", found)[0] / 1e6
    return _column(
        column.name, column.type, "time", column.codes, column.texts, numbers=column.numbers, time_format=found,
        seconds=seconds, null_words=column.null_words,
    )  # fmt: skip


def _digit_time_format(column: Column, named: bool) -> str | None:
    bounds = column.range
    if bounds is None or bounds[0] <= 0:
        return None
    used = pa.array([t for t, count in zip(column.texts, column.counts, strict=True) if count], pa.string())
    lengths = set(pc.utf8_length(used).to_pylist()) if column.has_time_name else set()
    if len(lengths) == 1:
        (length,) = lengths
        for form in _DIGIT_FORMATS:
            if length == sum(_DIGITS.get(form[i : i + 2], 2) for i in range(0, len(form), 2)) and _are_times(
                used, form
            ):
                return form
    # Seconds could as well be ids, so the name must speak of a time, or there is none and most rows differ.
    says_time = column.has_time_name or (not named and column.distinct > column.present / 5)
    return next((form for form in _EPOCHS if (says_time or form != "s") and _are_times(used, form)), None)


def _text_time_format(values: pa.Array) -> str | None:
    first = next((v for v in values.to_pylist() if v is not None), "")
    if not first[:1].isdigit() or not any(c in first for c in "-/. :"):
        return None
    return next((form for form in ("iso", *_TEXT_FORMATS) if _are_times(values, form)), None)


def _is_ambiguous(values: pa.Array, form: str) -> bool:
    return form.startswith("%d/%m") and _are_times(values, form.replace("%d/%m", "%m/%d"))


def _are_times(values: pa.Array, form: str) -> bool:
    """Whether all values are times of this format within plausible years."""
    first, last = (datetime(year, 1, 1, tzinfo=UTC).timestamp() * 1e6 for year in (_EARLIEST, _LATEST))
    # Most formats fail on the first few values.
    for part in (values[:_TRIED], values) if len(values) > _TRIED else (values,):
        micros, is_time = _read(part, "time", form)
        is_null = part.is_null().to_numpy(zero_copy_only=False)
        if not ((is_time & (micros >= first) & (micros < last)) | is_null).all():
            return False
    return True


def _vector(name: str, shown: str, codes: NDArray[np.int64], texts: Sequence[str]) -> Column | None:
    """The column as vectors, if every text has the same number, at least 3, of decimals in it."""
    tried = texts[:_TRIED]
    for separator in _SEPARATORS:
        size = tried[0].count(separator) + 1
        if size < 3 or any(t.count(separator) + 1 != size for t in tried):
            continue
        items = [item for t in tried for item in t.split(separator)]
        if _read(pa.array(items, pa.string()), "number")[1].all() and any("." in item for item in items):
            lengths = np.where(codes >= 0, size, 0)
            return _column(name, shown, "vector", codes, texts, separator=separator, lengths=lengths)
    return None


def _list(
    name: str, shown: str, codes: NDArray[np.int64], texts: Sequence[str], counts: NDArray[np.int64]
) -> Column | None:
    """The column as lists, if a separator stands inside of many values and few items make up many different values."""
    rows = counts.sum()
    for separator in _SEPARATORS:
        joined = np.array([separator in t for t in texts])
        if counts[joined].sum() < 0.3 * rows:
            continue
        parts = [t.split(separator) for t in texts]
        sizes = np.array([len(p) for p in parts])
        if len(np.unique(sizes[joined])) < 2 and joined.all():
            continue  # always as many parts: the levels of one value
        items: dict[str, int] = {}
        for part in parts:
            for item in part:
                items[item] = items.get(item, 0) + 1
        # The same items again in other company; texts of free words have many that occur once.
        if "" in items or len(items) > 0.5 * len(texts) or sizes.sum() < 5 * len(items):
            continue
        if separator == " " and max(map(len, items)) > 30:
            continue
        of_row = codes[codes >= 0]
        starts, ends = (np.cumsum(sizes) - sizes)[of_row], np.cumsum(sizes[of_row])
        taken = np.arange(ends[-1]) + np.repeat(starts - (ends - sizes[of_row]), sizes[of_row])
        flat = pa.array([item for part in parts for item in part], pa.large_string()).take(pa.array(taken))
        lengths = np.where(codes >= 0, sizes[codes], 0)
        return _list_column(name, shown, flat, lengths, codes < 0, separator)
    return None
