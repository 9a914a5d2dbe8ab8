"""Columns of files and requests, as the types that raw columns have: the one implementation for both.

A value that cannot be read (`1,5` as a number, a time of another format) is marked, so that the caller can set its row
aside or name it. Missing values stay missing: null, NaN, and the empty text where something else than text is needed.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.schema import RawColumn

Unreadable = NDArray[np.bool_]
"""(n,) whether a row's value is present, but not what the column needs."""

_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999 in microseconds since 1970
_NUMBER = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:inf|infinity|nan))"
_INTEGER = r"-?\d+"
_LOCAL = r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?"
_ZONED = r"\d{4}-\d\d-\d\d[T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)"
_EPOCHS = {"s": 1_000_000, "ms": 1_000, "us": 1}
"""Microseconds of a unit of time that is counted from 1970."""


def read_column(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """(n,) values of the type `raw.arrow`, and which of them could not be read; these are null in the values.

    `column`: what a file or a request holds: texts, numbers, booleans, times, lists, or a dictionary of them. Numbers
    are read from text as Arrow reads float64, with blanks around; integers as decimal digits. Texts are made of
    integers (also of whole floats) as decimal digits, of booleans as `true` and `false`; numbers of booleans as 1 and
    0. A local time that the clocks skip is the moment of their change; of one that they repeat, the first counts.
    Raises UserError naming the column if no value of this type of column can be read.
    """
    if column.type == raw.arrow:
        return _time_in_range(column) if raw.type == "time" else (column, _none_of(column))
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), raw.arrow), _none_of(column)
    if pa.types.is_dictionary(column.type):
        values, unreadable = read_column(column.dictionary, raw)
        indices = column.indices
        is_wrong = pc.fill_null(pa.array(unreadable).take(indices), False)
        return values.take(indices), is_wrong.to_numpy(zero_copy_only=False)
    read = {"number": _numbers, "integer": _integers, "text": _texts, "time": _times}.get(raw.type, _lists)
    return read(column, raw)


def needs(raw: RawColumn) -> str:
    """What a value of the column must be, for messages: `a number`, or `a time as %y%m%d%H`."""
    one = {"number": "a number", "integer": "an integer", "text": "a text"}
    if raw.type == "time":
        forms = {"iso": "as ISO 8601 writes it", **{unit: f"in {unit} since 1970" for unit in _EPOCHS}}
        return f"a time {forms.get(raw.time_format, f'as {raw.time_format}')}"
    if raw.type in one:
        return one[raw.type]
    between = "" if raw.separator is None else f" (or a text of them with '{raw.separator}' between)"
    return f"a list of {raw.type}{between}"


def _numbers(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    if _is_text(column.type):
        return _parsed(column, pa.float64(), _NUMBER)
    if _is_number(column.type) or pa.types.is_boolean(column.type):
        # A decimal has no cast that rounds; an integer beyond 2^53 has no exact float64.
        return column.cast(pa.float64(), safe=False), _none_of(column)
    raise _no_type(column, raw)


def _integers(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    if _is_text(column.type):
        return _parsed(column, pa.int64(), _INTEGER)
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), None, column)
    if _is_number(column.type) or pa.types.is_boolean(column.type):
        return _cast(column, pa.int64())
    raise _no_type(column, raw)


def _texts(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        column, unreadable = _integers(column, raw)
        return column.cast(pa.string()), unreadable
    if pa.types.is_nested(column.type):
        raise _no_type(column, raw)
    return _cast(column, pa.string())


def _times(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_timestamp(column.type):
        if column.type.unit == "ns":
            column = pc.floor_temporal(column, unit="microsecond")
        column, beyond = _cast(column, pa.timestamp("us", column.type.tz))
        return _time_in_range(_in_utc(column, raw.zone), beyond)
    if not (_is_text(kind) or _is_number(kind)):
        raise _no_type(column, raw)
    if raw.time_format in _EPOCHS:
        return _epochs(column, _EPOCHS[raw.time_format])
    texts, unreadable = _texts(column, raw)
    texts = _without_blanks(texts)
    if raw.time_format == "iso":
        times, wrong = _iso_times(texts, raw.zone)
    else:
        times = pc.strptime(texts, format=raw.time_format, unit="us", error_is_null=True)
        wrong = _lost(texts, times)
        times = _in_utc(times, raw.zone)
    return _time_in_range(times, unreadable | wrong)


def _iso_times(texts: pa.Array, zone: str) -> tuple[pa.Array, Unreadable]:
    try:
        return _in_utc(texts.cast(pa.timestamp("us")), zone), _none_of(texts)
    except pa.ArrowInvalid:
        pass
    # Nine digits of a second, and zones written after a blank, are common and more than Arrow reads.
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    texts = pc.replace_substring_regex(texts, r" ?(UTC|GMT)$", "Z")
    texts = pc.replace_substring_regex(texts, r" ([+-]\d\d(:?\d\d)?)$", r"\1")
    local, zoned = (_where(texts, pattern) for pattern in (_LOCAL, _ZONED))
    local, _ = _cast(local, pa.timestamp("us"))
    zoned, _ = _cast(zoned, pa.timestamp("us", "UTC"))
    times = pc.coalesce(zoned, _in_utc(local, zone))
    return times, _lost(texts, times)


def _epochs(column: pa.Array, unit: int) -> tuple[pa.Array, Unreadable]:
    """Times from numbers since 1970 in `unit` microseconds."""
    values, unreadable = _numbers(column, RawColumn(name="", type="number"))
    with np.errstate(over="ignore"):
        micros = np.rint(values.fill_null(np.nan).to_numpy(zero_copy_only=False) * unit)
    inside = (micros >= _FIRST) & (micros <= _LAST)
    times = pa.array(np.where(inside, micros, 0.0).astype(np.int64), mask=~inside).cast(pa.timestamp("us", "UTC"))
    return times, unreadable | (~np.isnan(micros) & ~inside)


def _lists(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    kind = column.type
    if _is_text(kind) and raw.separator is not None:
        texts = column.cast(pa.string())
        column = pc.split_pattern(pc.if_else(pc.equal(texts, ""), None, texts), raw.separator)
    elif pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _no_type(column, raw)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    of = raw.model_copy(update={"type": raw.type.removesuffix("s"), "separator": None})
    elements, wrong = read_column(column.flatten(), of)
    unreadable = _none_of(column)
    unreadable[np.repeat(np.arange(len(column)), lengths)[wrong]] = True
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    missing = pc.or_(pc.is_null(column), pa.array(unreadable))
    return pa.ListArray.from_arrays(pa.array(offsets), elements, mask=missing), unreadable


def _parsed(column: pa.Array, kind: pa.DataType, pattern: str) -> tuple[pa.Array, Unreadable]:
    """Numbers of texts that match `pattern`; Arrow's own reading of integers takes hexadecimal ones, too."""
    texts = column.cast(pa.string())
    if pa.types.is_floating(kind):
        try:
            return texts.cast(kind), _none_of(texts)
        except pa.ArrowInvalid:
            pass
    texts = _without_blanks(texts)
    values, _ = _cast(_where(texts, pattern), kind)
    return values, _lost(texts, values)


def _where(texts: pa.Array, pattern: str) -> pa.Array:
    """The texts that match `pattern` as a whole; null otherwise."""
    return pc.if_else(pc.match_substring_regex(texts, f"^({pattern})$"), texts, None)


def _cast(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Unreadable]:
    """Cast what can be cast. Halves are tried apart, so a few wrong values cost a few casts."""
    try:
        return column.cast(kind), _none_of(column)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind), np.ones(1, bool)
    middle = len(column) // 2
    parts = [_cast(part, kind) for part in (column[:middle], column[middle:])]
    return pa.concat_arrays([values for values, _ in parts]), np.concatenate([wrong for _, wrong in parts])


def _in_utc(times: pa.Array, zone: str) -> pa.Array:
    """Times in UTC; those that name no zone are local ones of `zone`."""
    if times.type.tz is None:
        times = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest")
    return times.cast(pa.timestamp("us", "UTC"))


def _time_in_range(times: pa.Array, unreadable: Unreadable | None = None) -> tuple[pa.Array, Unreadable]:
    """Times of the years 1 to 9999; Arrow's calendar is wrong far beyond them."""
    micros = times.cast(pa.int64())
    beyond = pc.fill_null(pc.or_(pc.less(micros, _FIRST), pc.greater(micros, _LAST)), False)
    wrong = beyond.to_numpy(zero_copy_only=False)
    times = pc.if_else(beyond, None, times) if wrong.any() else times
    return times, wrong if unreadable is None else wrong | unreadable


def _without_blanks(texts: pa.Array) -> pa.Array:
    """Texts without blanks around them; null for what is empty then."""
    trimmed = pc.ascii_trim_whitespace(texts)
    return pc.if_else(pc.equal(trimmed, ""), None, trimmed)


def _lost(before: pa.Array, after: pa.Array) -> Unreadable:
    return pc.and_(pc.is_valid(before), pc.is_null(after)).to_numpy(zero_copy_only=False)


def _none_of(column: pa.Array) -> Unreadable:
    return np.zeros(len(column), bool)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _no_type(column: pa.Array, raw: RawColumn) -> UserError:
    hint = "; give its `separator`" if _is_text(column.type) and raw.type.endswith("s") else ""
    return UserError(f"column '{raw.name}': holds {column.type}, needs {needs(raw)}{hint}")
