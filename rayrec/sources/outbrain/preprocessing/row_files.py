"""Rows in scratch files, as the stages hand them to each other."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from rayrec.config import Config
from rayrec.preprocessing.engines.engine import Consume, Partition, Source
from rayrec.preprocessing.segments import Piece, Segment, count_rows, make_segments, new_rows
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable

ResultT = TypeVar("ResultT")
Partitioned = Iterator[tuple[Partition, pa.RecordBatch]]
"""Batches of rows, with their partitions."""


class RowFiles(Config):
    """Whole files in the order of their rows; empty files are left out."""

    pieces: tuple[Piece, ...] = ()

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    def segments(self) -> list[Segment]:
        """Return the rows in pieces for tasks."""
        return make_segments(self.pieces)


class ParsedTables(Config):
    """The rows by table, and how many lines were bad."""

    tables: dict[str, RowFiles]
    rejected: dict[str, int]
    """Number of bad lines by reason."""

    def of(self, table: OutbrainTable) -> RowFiles:
        """Return the rows of a table; no files if the table is absent."""
        return self.tables.get(table.value, RowFiles())


class SplitRows(Config):
    """Rows by split."""

    splits: dict[str, RowFiles]

    @property
    def rows(self) -> int:
        return sum(files.rows for files in self.splits.values())


def files_of(written: Sequence[Mapping[str, Piece]], names: Iterable[str]) -> dict[str, RowFiles]:
    """Return the files of each name, from those of each partition in order."""
    return {name: RowFiles(pieces=tuple(of[name] for of in written if name in of)) for name in names}


def write_files(
    folder: Path, partition: int, schemas: Mapping[str, pa.Schema], rows: Iterable[tuple[str, pa.RecordBatch]]
) -> dict[str, Piece]:
    """Write the rows of a partition to a file of the name that each batch comes with; return the files by name.

    `schemas`: those of the rows of each name. Empty files are left out.
    """
    count = Counter[str]()
    with ExitStack() as stack:
        paths = {name: folder / f"{name}-{partition:06d}.parquet" for name in schemas}
        writers = {
            # Values of all but floats repeat.
            name: stack.enter_context(
                new_rows(paths[name], schema, [f.name for f in schema if not pa.types.is_floating(f.type)])
            )
            for name, schema in schemas.items()
        }
        for name, batch in rows:
            if batch.num_rows:
                writers[name].write_batch(batch)
                count[name] += batch.num_rows
    return {name: Piece(path, 0, count[name]) for name, path in paths.items() if count[name]}


def shuffle_rows(
    workspace: Workspace,
    stage: str,
    sources: Mapping[str, Source[Segment]],
    partitions: int,
    consume: Consume[ResultT],
) -> list[ResultT]:
    """Shuffle rows that are made of segments; progress counts the segments' rows."""
    total = sum(count_rows(source.items) for source in sources.values())
    with counted_rows(workspace.engine, workspace.progress, stage, total) as counter:

        def counted(source: Source[Segment]) -> Source[Segment]:
            def produce(segment: Segment) -> Partitioned:
                yield from source.produce(segment)
                counter.add(segment.piece.rows)

            return replace(source, produce=produce)

        return workspace.engine.shuffle({name: counted(of) for name, of in sources.items()}, partitions, consume)
