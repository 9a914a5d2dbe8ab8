"""The Parquet files of rows that stages pass on to each other, and the ranges of rows that tasks work on."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from rayrec.storage.files import open_parquet

SEGMENT_ROWS = 262_144
"""Most rows of a segment: limits what a task holds in memory."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one Parquet file of parsed rows."""

    path: Path
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
    """The rows `start` ... `stop` - 1 of the concatenated pieces."""
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
            part = Piece(piece.path, piece.start + start, rows)
            segments.append(Segment(first_index + len(segments), part, position))
            position += rows
    return segments


def segments_by_split(pieces: Mapping[str, Iterable[Piece]]) -> dict[str, list[Segment]]:
    """The segments of every split, numbered through."""
    segments: dict[str, list[Segment]] = {}
    for split, of_split in pieces.items():
        segments[split] = make_segments(of_split, sum(len(s) for s in segments.values()))
    return segments


def count_rows(segments: Iterable[Segment]) -> int:
    """The number of rows of all segments."""
    return sum(segment.piece.rows for segment in segments)


def segments_by_part(segments: Iterable[Segment], size: int) -> list[list[Segment]]:
    """The rows of a split in parts of `size` rows, as segments that keep the index of the one they are cut from."""
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


def read_piece(piece: Piece, columns: Sequence[str], dictionaries: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, a row group at a time; columns of text named in `dictionaries` come dictionary encoded."""
    with open_parquet(piece.path, dictionaries) as file:
        offset = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            low, high = max(piece.start, offset), min(piece.start + piece.rows, offset + rows)
            if low < high:
                table = file.read_row_group(group, columns=list(columns), use_threads=False)
                (batch,) = table.combine_chunks().to_batches()
                yield batch.slice(low - offset, high - low)
            offset += rows


class ReadRows(Protocol):
    """Reads columns of the rows of a segment, in order; those in `dictionaries` come dictionary encoded."""

    def __call__(
        self, segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = (), /
    ) -> Iterator[pa.RecordBatch]: ...


def read_segment(
    segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows of a segment as its file holds them, a row group at a time."""
    return read_piece(segment.piece, columns, dictionaries)
