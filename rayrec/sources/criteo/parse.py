"""Criteo's text -> Arrow columns, vectorised; rows that break the layout are set aside.

Arrow's CSV reader (C++) splits the fields. It stops at the first row with a wrong number of fields or, asked for typed
columns, at the first bad value, so rows are checked around it: before, over the bytes, for the number of columns, the
label and the encoding; after, column by column, for integers.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from numpy.typing import NDArray

from rayrec.sources.criteo.layout import CATEGORICAL, LABEL, NUMERIC, SEPARATOR
from rayrec.sources.parsed_lines import ParsedLines
from rayrec.sources.rejected import Reason

_NEWLINE, _TAB, _RETURN = 10, 9, 13
_ZERO, _ONE = 48, 49
_INTEGER = r"^-?[0-9]+$"
"""Arrow's own conversion would also read `0x1F`."""
_SAFE_DIGITS = 18
"""Integers of up to so many characters fit into int64."""

FEATURES_SCHEMA = pa.schema([(n, pa.int64()) for n in NUMERIC] + [(n, pa.string()) for n in CATEGORICAL])
LABELLED_SCHEMA = FEATURES_SCHEMA.insert(0, pa.field(LABEL, pa.float32()))


def has_label(line: bytes) -> bool:
    """False where a line has exactly the columns of the features, as in files that are to be scored."""
    return line.count(SEPARATOR.encode()) + 1 != len(FEATURES_SCHEMA)


def parse_lines(data: bytes, is_labelled: bool = True) -> ParsedLines:
    """Parse whole lines, each ended by a newline (LF or CRLF). Quotes have no meaning in this layout."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == _NEWLINE)
    starts = np.concatenate(([0], ends[:-1] + 1)) if len(ends) else ends
    schema = LABELLED_SCHEMA if is_labelled else FEATURES_SCHEMA
    reasons = _check_lines(data, raw, starts, ends, len(schema), is_labelled)

    bad = reasons != _GOOD
    good_bytes = raw[np.repeat(~bad, ends - starts + 1)].tobytes() if bad.any() else data
    table = _split_fields(good_bytes, schema)
    positions = np.flatnonzero(~bad)

    columns = [table.column(LABEL).cast(pa.float32())] if is_labelled else []
    is_integer = np.ones(len(positions), bool)
    for name in NUMERIC:
        values, column_is_integer = _integers(table.column(name))
        columns.append(values)
        is_integer &= column_is_integer
    columns += [table.column(name) for name in CATEGORICAL]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    if not is_integer.all():
        reasons[positions[~is_integer]] = _CODES.index(Reason.INTEGER)
        rows, positions = rows.filter(pa.array(is_integer)), positions[is_integer]

    rejected = np.flatnonzero(reasons != _GOOD)
    return ParsedLines(
        rows=rows,
        positions=positions,
        num_lines=len(ends),
        rejected_positions=rejected,
        rejected_reasons=[_CODES[code] for code in reasons[rejected]],
        rejected_texts=[data[starts[i] : ends[i]] for i in rejected],
    )


_CODES = tuple(Reason)
_GOOD = -1


def _check_lines(
    data: bytes,
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    num_columns: int,
    is_labelled: bool,
) -> NDArray[np.int8]:
    """For each line the index in `_CODES` of what is wrong with it, or `_GOOD`."""
    reasons = np.full(len(ends), _GOOD, np.int8)
    if is_labelled:
        # A line begins with the label and a tab; an empty last line has nothing after its newline.
        first, second = raw[starts], raw[np.minimum(starts + 1, len(raw) - 1)]
        reasons[~(((first == _ZERO) | (first == _ONE)) & (second == _TAB))] = _CODES.index(Reason.LABEL)
    if b"\r" in data:
        reasons[np.searchsorted(ends, np.flatnonzero(raw == _RETURN))] = _CODES.index(Reason.CARRIAGE_RETURN)
    if not _is_utf8(data):
        suspects = np.unique(np.searchsorted(ends, np.flatnonzero(raw > 127)))
        undecodable = [i for i in suspects if not _is_utf8(data[starts[i] : ends[i]])]
        reasons[undecodable] = _CODES.index(Reason.UTF8)
    tabs = np.diff(np.searchsorted(np.flatnonzero(raw == _TAB), ends), prepend=0)
    reasons[tabs + 1 != num_columns] = _CODES.index(Reason.COLUMNS)
    return reasons


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _split_fields(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Every field as a string, the empty ones null. All lines have the right number of fields."""
    strings = pa.schema([(name, pa.string()) for name in schema.names])
    if not data:
        return pa.RecordBatch.from_pylist([], schema=strings)
    table = csv.read_csv(
        pa.BufferReader(data),
        read_options=csv.ReadOptions(column_names=schema.names, use_threads=False, block_size=len(data) + 1),
        parse_options=csv.ParseOptions(delimiter=SEPARATOR, quote_char=False, double_quote=False),
        convert_options=csv.ConvertOptions(
            column_types=strings, null_values=[""], strings_can_be_null=True, check_utf8=False
        ),
    )
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _integers(column: pa.StringArray) -> tuple[pa.Int64Array, NDArray[np.bool_]]:
    """The column as int64, null where it is empty or bad, and for each row whether it is empty or a good integer."""
    is_good = pc.fill_null(pc.match_substring_regex(column, _INTEGER), True)
    if (pc.max(pc.binary_length(column)).as_py() or 0) > _SAFE_DIGITS:
        is_good = pc.and_(is_good, _fits_int64(column))
    if not pc.all(is_good).as_py():
        column = pc.if_else(is_good, column, pa.scalar(None, pa.string()))
    return column.cast(pa.int64()), is_good.to_numpy(zero_copy_only=False)


def _fits_int64(column: pa.StringArray) -> pa.BooleanArray:
    """False for the integers that do not fit into 64 bits."""
    fits = np.ones(len(column), bool)
    long = pc.fill_null(pc.greater(pc.binary_length(column), _SAFE_DIGITS), False).to_numpy(zero_copy_only=False)
    for i in np.flatnonzero(long):
        digits = column[i].as_py().removeprefix("-").lstrip("0")
        fits[i] = len(digits) <= _SAFE_DIGITS + 1 and digits.isdecimal() and -(2**63) <= int(column[i].as_py()) < 2**63
    return pa.array(fits)
