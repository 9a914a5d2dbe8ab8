"""Text of Outbrain's tables -> Arrow columns, vectorized; rows that break the layout are set aside."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.raw.blocks import ParsedLines, Reason
from rayrec.raw.text_lines import TextLines, split_fields, to_integers
from rayrec.sources.outbrain.outbrain_tables import ARROW_TYPES, CODES, NULL, Kind, TableLayout

SEPARATOR = ","
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?)?$"
_TIME_CHARACTERS = len("2016-06-05 00:00:00.000")
"""Finer digits are cut off."""
_REASONS: dict[Kind, Reason] = {
    "integer": Reason.INTEGER,
    "confidence": Reason.NUMBER,
    "click": Reason.LABEL,
    "code": Reason.INTEGER,
    "time": Reason.TIME,
}


@dataclass(frozen=True)
class FileColumns:
    """The positions of the columns of a table in one file."""

    positions: tuple[int, ...]
    """Positions in the order of the table's layout."""
    num_columns: int
    """Number of columns in the file."""


def parse_lines(data: bytes, table: TableLayout, file: FileColumns) -> ParsedLines:
    """Parse whole lines of a table's file, each ended by a newline (LF or CRLF), without the header.

    The rows have the schema of the table. Double quotes have no meaning and are dropped: no field of these tables holds
    a comma or a quote, but some programs enclose every string.
    """
    original = TextLines(data)
    lines = TextLines(original.data.replace(b'"', b"")) if b'"' in data else original
    lines.reject_undecodable()
    lines.reject(lines.count(ord(SEPARATOR)) + 1 != file.num_columns, Reason.COLUMNS)

    names = [str(position) for position in range(file.num_columns)]
    fields = split_fields(lines.bytes_of(lines.good), names, SEPARATOR, null_values=("", NULL))
    positions = np.flatnonzero(lines.good)
    is_good = np.ones(len(positions), bool)
    columns = []
    for column, position in zip(table.columns, file.positions, strict=True):
        text = fields.column(position)
        values, is_readable = _convert(text, column.kind)
        checks = [(is_readable, _REASONS.get(column.kind))]
        if column.is_needed:
            checks.append((text.is_valid().to_numpy(zero_copy_only=False), Reason.KEY))
        for passed, reason in checks:
            if reason is not None and not passed.all():
                lines.reject(positions[is_good & ~passed], reason)
                is_good &= passed
        columns.append(values)
    if is_good.all():
        rows = pa.RecordBatch.from_arrays(columns, schema=table.schema)
    else:
        good = pa.array(is_good)
        rows = pa.RecordBatch.from_arrays([c.filter(good) for c in columns], schema=table.schema)
        positions = positions[is_good]
    return lines.parsed(rows, positions, texts=original)


def _convert(text: pa.StringArray, kind: Kind) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Return the values of a column, null where missing or bad, and whether each field is missing or good."""
    match kind:
        case "string":
            return text, np.ones(len(text), bool)
        case "integer":
            return to_integers(text)
        case "code":
            values, is_good = to_integers(text)
            is_code = pc.is_in(values, pa.array(CODES))
            return pc.if_else(is_code, values, None).cast(ARROW_TYPES[kind]), is_good
        case "click":
            return _converted(text, pc.is_in(text, pa.array(["0", "1"])), kind)
        case "confidence":
            return _converted(text, pc.match_substring_regex(text, _NUMBER), kind)
        case "time":
            text = pc.utf8_slice_codeunits(text, 0, _TIME_CHARACTERS)
            return _converted(text, _is_time(text), kind)


def _converted(text: pa.StringArray, is_good: pa.BooleanArray, kind: Kind) -> tuple[pa.Array, NDArray[np.bool_]]:
    is_good = pc.or_(pc.is_null(text), pc.fill_null(is_good, False))
    kept = pc.if_else(is_good, text, pa.scalar(None, pa.string()))
    values = kept.cast(pa.timestamp("ms")) if kind == "time" else kept
    return values.cast(ARROW_TYPES[kind]), is_good.to_numpy(zero_copy_only=False)


def _is_time(text: pa.StringArray) -> pa.BooleanArray:
    looks_good = pc.match_substring_regex(text, _TIME)
    kept = pc.if_else(pc.fill_null(looks_good, False), text, pa.scalar(None, pa.string()))
    try:
        kept.cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:
        # Some day that no month has: only now is each looked at alone.
        return pa.array([value is not None and _is_calendar_time(value) for value in kept.to_pylist()])
    return looks_good


def _is_calendar_time(text: str) -> bool:
    try:
        pa.scalar(text).cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:
        return False
    return True
