"""A sample of the rows of a table's files, spread over all of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.table import FileFormat
from rayrec.features.raw_values import Values
from rayrec.raw.input_files import Chunk, InputFile
from rayrec.raw.parquet import FileRowGroup, ParquetLayout, open_parquet, row_groups
from rayrec.raw.rows import LEFT_OUT, RawCells, as_text
from rayrec.raw.table_reader import TableFiles, TableReader, common_type, open_table, read_cells

_PLACES = 64
"""The number of places in large files that are read."""
_EXAMPLES = 3
_WHOLE_BYTES = 2**26
"""Files that are smaller together are read whole."""


@dataclass(frozen=True)
class Sample:
    """Some rows of a table, as the files hold them, in the order of the input."""

    rows: pa.Table
    """All columns: text of delimited files, otherwise with types; text if values differ in type."""
    bytes_read: int
    total_rows: int
    """Rows of all files, estimated unless `is_whole`."""
    is_whole: bool
    """Whether every row was read, though perhaps not kept."""
    table: TableFiles
    places: Sequence["_Place"]
    """Where rows were read."""
    unreadable: Mapping[str, int]
    """The number of lines that are no row where rows were read, by reason."""
    others: Mapping[str, int]
    """Rows that have a value of each column that only later rows have."""


@dataclass
class LeftOut:
    """Counts of lines that preprocessing would leave out where a sample was read."""

    rows: int = 0
    """Good rows."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The other lines by reason."""
    columns: Counter[str] = field(default_factory=Counter)
    """Bad values by column."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """The first bad rows, with the columns of `REJECTED_SCHEMA`; `line` is None where it is not known."""

    @property
    def bad(self) -> int:
        """Bad rows."""
        return sum(number for reason, number in self.reasons.items() if reason not in LEFT_OUT)

    @property
    def share(self) -> float:
        """Return the share of bad rows among the rows that are not left out."""
        return self.bad / max(self.bad + self.rows, 1)


@dataclass(frozen=True)
class _CountedFile(InputFile):
    """A file that tells how many of its bytes were read."""

    opened: list[pa.NativeFile] = field(default_factory=list)

    def open(self) -> pa.NativeFile:
        self.opened.append(self.open_packed())
        return self.unpack(self.opened[-1])


@dataclass(frozen=True)
class _Place:
    """Place where rows are read: a chunk from its beginning, up to a number of bytes of text or of rows."""

    chunk: Chunk
    max_bytes: float = np.inf
    max_rows: float = np.inf
    group: FileRowGroup | None = None
    """The row group of a Parquet file that is the chunk."""


@dataclass
class _Kept:
    """Random rows among those seen, no more than twice `rows` at a time."""

    rows: int
    random: np.random.Generator
    columns: Sequence[str]
    tables: list[pa.Table] = field(default_factory=list)
    keys: list[NDArray[np.float64]] = field(default_factory=list)
    unreadable: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def add(self, cells: RawCells) -> None:
        self.unreadable.update(cells.bad_lines.values())
        self.others.update({n: rows for n, rows in cells.others.items() if n not in self.columns})
        held = {name: _as_array(cells.columns.get(name), len(cells.positions)) for name in self.columns}
        self.tables.append(pa.table(held))
        self.keys.append(self.random.random(len(cells.positions)))
        if sum(map(len, self.keys)) > 2 * self.rows:
            self.prune()

    def prune(self) -> None:
        """Keep the rows with the smallest keys."""
        keys = np.concatenate([*self.keys, np.zeros(0)])
        if len(keys) > self.rows:
            limit = np.partition(keys, self.rows)[self.rows]
            self.tables = [t.filter(pa.array(key < limit)) for t, key in zip(self.tables, self.keys, strict=True)]
            self.keys = [key[key < limit] for key in self.keys]


def sample_rows(files: Sequence[InputFile], table_format: FileFormat, rows: int, seed: int) -> Sample:
    """Return at most `rows` rows, drawn from all rows of small files, otherwise from places at equal distances.

    Of a large packed file, or one in UTF-16, which cannot be entered midway, only the beginning is read. Lines that
    are no rows are left out. Memory grows with `rows` alone. Raises UserError as
    `rayrec.raw.table_reader.open_table`, or if a file is damaged.
    """
    table = open_table(files, table_format)
    random = np.random.default_rng(seed)
    total_bytes = sum(file.bytes for file in files)
    budget = max(_WHOLE_BYTES, 2 * rows * _bytes_per_row(table))
    is_whole = total_bytes <= budget
    if is_whole:
        places = [_Place(Chunk(file, index, 0, None)) for index, file in enumerate(table.files)]
    else:
        places = list(_places(table, budget, rows, random))
    kept = _Kept(rows, random, table.columns.names)
    bytes_read = rows_read = 0
    for number, place in enumerate(places):
        place_bytes, place_rows, lines = _read(place, table, kept)
        bytes_read += place_bytes
        rows_read += place_rows
        places[number] = replace(place, max_rows=lines)
    kept.prune()
    total_rows = rows_read if is_whole else round(rows_read * total_bytes / max(bytes_read, 1))
    held = _concat(kept.tables, table.columns)
    return Sample(held, bytes_read, total_rows, is_whole, table, places, kept.unreadable, kept.others)


def read_again(sample: Sample, reader: TableReader) -> LeftOut:
    """Read the places of a sample as preprocessing reads them with the reader."""
    found = LeftOut()
    for place in sample.places:
        lines = 0
        for block in reader.read(place.chunk):
            found.rows += block.rows.num_rows
            found.reasons.update(block.rejected["reason"].to_pylist())
            found.columns.update(block.rejected["column"].drop_null().to_pylist())
            for row in block.rejected.to_pylist() if len(found.examples) < _EXAMPLES else ():
                if row["reason"] not in LEFT_OUT:
                    found.examples.append({**row, "line": row["line"] if place.chunk.start == 0 else None})
            lines += block.num_lines
            if lines >= place.max_rows:
                break
    del found.examples[_EXAMPLES:]
    return found


def _bytes_per_row(table: TableFiles) -> int:
    """Return a rough number, from the first lines of the first text file; 0 if there is none."""
    for file, layout in zip(table.files, table.layouts, strict=True):
        if not isinstance(layout, ParquetLayout) and file.bytes:
            stop = None if file.packing else 1
            text, cells = next(layout.read(Chunk(file, 0, 0, stop), {}), (b"", None))
            if cells is not None and text.strip():
                return len(text) // max(cells.num_lines, 1)
    return 0


def _places(table: TableFiles, budget: int, rows: int, random: np.random.Generator) -> Iterator[_Place]:
    """Yield the places at equal distances in the bytes of all files."""
    sizes = [file.bytes for file in table.files]
    points = (np.arange(_PLACES) + random.random()) * sum(sizes) / _PLACES
    begins = np.cumsum(sizes) - sizes
    for index, (file, layout) in enumerate(zip(table.files, table.layouts, strict=True)):
        inside = points[(points >= begins[index]) & (points < begins[index] + sizes[index])] - begins[index]
        if not len(inside):
            continue
        if isinstance(layout, ParquetLayout):
            with open_parquet(file) as opened:
                groups = row_groups(opened.metadata)
            if not groups:
                continue
            numbers, counts = np.unique(
                np.searchsorted([group.first_byte for group in groups], inside, "right") - 1, return_counts=True
            )
            for number, count in zip(numbers.clip(0), counts, strict=True):
                group = groups[number]
                chunk = Chunk(file, index, group.first_byte, group.first_byte + 1)
                yield _Place(chunk, max_rows=-(-2 * rows // _PLACES) * int(count), group=group)
        elif file.packing or layout.is_whole:
            yield _Place(Chunk(file, index, 0, None), max_bytes=budget * len(inside) / _PLACES)
        else:
            for start in inside.astype(np.int64).tolist():
                yield _Place(Chunk(file, index, start, min(start + budget // _PLACES, file.bytes)))


def _read(place: _Place, table: TableFiles, kept: _Kept) -> tuple[int, int, int]:
    """Return the bytes of the file, the rows and the lines that were read; a Parquet file counts by row group."""
    file = place.chunk.file
    counted = _CountedFile(**{name: getattr(file, name) for name in InputFile.__dataclass_fields__})
    chunk = replace(place.chunk, file=counted)
    texts = rows = lines = packed = 0
    is_packed = file.packing is not None or table.layouts[chunk.file_index].is_whole
    for text, cells in read_cells(table.layouts[chunk.file_index], chunk, dict.fromkeys(table.columns.names)):
        kept.add(cells)
        texts += len(text)
        rows += len(cells.positions)
        lines += cells.num_lines
        if is_packed:  # closed before what follows the last newline
            packed = file.bytes if counted.opened[-1].closed else counted.opened[-1].tell()
        if texts >= place.max_bytes or rows >= place.max_rows:
            break
    if place.group is not None:
        return place.group.bytes, place.group.rows, lines
    return packed or texts or file.bytes, rows, lines


def _as_array(values: Values | None, rows: int) -> pa.Array:
    """Return the values as one array; as text if their types differ."""
    if values is None:
        return pa.nulls(rows)
    if isinstance(values, pa.Array):
        return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return _as_texts(values)


def _concat(tables: Sequence[pa.Table], columns: pa.Schema) -> pa.Table:
    """Return one table of several in which the type of a column may differ; text where none suits all."""
    if not tables:
        return columns.empty_table()
    return pa.table({name: _join([table.column(name) for table in tables]) for name in columns.names})


def _join(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    kind = common_type({column.type for column in columns})
    chunks = [chunk for column in columns for chunk in column.chunks]
    if kind == pa.string():
        chunks = [chunk if chunk.type in (kind, pa.null()) else _as_texts(chunk.to_pylist()) for chunk in chunks]
    return pa.chunked_array([chunk.cast(kind) for chunk in chunks], kind)


def _as_texts(values: Iterable[Any]) -> pa.StringArray:
    return pa.array([None if value is None else as_text(value) for value in values], pa.string())
