"""JSON: a row in each line, an object of columns and values; or such objects in one array, or over several lines."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.json as pa_json
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import RawColumn, fields_of, flat_batch, flat_row, nested_schema
from rayrec.features.raw_values import Values, read_column
from rayrec.raw.input_files import Chunk, InputFile
from rayrec.raw.rows import RawCells, Reason
from rayrec.raw.text import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    NEWLINE,
    RETURN,
    UTF8,
    TextEncoding,
    TextLines,
    read_data_lines,
    read_head,
    read_lines,
    read_text,
)

_HEAD_BYTES, _HEAD_ROWS = 2**21, 1_000
"""Bytes of a file that its columns are told from, and the rows that tell their types, too."""
_PLACE_BYTES, _PLACE_EVERY, _MOST_PLACES = 2**16, 2**22, 16
"""Places at equal distances behind it, up to the end, where columns are looked for that begin late."""
_OF_COLUMNS = re.compile(rb'\s*\{\s*"(?:[^"\\]|\\.)*"\s*:\s*[\[{]')
"""How one object begins that holds whole columns."""
_FEW_LINES = 256
_OPEN, _CLOSE = b"{}"
_QUOTE, _BLANK, _COLON, _BACKSLASH, _NULL = b'" :\\n'
_BETWEEN = b"[],\t\r\n "
"""What may stand between objects."""
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_HASH_BITS = 20
_PRIMES = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
_FIRST_BYTES = np.array([(1 << 8 * count) - 1 for count in range(9)], np.uint64)
_TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string(), dict: pa.struct([])}


@dataclass(frozen=True)
class JsonLinesLayout:
    """The columns of a file of JSON."""

    columns: pa.Schema
    """Names in order of appearance in the first lines, with the types that their values have there."""
    mixed: frozenset[str] = frozenset()
    """Columns whose values have several types there; they count as text."""
    nested: frozenset[tuple[str, ...]] = frozenset()
    """The names that lead to the columns that are fields of objects within rows (`rayrec.features.raw_columns`)."""
    text: TextEncoding = UTF8
    is_document: bool = False
    """Whether objects are found by their braces, not by lines; they count as lines."""

    header_lines = 0

    @property
    def is_whole(self) -> bool:
        """Whether a file is read from its beginning, with its first chunk."""
        return self.is_document or self.text.is_whole

    def count_lines(self, chunk: Chunk) -> int:
        """Return the number of lines of a chunk that has others after it, as `read` numbers lines."""
        return sum(text.count(b"\n") for text in self._blocks(chunk))

    def read(self, chunk: Chunk, wanted: Mapping[str, RawColumn | None]) -> Iterator[tuple[bytes, RawCells]]:
        """Yield the text of each block with its rows. A name that an object has twice counts with its last value.

        Other names are counted if all columns are wanted of which all values are read with one type.
        """
        blocks = read_data_lines(chunk, self.text) if not self.is_document else self._blocks(chunk)
        for text in blocks:
            yield from self.parse(text, wanted)

    def _blocks(self, chunk: Chunk) -> Iterator[bytes]:
        if not self.is_document:
            yield from read_lines(chunk, self.text)
        elif chunk.start == 0:
            yield from read_objects(chunk.file, self.text)

    def parse(self, data: bytes, wanted: Mapping[str, RawColumn | None]) -> Iterator[tuple[bytes, RawCells]]:
        """Parse whole lines, each ended by a newline; in one block or several."""
        kinds = {name: self._read_as(name, raw) for name, raw in wanted.items()}
        paths = {".".join(path): path for path in self.nested}
        exact = {paths.get(name, (name,)): kind for name, kind in kinds.items() if kind is not None}
        schema = nested_schema(exact) if len(exact) == len(kinds) else None
        is_all = {name for name in self.columns.names if self.type_of(name) is not None} <= kinds.keys()
        return _parse_blocks(data, kinds, schema, frozenset({*self.columns.names, *kinds}) if is_all else None)

    def type_of(self, name: str) -> pa.DataType | None:
        """Return the type with which all values of a column can be read; None if there is none."""
        return None if name in self.mixed else _exact_type(self.columns.field(name).type, None)

    def _read_as(self, name: str, raw: RawColumn | None) -> pa.DataType | None:
        """Return the type with which Arrow reads a column; None if values may need one each."""
        if "." in name and name not in self.columns.names:  # perhaps an object's field, perhaps a name with a dot
            return None
        found = self.columns.field(name).type if name in self.columns.names else pa.null()
        kind = None if name in self.mixed else _exact_type(found, raw.type if raw else None)
        try:
            if kind is not None and raw is not None:
                read_column(pa.nulls(0, kind), raw)
        except UserError:
            return None
        return kind


def _parse_blocks(
    data: bytes,
    wanted: Collection[str],
    schema: pa.Schema | None,
    known: Collection[str] | None,
    others: Literal["error", "ignore"] = "error",
) -> Iterator[tuple[bytes, RawCells]]:
    """Yield whole lines in blocks, so that a line that Arrow cannot read with `schema` slows down few others.

    `schema`: None if Arrow has no types for all columns. `known`: the columns that are no other ones; None to count
    none. `others`: what Arrow tries first where there are others.
    """
    lines = TextLines(data)
    lines.reject_undecodable()
    columns, counts = None, Counter[str]()
    if schema is not None and known is not None and others == "error":
        columns = _parse_at_once(lines, wanted, schema, "error")
    if schema is not None and columns is None:
        columns = _parse_at_once(lines, wanted, schema, "ignore")
        if columns is not None and known is not None:
            counts = _other_names(lines, known)
    if columns is None and schema is not None and len(lines) > _FEW_LINES:
        middle = data.index(b"\n", len(data) // 2) + 1
        for half in (data[:middle], data[middle:]):
            if half:
                yield from _parse_blocks(half, wanted, schema, known, "ignore")
        return
    if columns is None:
        rows = _parse_by_line(lines, wanted)
        columns = {name: [row.get(name) for row in rows] for name in wanted}
        if known is not None:
            counts = _names_but(known, rows)
    yield data, RawCells(columns, np.flatnonzero(lines.good), len(lines), lines.bad, lines.line, counts)


def _names_but(known: Collection[str], rows: list[Mapping[str, Any]]) -> Counter[str]:
    """Count the rows that have a value of each column that is not known."""
    return Counter(name for row in rows for name, value in row.items() if value is not None and name not in known)


def _other_names(lines: TextLines, known: Collection[str]) -> Counter[str]:
    """Count as `_names_but` in lines all of which are objects, in a tenth of the time that Arrow takes to parse them.

    Names are told by hashes. Of each that no known column has, nor an object that leads to one, one row is parsed, and
    all if it is an object. Where there is none, an object may have a name that another has: then all rows are parsed.
    """
    is_known = np.zeros(2**_HASH_BITS, bool)
    is_known[[number for name in known for step in (name, *name.split(".")) for number in _hashes_of(step)]] = True
    hashes, places = _hashed_names(lines.raw)
    is_other = ~is_known[hashes]
    hashes, places = hashes[is_other], places[is_other]
    counts = Counter[str]()
    for name in np.unique(hashes).tolist():
        rows = np.unique(np.searchsorted(lines.ends, places[hashes == name])).tolist()
        row = _parse_line(lines.line(rows[0]))
        assert isinstance(row, dict)
        for path, value in fields_of(row, known):
            if any(name in _hashes_of(step) for step in path[:-1]):  # an object, perhaps with names that others have
                found = _parse_lines([lines.line(number) for number in rows])
                counts |= _names_but(known, [flat_row(row, known) for row in found])
                break
            if value is not None and ".".join(path) not in known and name in _hashes_of(path[-1]):
                counts |= Counter({".".join(path): len(rows)})
    if not counts and any("." in name for name in known):
        return _names_but(known, _parse_by_line(lines, known))
    return counts


def _hashes_of(name: str) -> list[int]:
    """Return the hashes of a name, as it is and with its characters beyond ASCII escaped."""
    texts = [json.dumps(name, ensure_ascii=is_ascii) for is_ascii in (False, True)]
    return _hashed_names(np.frombuffer("".join(f"{text}:0\n" for text in texts).encode(), np.uint8))[0].tolist()


def _hashed_names(raw: NDArray[np.uint8]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return (n,) the hashes of the names of values other than null in objects, all whole, and where each name ends."""
    quotes = np.flatnonzero(raw == _QUOTE)
    # A quote after a backslash is a character, unless the backslash is one.
    quotes = quotes[(raw[quotes - 1] != _BACKSLASH) | (raw[quotes - 2] == _BACKSLASH)]
    begins, ends = quotes[::2] + 1, quotes[1::2]
    colons = ends + 1 + (raw[ends + 1] == _BLANK)
    values = colons + 1 + (raw[colons + 1] == _BLANK)
    is_name = (raw[colons] == _COLON) & (raw[values] != _NULL)
    begins, ends = begins[is_name], ends[is_name]
    # Of a name, its first and last eight bytes and its length.
    padded = np.append(raw, np.zeros(8, np.uint8))
    words = np.ndarray(len(raw), "<u8", padded, strides=(1,))
    lengths = (ends - begins).astype(np.uint64)
    mask = _FIRST_BYTES[np.minimum(lengths, 8)]
    first, last = words[begins] & mask, words[np.maximum(ends - 8, begins)] & mask
    hashes = (first * _PRIMES[0]) ^ (last * _PRIMES[1] + lengths * _PRIMES[2])
    return hashes * _PRIMES[0] >> np.uint64(64 - _HASH_BITS), ends


def _parse_at_once(
    lines: TextLines, wanted: Collection[str], schema: pa.Schema, others: Literal["error", "ignore"]
) -> dict[str, Values] | None:
    """Return the columns; None if a line is no object, or if a value is not of its column's type.

    `others`: whether a name that `schema` has not is an error, so that the columns are None.
    """
    is_object = (lines.raw[lines.starts] == _OPEN) & (lines.raw[lines.ends - 1] == _CLOSE)
    if not len(lines) or not (is_object & lines.good).all():
        return None
    try:
        table = pa_json.read_json(
            pa.BufferReader(lines.data),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines.data) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=others
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(lines):  # Arrow also reads several objects of one line
        return None
    (batch,) = table.combine_chunks().to_batches()
    flat = flat_batch(batch)
    return {name: flat.column(name) for name in wanted}


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


def _parse_by_line(lines: TextLines, wanted: Collection[str]) -> list[Mapping[str, Any]]:
    """Return the rows, as Python's values; lines that are no objects are rejected."""
    rows: list[Mapping[str, Any]] = []
    for number in np.flatnonzero(lines.good).tolist():
        row = _parse_line(lines.line(number))
        if isinstance(row, Reason):
            lines.reject([number], row)
        else:
            rows.append(flat_row(row, wanted))
    return rows


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


def read_layout(file: InputFile, encoding: str | None = None) -> JsonLinesLayout | None:
    """Look at the first rows of a file; None if the file is empty. Raises UserError."""
    form, head = read_head(file, encoding, _HEAD_BYTES, may_cut=True) or (UTF8, b"")
    if not head.strip():
        return None
    lines = head.splitlines()
    rows = [row for row in map(_parse_line, lines[:_HEAD_ROWS]) if isinstance(row, dict)]
    if len(rows) < 2 and _holds_columns(head):
        raise UserError(
            f"{file.name}: one JSON object of whole columns; write an object for each row, as pandas does by "
            "to_json(orient='records', lines=True)"
        )
    are_objects_cut = 2 * len(rows) < len(lines[:_HEAD_ROWS]) and head.lstrip().startswith(b"{")
    is_document = _is_array(head.lstrip()) or are_objects_cut
    if is_document:
        lines = next(read_objects(file, form, _HEAD_BYTES), b"").splitlines()
        if not lines:  # an array of nothing
            return None
        rows = [row for row in map(_parse_line, lines[:_HEAD_ROWS]) if isinstance(row, dict)]
    if not rows:
        raise UserError(f"{file.name}: no JSON object in its first lines; write one object a line, or set 'format'")
    # Programs add fields to their logs. Of later rows, the first with each set of names counts, less what is an object
    # there and a value in the first rows, or the other way.
    known = set(map(_names, rows))
    is_object = {name: type(of) is dict for row in rows for name, of in row.items() if of is not None}
    later = lines[_HEAD_ROWS:]
    if not (is_document or form.is_whole or file.packing):
        later += _lines_of_places(file, form)
    by_names = {_names(row): row for row in reversed(_parse_lines(later))}
    for row in (row for names, row in by_names.items() if names not in known):
        rows.append({n: of for n, of in row.items() if is_object.get(n, type(of) is dict) == (type(of) is dict)})
    # Where some rows have an object and others a value, the object is a value, too.
    filled = {".".join(path) for row in rows for path, value in fields_of(row) if value is not None}
    values: dict[str, list[Any]] = {}
    paths: dict[str, set[tuple[str, ...]]] = {}
    for path, value in (field for row in rows for field in fields_of(row, filled)):
        values.setdefault(".".join(path), []).append(value)
        paths.setdefault(".".join(path), set()).add(path)
    # An object that is null in a row is no column.
    outer = {path[:length] for of_name in paths.values() for path in of_name for length in range(1, len(path))}
    for name in {".".join(path) for path in outer} & values.keys():
        if all(value is None for value in values[name]):
            del values[name]
    types = {name: _common_type(found) if len(paths[name]) == 1 else None for name, found in values.items()}
    columns = pa.schema([(name, pa.string() if kind is None else kind) for name, kind in types.items()])
    mixed = frozenset(name for name, kind in types.items() if kind is None)
    nested = frozenset(path for name in types for path in paths[name] if len(path) > 1)
    return JsonLinesLayout(columns, mixed, nested, form, is_document)


def _lines_of_places(file: InputFile, form: TextEncoding) -> Iterator[bytes]:
    """Yield lines at a few places of a file, behind those that its columns are told from."""
    count = min(-(-(file.bytes - _HEAD_BYTES) // _PLACE_EVERY), _MOST_PLACES)
    for stop in np.linspace(_HEAD_BYTES, file.bytes, max(count, 0) + 1)[1:].astype(np.int64).tolist():
        start = max(stop - _PLACE_BYTES, _HEAD_BYTES)
        for text in read_lines(Chunk(file, 0, start, stop), form):
            yield from text.splitlines()


def _holds_columns(head: bytes) -> bool:
    """Tell if a file is one object of lists or objects, as pandas writes a table; such an object may be cut."""
    if _OF_COLUMNS.match(head) is None:
        return False
    text = head.decode(errors="replace").lstrip()
    try:
        found, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return len(head) > _HEAD_BYTES // 2
    return not text[end:].strip() and all(isinstance(values, dict | list) for values in found.values())


def _parse_lines(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the lines that are objects, parsed at once where all are JSON."""
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        rows = list(map(_parse_line, lines))
    return [row for row in rows if isinstance(row, dict)]


def _names(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the names of a row's values, with those in its objects."""
    return (*row, *((name, _names(of)) for name, of in row.items() if type(of) is dict))


def _is_array(head: bytes) -> bool:
    """Tell an array of rows from lines of which the first is a list of something else."""
    try:
        first = json.loads(head.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return head.startswith(b"[")
    return isinstance(first, list) and (not first or any(isinstance(item, dict) for item in first))


def read_objects(file: InputFile, form: TextEncoding, block_bytes: int = BLOCK_BYTES) -> Iterator[bytes]:
    """Yield the objects of a JSON array, or objects that take several lines, each as a line, in blocks.

    Text between objects that is no comma, and no bracket of an array, is a line, too. Memory does not grow with the
    array. Raises UserError if the array or an object breaks off, or on a damaged packed file.
    """
    carried, found, arrays = b"", 0, 0
    for block in read_text(file, form, block_bytes):
        data = carried + block
        lines, done, brackets = _as_lines(data)
        if len(data) - done > MAX_LINE_BYTES or done < 0:
            raise UserError(f"{file.name}: no JSON after {found:,} objects; a quote or a brace is missing or too many")
        carried, arrays = data[done:], arrays + brackets
        found += lines.count(b"\n")
        if lines:
            yield lines
    # Commas and brackets after the last object are still there.
    rest = carried.translate(None, _BETWEEN)
    if rest or arrays + carried.count(b"[") != carried.count(b"]"):
        raise UserError(f"{file.name}: breaks off after {found:,} objects; fetch it again, or mend its end")


def _as_lines(data: bytes) -> tuple[bytes, int, int]:
    """Return the whole objects of a text as lines, where the rest begins, and how many more arrays are open there.

    The rest begins at -1 if a brace closes what none opens.
    """
    # Braces in strings mean nothing, and neither does what follows a backslash.
    text = np.frombuffer(data, np.uint8)
    plain = np.frombuffer(_ESCAPED.sub(b"..", data), np.uint8) if b"\\" in data else text
    is_outside = ~np.logical_xor.accumulate(plain == _QUOTE)
    step = (is_outside & (plain == _OPEN)).astype(np.int8) - (is_outside & (plain == _CLOSE)).astype(np.int8)
    depth = np.cumsum(step, dtype=np.int32)
    if len(depth) and depth.min() < 0:
        return b"", -1, 0
    is_end = (step < 0) & (depth == 0)
    done = int(np.flatnonzero(is_end)[-1]) + 1 if is_end.any() else 0
    text, is_end, is_object = text[:done], is_end[:done], ((depth > 0) | (step < 0))[:done]
    is_stray = ~is_object & ~(is_outside[:done] & np.isin(text, np.frombuffer(_BETWEEN, np.uint8)))
    is_end |= is_stray & ~np.append(is_stray[1:], False)
    brackets = text[~is_object]
    is_kept = is_object | is_stray
    rows = np.where((text == NEWLINE) | (text == RETURN), _BLANK, text)[is_kept]
    lines = np.insert(rows, np.cumsum(is_kept)[is_end], NEWLINE).tobytes()
    return lines, done, int((brackets == ord("[")).sum()) - int((brackets == ord("]")).sum())


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
