"""JSON lines: a row in each line, an object of columns and values."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import Values, read_column
from rayrec.raw.blocks import Reason
from rayrec.raw.formats.row_types import RawCells
from rayrec.raw.input_files import Chunk, InputFile, read_data_lines, read_lines
from rayrec.raw.text_lines import TextLines

_HEAD_BYTES, _HEAD_LINES = 2**20, 1_000
"""The part of a file that its columns and their types are told from."""
_FEW_LINES = 256
_OPEN, _CLOSE = b"{}"
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), dict: pa.struct([])}


@dataclass(frozen=True)
class JsonLinesLayout:
    """The columns of a file of JSON lines."""

    columns: pa.Schema
    """Names in order of appearance in the first lines, with the types that their values have there."""
    mixed: frozenset[str] = frozenset()
    """Columns whose values have several types there; they count as text."""

    @property
    def header_lines(self) -> int:
        return 0

    def read(self, chunk: Chunk, wanted: Mapping[str, RawColumn | None]) -> Iterator[tuple[bytes, RawCells]]:
        """Yield the text of each block with its rows. A name that an object has twice counts with its last value."""
        for text in read_data_lines(chunk):
            yield from self.parse(text, wanted)

    def parse(self, data: bytes, wanted: Mapping[str, RawColumn | None]) -> Iterator[tuple[bytes, RawCells]]:
        """Parse whole lines, each ended by a newline; in one part or several."""
        return _parse_parts(data, {name: self._read_as(name, raw) for name, raw in wanted.items()})

    def _read_as(self, name: str, raw: RawColumn | None) -> pa.DataType | None:
        """Return the type with which Arrow reads a column; None if values may need one each."""
        found = self.columns.field(name).type if name in self.columns.names else pa.null()
        kind = None if name in self.mixed else _exact_type(found, raw.type if raw else None)
        try:
            if kind is not None and raw is not None:
                read_column(pa.nulls(0, kind), raw)
        except UserError:
            return None
        return kind


def _parse_parts(data: bytes, kinds: Mapping[str, pa.DataType | None]) -> Iterator[tuple[bytes, RawCells]]:
    """Yield whole lines in parts, so that a line of which Arrow cannot make all `kinds` slows down few others."""
    lines = TextLines(data)
    lines.reject_undecodable()
    exact = {name: kind for name, kind in kinds.items() if kind is not None}
    columns = _parse_at_once(lines, exact) if len(exact) == len(kinds) else None
    if columns is None and len(exact) == len(kinds) and len(lines) > _FEW_LINES:
        middle = data.index(b"\n", len(data) // 2) + 1
        for part in (data[:middle], data[middle:]):
            if part:
                yield from _parse_parts(part, kinds)
        return
    if columns is None:
        columns = _parse_by_line(lines, kinds)
    yield data, RawCells(columns, np.flatnonzero(lines.good), len(lines), lines.bad, lines.line)


def _parse_at_once(lines: TextLines, kinds: Mapping[str, pa.DataType]) -> dict[str, Values] | None:
    """Return the columns; None if a line is no object, or if a value is not of its column's type."""
    is_object = (lines.raw[lines.starts] == _OPEN) & (lines.raw[lines.ends - 1] == _CLOSE)
    if not len(lines) or not (is_object & lines.good).all():
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(lines.data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines.data) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=pa.schema(kinds), newlines_in_values=False, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(lines):  # Arrow also reads several objects of one line
        return None
    (batch,) = table.combine_chunks().to_batches()
    return dict(zip(kinds, batch.columns, strict=True))


def _exact_type(found: pa.DataType, wanted: str | None) -> pa.DataType | None:
    """Return the type with which Arrow reads all values exactly; None if there is none."""
    if pa.types.is_list(found) or (pa.types.is_null(found) and wanted in ("numbers", "integers", "texts")):
        inner = found.value_type if pa.types.is_list(found) else pa.null()
        element = _exact_type(inner, wanted and wanted.removesuffix("s"))
        return None if element is None else pa.list_(element)
    if pa.types.is_null(found):
        return {"number": pa.float64(), "integer": pa.int64()}.get(wanted or "", pa.string())
    if pa.types.is_integer(found) and wanted == "number":
        return pa.float64()
    # Integers among floats would lose digits.
    is_exact = not pa.types.is_floating(found) or wanted in ("number", "time", None)
    return None if pa.types.is_struct(found) or not is_exact else found


def _parse_by_line(lines: TextLines, wanted: Iterable[str]) -> dict[str, Values]:
    """Return the columns, as Python's values; lines that are no objects are rejected."""
    rows = []
    for number in np.flatnonzero(lines.good).tolist():
        row = _parse_line(lines.line(number))
        if isinstance(row, Reason):
            lines.reject([number], row)
        else:
            rows.append(row)
    return {name: [row.get(name) for row in rows] for name in wanted}


def _parse_line(line: bytes) -> dict[str, Any] | Reason:
    try:
        row = json.loads(line.decode(), parse_int=_integer)
        if b"\\u" in line:  # halves of surrogate pairs are no text
            json.dumps(row, ensure_ascii=False).encode()
    except UnicodeError:
        return Reason.UTF8
    except (ValueError, RecursionError):
        return Reason.JSON
    return row if isinstance(row, dict) else Reason.JSON


def _integer(digits: str) -> int | str:
    """Return an integer; beyond 64 bits its digits, so that none is lost."""
    number = int(digits) if len(digits) <= 20 else None
    return number if number is not None and -(2**63) <= number < 2**63 else digits


def read_layout(file: InputFile) -> JsonLinesLayout | None:
    """Look at the first lines of a file; None if the file is empty. Raises UserError."""
    chunk = Chunk(file, 0, 0, None if file.packing else min(file.bytes, _HEAD_BYTES))
    head = next(read_lines(chunk), b"")
    if not head.strip():
        return None
    rows = [_parse_line(line) for line in islice(head.splitlines(), _HEAD_LINES)]
    objects = [row for row in rows if isinstance(row, dict)]
    if not objects:
        hint = "one array" if head.lstrip().startswith(b"[") else "no JSON object in its first lines"
        raise UserError(f"{file.name}: {hint}; write one object a line, or set 'format'")
    values: dict[str, list[Any]] = {}
    for row in objects:
        for name, value in row.items():
            values.setdefault(name, []).append(value)
    types = {name: _common_type(found) for name, found in values.items()}
    columns = pa.schema([(name, pa.string() if kind is None else kind) for name, kind in types.items()])
    return JsonLinesLayout(columns, frozenset(name for name, kind in types.items() if kind is None))


def _common_type(values: list[Any]) -> pa.DataType | None:
    """Return the type of all values; None if they have several, other than integers among floats."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {list}:
        inner = _common_type([item for value in values if value for item in value])
        return None if inner is None else pa.list_(inner)  # an empty struct is false
    if kinds == {int, float}:
        return pa.float64()
    if len(kinds) > 1:
        return None
    return _TYPES[kinds.pop()] if kinds else pa.null()
