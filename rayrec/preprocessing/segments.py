"""The Parquet files of rows that stages pass on to each other, and the ranges of rows that tasks work on.

A *piece* is a range of rows of one file, a *segment* a piece that is small enough for one task and knows its position
in the split. A *part* is something else: a Parquet file of the finished dataset.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.ingest import order
from rayrec.store.parquet import new_parquet, open_parquet
from rayrec.store.paths import KeptPath

SEGMENT_ROWS = 524_288
"""Most rows of a segment: limits what a task holds in memory."""
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 65_536, 2**23
"""Most rows of small row groups that are read together, and most bytes of their columns, encoded as they are."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one Parquet file of parsed rows."""

    path: KeptPath
    start: int
    rows: int


@dataclass(frozen=True)
class Segment:
    """A piece small enough for one task, and its position in the split."""

    index: int
    """Number of the segment in the job."""
    piece: Piece
    first: int
    """Position of the first row in the split."""


def cut_pieces(pieces: Iterable[Piece], start: int, stop: int) -> list[Piece]:
    """Return the rows `start` ... `stop` - 1 of the concatenated pieces."""
    result = []
    offset = 0
    for piece in pieces:
        low, high = max(start, offset), min(stop, offset + piece.rows)
        if low < high:
            result.append(Piece(piece.path, piece.start + low - offset, high - low))
        offset += piece.rows
    return result


def make_segments(pieces: Iterable[Piece], first_index: int = 0) -> list[Segment]:
    """Cut the pieces of a split, in order, into segments numbered from `first_index`."""
    segments: list[Segment] = []
    position = 0
    for piece in pieces:
        for start in range(0, piece.rows, SEGMENT_ROWS):
            rows = min(SEGMENT_ROWS, piece.rows - start)
            cut = Piece(piece.path, piece.start + start, rows)
            segments.append(Segment(first_index + len(segments), cut, position))
            position += rows
    return segments


def segments_by_split(pieces: Mapping[str, Iterable[Piece]]) -> dict[str, list[Segment]]:
    """Return the segments of every split, numbered through."""
    segments: dict[str, list[Segment]] = {}
    for split, of_split in pieces.items():
        segments[split] = make_segments(of_split, sum(len(s) for s in segments.values()))
    return segments


def count_rows(segments: Iterable[Segment]) -> int:
    """Return the number of rows of all segments."""
    return sum(segment.piece.rows for segment in segments)


def segments_by_part(segments: Iterable[Segment], size: int) -> list[list[Segment]]:
    """Return the rows of a split in parts of `size` rows, as segments that keep the index of the one they are
    cut from.
    """
    parts: list[list[Segment]] = []
    for segment in segments:
        low, end = segment.first, segment.first + segment.piece.rows
        while low < end:
            high = min(end, (low // size + 1) * size)
            piece = Piece(segment.piece.path, segment.piece.start + low - segment.first, high - low)
            if low % size == 0:
                parts.append([])
            parts[-1].append(Segment(segment.index, piece, low))
            low = high
    return parts


def read_piece(piece: Piece, columns: Sequence[str], dictionaries: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece, a few batches; columns of text named in `dictionaries` come dictionary encoded."""
    with open_parquet(piece.path, dictionaries) as file:
        offset = 0
        for groups, rows in _read_together(file.metadata):
            low, high = max(piece.start, offset), min(piece.start + piece.rows, offset + rows)
            if low < high:
                table = file.read_row_groups(groups, columns=list(columns), use_threads=False)
                (batch,) = table.combine_chunks().to_batches()
                yield batch.slice(low - offset, high - low)
            offset += rows


def numbered(segment: Segment, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
    """Yield the rows of a segment, as read or encoded, each batch with the positions (n,) of its rows in the split."""
    first = segment.first
    for batch in batches:
        yield np.arange(first, first + batch.num_rows), batch
        first += batch.num_rows


def _read_together(metadata: pq.FileMetaData) -> Iterator[tuple[list[int], int]]:
    """Yield the row groups that are read at once, and their rows: a large one alone, small ones together.

    A block of text leaves a row group to each split, of few rows to a small one; to encode few rows takes much longer
    than their share of many.
    """
    groups: list[int] = []
    rows = size = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        if groups and (rows + group.num_rows > _ROWS_AT_ONCE or size + group.total_byte_size > _BYTES_AT_ONCE):
            yield groups, rows
            groups, rows, size = [], 0, 0
        groups.append(index)
        rows += group.num_rows
        size += group.total_byte_size
    if groups:
        yield groups, rows


def write_pieces(
    files: Mapping[str, tuple[KeptPath, pa.Schema]], batches: Iterable[tuple[str, pa.RecordBatch]]
) -> dict[str, list[Piece]]:
    """Write rows to the file of the name that each batch comes with, cast to its schema.

    Return the piece by name, or none where there are no rows.
    """
    rows = dict.fromkeys(files, 0)
    writers: dict[str, pq.ParquetWriter] = {}
    with ExitStack() as stack:
        for name, batch in batches:
            if not batch.num_rows:
                continue
            path, schema = files[name]
            if name not in writers:
                # Values of all but floats repeat.
                repeated = [field.name for field in schema if not pa.types.is_floating(field.type)]
                writers[name] = stack.enter_context(new_rows(path, schema, repeated))
            writers[name].write_batch(batch.cast(schema))
            rows[name] += batch.num_rows
    return {name: [Piece(path, 0, rows[name])] if rows[name] else [] for name, (path, _) in files.items()}


def write_piece(path: KeptPath, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> list[Piece]:
    """Write rows, cast to a schema, to a file; return its piece, or none where there are no rows."""
    return write_pieces({"": (path, schema)}, (("", batch) for batch in batches))[""]


def joined(written: Sequence[Mapping[str, Sequence[Piece]]]) -> dict[str, list[Piece]]:
    """Return the pieces of each name, from those of each partition in order."""
    return {name: [piece for pieces in written for piece in pieces[name]] for name in written[0]}


def pieces_of_files(paths: Iterable[Path]) -> list[Piece]:
    """Return all rows of files."""
    pieces = []
    for path in paths:
        with open_parquet(path) as file:
            pieces.append(Piece(path, 0, file.metadata.num_rows))
    return pieces


def rows_of(pieces: Iterable[Piece], schema: pa.Schema) -> pa.RecordBatchReader:
    """Return the rows of pieces, with the columns of a schema."""
    batches = (batch.cast(schema) for piece in pieces for batch in read_piece(piece, schema.names, ()))
    return pa.RecordBatchReader.from_batches(schema, batches)


def new_rows(
    path: Path, schema: pa.Schema, dictionaries: Sequence[str] = ()
) -> AbstractContextManager[pq.ParquetWriter]:
    """Return a writer of a scratch file; `dictionaries`: columns whose values repeat."""
    return new_parquet(path, schema, use_dictionary=list(dictionaries), compression="lz4", write_statistics=False)


def batch_of(schema: pa.Schema, columns: Mapping[str, Any], batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """Return (n,) arrays by name as a batch; columns of `schema` that are not given come from `batch`, or are null."""
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True)) if batch is not None else {}
    arrays |= {name: pa.array(values) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    return pa.RecordBatch.from_arrays(
        [arrays[f.name].cast(f.type) if f.name in arrays else pa.nulls(rows, f.type) for f in schema], schema=schema
    )


class ReadRows(Protocol):
    """Reads columns of the rows of a segment, in order; those in `dictionaries` come dictionary encoded."""

    def __call__(
        self, segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = (), /
    ) -> Iterator[pa.RecordBatch]: ...


def read_segment(
    segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Return the rows of a segment as its file holds them, as `read_piece` reads them."""
    return read_piece(segment.piece, columns, dictionaries)


def group_starts(column: pa.Array) -> NDArray[np.int64]:
    """Return the positions at which groups of equal integers or strings begin in a column without nulls."""
    numbers = column if pa.types.is_integer(column.type) else column.dictionary_encode().indices
    return order.group_starts(numbers.to_numpy())


def cut_row_groups(batches: Iterable[pa.RecordBatch], size: int, group: str | None = None) -> Iterator[pa.Table]:
    """Yield the rows in tables of `size` rows, or with `group` up to the end of the last row's group; the rest comes
    last.
    """
    buffered: list[pa.RecordBatch] = []
    held, searched = 0, size - 1
    for batch in batches:
        buffered.append(batch)
        held += batch.num_rows
        while held >= size:
            table = pa.Table.from_batches(buffered)
            end = size
            if group is not None:
                # The group of the last row may continue after it, and after what there is so far.
                starts = group_starts(table[group].slice(searched).combine_chunks())
                if len(starts) == 1:
                    searched = held - 1  # so that a long group is not searched again and again
                    break
                end = searched + int(starts[1])
                searched = size - 1
            yield table.slice(0, end)
            buffered = table.slice(end).to_batches()
            held -= end
    if held:
        yield pa.Table.from_batches(buffered)
