"""Brings the rows of each key together by its hash, and writes tables that are looked up by it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa

from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.table_parts import HASH, write_file
from rayrec.preprocessing.engines.engine import Consume, Partition, Result, ShuffleInput, partition_by_hash
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    batch_of,
    count_rows,
    cut_row_groups,
    make_segments,
    read_piece,
)
from rayrec.preprocessing.workspace import Workspace, counted_rows

ROWS_PER_RANGE = 262_144
"""Rows of a look-up table that a task writes, to a file; the same on every cluster, so that the files are."""
_MOST_RANGES = 4_096
_ROWS_PER_BATCH = 131_072


@dataclass(frozen=True)
class KeyedRows:
    """Rows that are made of segments, with the hash of a key in the column `hash`."""

    segments: Sequence[Segment]
    schema: pa.Schema
    read: Callable[[Segment], Iterable[pa.RecordBatch]]

    @classmethod
    def of_files(cls, pieces: Iterable[Piece], schema: pa.Schema, key: str) -> Self:
        """Return the rows of files that have a key (a text or an integer); `schema`: `hash`, then columns of the
        files.
        """

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, schema.names[1:]):
                rows = batch.filter(batch[key].is_valid()) if batch[key].null_count else batch
                keys = rows[key]
                hashes = hash_texts(keys) if pa.types.is_string(keys.type) else hash_key(keys.to_numpy())
                yield batch_of(schema, {HASH: hashes}, rows)

        return cls(make_segments(pieces), schema, read)


def range_count(rows: int) -> int:
    """Return the number of ranges of hashes in which about so many rows of a look-up table are written."""
    return max(1, min(_MOST_RANGES, -(-rows // ROWS_PER_RANGE)))


def write_sorted(rows: Iterable[pa.RecordBatch], folder: Path, schema: pa.Schema) -> int:
    """Write rows sorted by hash, which have the columns of `schema` among others, as a file of a look-up table
    (`rayrec.features.lookup_table`); return their number.
    """
    # Cut by the rows alone: they may come in any batches.
    whole = (table.select(schema.names).cast(schema) for table in cut_row_groups(rows, _ROWS_PER_BATCH, HASH))
    return write_file(folder, schema, (table.combine_chunks().to_batches()[0] for table in whole))


def shuffle_rows(
    workspace: Workspace,
    stage: str,
    sources: Mapping[str, KeyedRows],
    consume: Consume[Result],
    ranges: int | None = None,
    range_of: Callable[[pa.RecordBatch], Partition] | None = None,
) -> list[Result]:
    """Bring rows together by ranges of their hashes, or by `range_of`; return what `consume` makes of each range.

    `ranges`: their number, by default one that suits the rows of the segments, which progress counts too.
    """
    total = sum(count_rows(rows.segments) for rows in sources.values())
    number = range_count(total) if ranges is None else ranges
    partition = range_of or (lambda rows: partition_by_hash(rows[HASH].to_numpy(), number))
    with counted_rows(workspace.engine, workspace.progress, stage, total) as counter:

        def source(rows: KeyedRows) -> ShuffleInput[Segment]:
            def produce(segment: Segment) -> Iterator[tuple[Partition, pa.RecordBatch]]:
                for batch in rows.read(segment):
                    yield partition(batch), batch
                counter.add(segment.piece.rows)

            return ShuffleInput(rows.segments, rows.schema, produce)

        return workspace.engine.shuffle({name: source(rows) for name, rows in sources.items()}, number, consume)


def write_table(
    workspace: Workspace,
    stage: str,
    sources: Mapping[str, KeyedRows],
    folder: Path,
    schema: pa.Schema,
    rows_of: Callable[[Mapping[str, pa.Table]], Iterable[pa.RecordBatch]],
) -> None:
    """Write a look-up table: `rows_of` makes its rows, by ascending hash, of the rows in a range of hashes."""
    shuffle_rows(workspace, stage, sources, lambda _, rows: write_sorted(rows_of(rows), folder, schema))
