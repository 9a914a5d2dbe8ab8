"""Columns of files and requests, as the types that raw columns have: the one implementation for both.

A value that cannot be read (`1,5` as a number, a time of another format) is marked, so that the caller can set its row
aside or name it. Missing values stay missing: null, NaN, the empty text and blanks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.features.raw_columns import RawColumn, flat_batch, flat_row
from rayrec.features.text_forms import in_brackets, in_form, plain_numbers, split_lists, without_blanks

Values: TypeAlias = pa.Array | list[Any]
"""The values of a column; a list of Python's if their types differ."""
Unreadable = NDArray[np.bool_]
"""Tell (n,) whether a row's value is present, but not what the column needs."""
Read: TypeAlias = Callable[[Any], tuple[pa.Array, Unreadable]]
"""Reads values, and tells which of them cannot be read."""

MOST_EVENTS = 1_000
"""Most events that a row may bring."""
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999 in microseconds since 1970
_NUMBER = r"[+-]?((\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|(?i:inf|infinity|nan))"
_INTEGER = r"-?\d+"
_DECIMAL = r"^(-?[0-9]+)\.([0-9]+)$"
_WHOLE = r"^([+-]?\d+)\.0*$"
_PLAIN_TYPES = ("number", "integer", "numbers", "integers")
"""Types of columns whose values, if Arrow has them in this type, are read as they are."""
_LOCAL = r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?)?"
_ZONED = r"\d{4}-\d\d-\d\d[T ]\d\d(:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)"
PERIODS = "pandas.period"
"""Arrow's name of pandas' periods, which it stores as integers that pandas numbers them by."""
NO_PERIODS = "holds periods, which only pandas can read; give them as texts, by astype(str)"
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_BASIC_DAY, _BASIC_MINUTE, _BASIC_SECOND = r"^(\d{4})(\d\d)(\d\d)T(\d\d)", r"(T\d\d)(\d\d)", r"(T\d\d:\d\d)(\d\d)"
_UTC = ("GMT", "UTC", "Z")
"""Ends of patterns of times that are not local."""
_EPOCHS = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 0.001}
"""Microseconds of a unit of time that is counted from 1970."""


def read_column(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """Return (n,) values of the type `raw.arrow`, and which of them could not be read; these are null in the values.

    `column`: what a file or a request holds: texts, bytes of texts, numbers, booleans, times, durations (their
    seconds), uuids, lists, or a dictionary of them. Blanks around texts say nothing; empty texts and those of
    `raw.null_values` are missing. Numbers are read from text as Arrow reads float64, integers as decimal digits, also
    of whole floats, after people's way to write them if the column has one (`rayrec.features.text_forms`); booleans
    are 1 and 0. Texts are spelled in the column's form (`rayrec.features.text_forms`). A local time that the clocks
    skip is the moment of their change; of one that they repeat, the first counts. Raises UserError naming the column if
    no value of this type of column can be read.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), raw.arrow), _none_of(column)
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == PERIODS:
            raise UserError(f"column '{raw.name}': {NO_PERIODS}")
        return read_column(_of_uuids(column) if kind.extension_name == "arrow.uuid" else column.storage, raw)
    if pa.types.is_duration(kind):
        seconds = column.cast(pa.int64()).cast(pa.float64(), safe=False)
        return read_column(pc.divide(seconds, float(_PER_SECOND[kind.unit])), raw)
    if pa.types.is_run_end_encoded(kind):
        return read_column(pc.run_end_decode(column), raw)
    if pa.types.is_dictionary(kind):
        values, unreadable = read_column(column.dictionary, raw)
        indices = column.indices
        is_wrong = pc.fill_null(pa.array(unreadable).take(indices), False)
        return values.take(indices), is_wrong.to_numpy(zero_copy_only=False)
    if kind == raw.arrow and raw.type in _PLAIN_TYPES:
        return column, _none_of(column)
    wrong = None
    if _is_binary(kind):
        column, wrong = _cast(column.cast(pa.binary()), pa.string())
    if _is_text(column.type):
        column = _present(column if pa.types.is_string(column.type) else column.cast(pa.string()), raw.null_values)
        if raw.number_format != "plain":
            column, no_number = _plainly(column, raw)
            wrong = no_number if wrong is None else wrong | no_number
    readers = {"number": _numbers, "integer": _integers, "text": _texts, "time": _times, "events": _events}
    read = readers.get(raw.type, _lists)
    try:
        values, unreadable = read(column, raw)
    except pa.ArrowNotImplementedError:  # a type that Arrow makes nothing else of
        raise _no_type(column, raw) from None
    return values, unreadable if wrong is None else unreadable | wrong


def _of_uuids(column: pa.Array) -> pa.Array:
    """Return (n,) uuids as the texts that people write."""
    given = column.storage.to_pylist()
    digits = (None if value is None else value.hex() for value in given)
    return pa.array([d and f"{d[:8]}-{d[8:12]}-{d[12:16]}-{d[16:20]}-{d[20:]}" for d in digits], pa.string())


def _plainly(texts: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """Write numbers of the column's format as plain ones; others are unreadable, unless the column holds texts."""
    plain = plain_numbers(texts, raw.number_format)
    if raw.type in ("number", "integer") or (raw.type == "time" and raw.time_format in _EPOCHS):
        return plain, _lost(texts, plain)
    # The elements of a list are read when it was split.
    return pc.coalesce(in_form(plain, "number"), texts) if raw.type == "text" else texts, _none_of(texts)


def _as_the_column_has_them(texts: pa.Array, raw: RawColumn) -> pa.Array:
    """Spell decimals with the column's comma, so that a text that is read again, as rows of files are, stays itself."""
    return pc.replace_substring_regex(texts, _DECIMAL, r"\1,\2") if raw.number_format == "1.234,5" else texts


def read_values(values: Values, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """Read values as `read_column` does; those of a list may be of several types, each of which may be unreadable."""
    if raw.type == "events" and isinstance(values, list):
        return _events_of_objects(values, raw)

    def read(column: pa.Array) -> tuple[pa.Array, Unreadable]:
        return read_column(column, raw)

    def read_lists(lists: list[Any]) -> tuple[pa.Array, Unreadable]:
        elements, wrong = read_values([item for items in lists for item in items], element_of(raw))
        return _lists_of(elements, wrong, np.array([len(items) for items in lists]), np.zeros(len(lists), bool))

    return read_by_type(values, raw.arrow, read, read_lists if pa.types.is_list(raw.arrow) else None)


def read_by_type(
    values: Values, kind: pa.DataType, read: Read, read_lists: Read | None = None
) -> tuple[pa.Array, Unreadable]:
    """Read an array, or a list of Python's values, those of each type apart, into arrays of type `kind`.

    `read` is given arrays, `read_lists` lists of lists. A value that no array can hold is unreadable.
    """
    if isinstance(values, pa.Array):
        return read(values)

    def read_part(part: list[Any]) -> tuple[pa.Array, Unreadable]:
        try:
            if read_lists is not None and isinstance(part[0], list | tuple | set | frozenset):
                return read_lists(part)
            return read(_array_of(part))
        except UserError:  # no value of this type can be read
            return pa.nulls(len(part), kind), np.array([value is not None for value in part])
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            if len(part) == 1:
                return pa.nulls(1, kind), np.array([part[0] is not None])
        middle = len(part) // 2  # a few wrong values cost a few calls
        return _joined([read_part(part[:middle]), read_part(part[middle:])])

    rows_of_type: dict[object, list[int]] = {}
    for row, value in enumerate(values):
        rows_of_type.setdefault(_type_of(value), []).append(row)
    parts = [read_part([values[row] for row in rows]) for rows in rows_of_type.values()]
    found, wrong = _joined(parts) if parts else (pa.nulls(0, kind), np.zeros(0, bool))
    order = np.argsort([row for rows in rows_of_type.values() for row in rows])
    return found.take(pa.array(order)), wrong[order]


def _type_of(value: Any) -> object:
    """Return what is equal for values that can stand in one array."""
    return "long" if type(value) is int and not -(2**63) <= value < 2**63 else type(value)


def _array_of(values: list[Any]) -> pa.Array:
    """Hold values of one type in Arrow; integers beyond 64 bits as their digits, so that none is lost."""
    if _type_of(values[0]) == "long":
        return pa.array([str(value) for value in values])
    return pa.array(values, from_pandas=True)


def _joined(parts: Sequence[tuple[pa.Array, Unreadable]]) -> tuple[pa.Array, Unreadable]:
    return pa.concat_arrays([values for values, _ in parts]), np.concatenate([wrong for _, wrong in parts])


def needs(raw: RawColumn) -> str:
    """Return what a value of the column must be, for messages: `a number`, or `a time as %y%m%d%H`."""
    one = {"number": "a number", "integer": "an integer", "text": "a text"}
    if raw.type == "time":
        forms = {"iso": "as ISO 8601 writes it", **{unit: f"in {unit} since 1970" for unit in _EPOCHS}}
        return f"a time {forms.get(raw.time_format, f'as {raw.time_format}')}"
    if raw.type in one:
        written = (
            "" if raw.type == "text" or raw.number_format == "plain" else f" (or a text such as {raw.number_format})"
        )
        return f"{one[raw.type]}{written}"
    if raw.fields:
        return f"a list of at most {MOST_EVENTS:,} objects with {', '.join(field.name for field in raw.fields)}"
    between = ""
    if raw.separator is not None:
        mark = in_brackets(raw.separator)
        between = f" (or a text of them {'in brackets ' if mark else ''}with '{mark or raw.separator}' between)"
    return f"a list of {raw.type}{between}"


def _numbers(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    if _is_text(column.type):
        try:
            return column.cast(pa.float64()), _none_of(column)
        except pa.ArrowInvalid:
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
    kind = column.type
    if pa.types.is_nested(kind):
        raise _no_type(column, raw)
    unreadable = _none_of(column)
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)
    if pa.types.is_float16(kind):  # Arrow would write 0.1 as 0.099975586
        column = pa.array([None if number is None else str(np.float16(number)) for number in column.to_pylist()])
    elif not _is_text(kind):
        column, unreadable = _cast(column, pa.string())
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        # Those that may have lost digits still show it, until the column's form is known.
        column = pc.if_else(pc.match_substring(column, "e+"), column, in_form(column, "number"))
    elif pa.types.is_temporal(kind):
        column = pc.replace_substring_regex(column, r"\.0+([+-]\d+|Z)?$", r"\1")
    return _as_the_column_has_them(in_form(column, raw.form), raw), unreadable


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
    if raw.time_format == "iso":
        times, wrong = _iso_times(texts, raw.zone)
    else:
        texts = pc.replace_substring_regex(texts, _WHOLE, r"\1")  # digits, which pandas wrote as floats
        times = pc.strptime(texts, format=raw.time_format, unit="us", error_is_null=True)
        wrong = _lost(texts, times)
        times = _in_utc(times, "UTC" if raw.time_format.endswith(_UTC) else raw.zone)
    return _time_in_range(times, unreadable | wrong)


def _iso_times(texts: pa.Array, zone: str) -> tuple[pa.Array, Unreadable]:
    try:
        return _in_utc(texts.cast(pa.timestamp("us")), zone), _none_of(texts)
    except pa.ArrowInvalid:
        pass
    # ISO's basic form and its comma, nine digits of a second, and zones written after a blank, are common and more than
    # Arrow reads.
    texts = pc.replace_substring_regex(texts, _BASIC_DAY, r"\1-\2-\3T\4")
    for pattern in (_BASIC_MINUTE, _BASIC_SECOND):
        texts = pc.replace_substring_regex(texts, pattern, r"\1:\2")
    texts = pc.replace_substring_regex(texts, r"(:\d\d),(\d+)", r"\1.\2")
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    texts = pc.replace_substring_regex(texts, r" ?(UTC|GMT)$", "Z")
    texts = pc.replace_substring_regex(texts, r" ([+-]\d\d(:?\d\d)?)$", r"\1")
    local, zoned = (_where(texts, pattern) for pattern in (_LOCAL, _ZONED))
    local, _ = _cast(local, pa.timestamp("us"))
    zoned, _ = _cast(zoned, pa.timestamp("us", "UTC"))
    times = pc.coalesce(zoned, _in_utc(local, zone))
    return times, _lost(texts, times)


def _epochs(column: pa.Array, unit: float) -> tuple[pa.Array, Unreadable]:
    """Return the times from numbers since 1970 in `unit` microseconds."""
    values, unreadable = _numbers(column, RawColumn(name="", type="number"))
    with np.errstate(over="ignore"):
        micros = np.rint(values.fill_null(np.nan).to_numpy(zero_copy_only=False) * unit)
    inside = (micros >= _FIRST) & (micros <= _LAST)
    times = pa.array(np.where(inside, micros, 0.0).astype(np.int64), mask=~inside).cast(pa.timestamp("us", "UTC"))
    return times, unreadable | (~np.isnan(micros) & ~inside)


def _lists(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    kind, no_list = column.type, _none_of(column)
    if _is_text(kind) and raw.separator is not None:
        column, no_list = split_lists(column, raw.separator)
    elif pa.types.is_fixed_size_list(kind) or pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        raise _no_type(column, raw)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    elements, wrong = read_column(column.flatten(), element_of(raw))
    lists, unreadable = _lists_of(elements, wrong, lengths, column.is_null().to_numpy(zero_copy_only=False))
    return lists, unreadable | no_list


def _events(column: pa.Array, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """Read lists of structs, whose fields are found by name."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not is_list or not (pa.types.is_struct(kind.value_type) or pa.types.is_null(kind.value_type)):
        raise _no_type(column, raw)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    is_too_long, is_null = lengths > MOST_EVENTS, column.is_null().to_numpy(zero_copy_only=False)
    if is_too_long.any():
        column = pc.if_else(pa.array(is_too_long), None, column)
        lengths = np.where(is_too_long, 0, lengths)
    events = column.flatten()
    columns: dict[str, Values] = {}
    if pa.types.is_struct(events.type):
        flat = flat_batch(pa.RecordBatch.from_struct_array(events))
        columns = dict(zip(flat.schema.names, flat.columns, strict=True))
    names = [field.name for field in raw.fields]
    for name in columns:
        if name not in names:
            raise UserError(f"column '{raw.name}': unknown field '{name}'; {did_you_mean(name, names, 'fields:')}")
    is_event = events.is_valid().to_numpy(zero_copy_only=False)
    lists, unreadable = _lists_of(*_structs_of(columns, is_event, raw), lengths, is_null)
    return lists, unreadable | is_too_long


def _events_of_objects(values: list[Any], raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """Read lists of Python's objects, whose values may be of several types."""
    is_null = np.array([value is None for value in values], bool)
    is_list = np.array([isinstance(v, list | tuple | np.ndarray) and len(v) <= MOST_EVENTS for v in values], bool)
    lists = [value if is_one else () for value, is_one in zip(values, is_list, strict=True)]
    names = {field.name for field in raw.fields}
    events: list[Mapping[str, Any]] = []
    is_event: list[bool] = []
    for given in (event for of_row in lists for event in of_row):
        event = flat_row(given, names) if isinstance(given, Mapping) else {"": given}
        is_event.append(event.keys() <= names)
        events.append(event)
    columns: dict[str, Values] = {name: [event.get(name) for event in events] for name in names}
    structs, wrong = _structs_of(columns, np.array(is_event, bool), raw)
    found, unreadable = _lists_of(structs, wrong, np.array([len(of_row) for of_row in lists], np.int64), is_null)
    return found, unreadable | ~(is_null | is_list)


def _structs_of(
    columns: Mapping[str, Values], is_event: NDArray[np.bool_], raw: RawColumn
) -> tuple[pa.StructArray, Unreadable]:
    """Return (m,) events from their values by field, and which of them are none, or lack a time."""
    arrays, wrong = [], ~is_event
    for field in raw.fields:
        values, unreadable = read_values(columns.get(field.name, pa.nulls(len(is_event))), field)
        arrays.append(values)
        wrong = wrong | unreadable
    wrong = wrong | arrays[0].is_null().to_numpy(zero_copy_only=False)
    return pa.StructArray.from_arrays(arrays, fields=list(raw.arrow.value_type)), wrong


def element_of(raw: RawColumn) -> RawColumn:
    """Return how an element of a column of lists is read."""
    return raw.model_copy(update={"type": raw.type.removesuffix("s"), "separator": None})


def _lists_of(
    elements: pa.Array, wrong: Unreadable, lengths: NDArray[np.integer], is_null: NDArray[np.bool_]
) -> tuple[pa.Array, Unreadable]:
    """Join elements to (n,) lists of some lengths; a list with a wrong element is unreadable."""
    unreadable = np.zeros(len(lengths), bool)
    unreadable[np.repeat(np.arange(len(lengths)), lengths)[wrong]] = True
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, elements, mask=pa.array(is_null | unreadable)), unreadable


def _parsed(texts: pa.Array, kind: pa.DataType, pattern: str) -> tuple[pa.Array, Unreadable]:
    """Return the numbers of texts that match `pattern`; Arrow's own reading of integers takes hexadecimal ones, too."""
    values, _ = _cast(_where(texts, pattern), kind)
    unreadable = _lost(texts, values)
    if unreadable.any():  # perhaps whole floats or booleans
        again, _ = _cast(_where(in_form(texts.filter(pa.array(unreadable)), "number"), pattern), kind)
        values = pc.replace_with_mask(values, pa.array(unreadable), again)
        unreadable = _lost(texts, values)
    return values, unreadable


def _where(texts: pa.Array, pattern: str) -> pa.Array:
    """Return the texts that match `pattern` as a whole; null otherwise."""
    return pc.if_else(pc.match_substring_regex(texts, f"^({pattern})$"), texts, None)


def _cast(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Unreadable]:
    """Cast what can be cast. Halves are tried apart, so a few wrong values cost a few casts."""
    try:
        return column.cast(kind), _none_of(column)
    except pa.ArrowInvalid:
        if len(column) == 1:
            return pa.nulls(1, kind), np.ones(1, bool)
    middle = len(column) // 2
    return _joined([_cast(part, kind) for part in (column[:middle], column[middle:])])


def _in_utc(times: pa.Array, zone: str) -> pa.Array:
    """Return the times in UTC; those that name no zone are local ones of `zone`."""
    if times.type.tz is None:
        times = pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="latest")
    return times.cast(pa.timestamp("us", "UTC"))


def _time_in_range(times: pa.Array, unreadable: Unreadable | None = None) -> tuple[pa.Array, Unreadable]:
    """Return the times of the years 1 to 9999; Arrow's calendar is wrong far beyond them."""
    micros = times.cast(pa.int64())
    beyond = pc.fill_null(pc.or_(pc.less(micros, _FIRST), pc.greater(micros, _LAST)), False)
    wrong = beyond.to_numpy(zero_copy_only=False)
    times = pc.if_else(beyond, None, times) if wrong.any() else times
    return times, wrong if unreadable is None else wrong | unreadable


def _present(texts: pa.Array, null_values: Sequence[str]) -> pa.Array:
    """Return texts without blanks around them; null for what is empty then, or stands for a missing value."""
    texts = without_blanks(texts)
    if not null_values:
        return texts
    is_null = pc.is_in(texts, pa.array(null_values, texts.type))
    return pc.if_else(is_null, None, texts) if pc.any(is_null).as_py() else texts


def _lost(before: pa.Array, after: pa.Array) -> Unreadable:
    return pc.and_(pc.is_valid(before), pc.is_null(after)).to_numpy(zero_copy_only=False)


def _none_of(column: pa.Array) -> Unreadable:
    return np.zeros(len(column), bool)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_binary(kind: pa.DataType) -> bool:
    of_any_length = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    return of_any_length or pa.types.is_fixed_size_binary(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _no_type(column: pa.Array, raw: RawColumn) -> UserError:
    hint = "; give its `separator`" if _is_text(column.type) and raw.type.endswith("s") else ""
    return UserError(f"column '{raw.name}': holds {column.type}, needs {needs(raw)}{hint}")
