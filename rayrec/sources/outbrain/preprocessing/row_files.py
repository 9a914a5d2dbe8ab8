"""Rows in scratch files, as the stages hand them to each other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.preprocessing.segments import Piece, Segment, make_segments, new_parquet
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OPTIONS: dict[str, Any] = {"compression": "lz4", "write_statistics": False}

Read = Callable[[Segment], Iterator[pa.RecordBatch]]


class RowFiles(Config):
    """Whole files in the order of their rows; empty files are left out."""

    pieces: tuple[Piece, ...] = ()

    @classmethod
    def of(cls, files: Iterable[tuple[str | Path, int]]) -> "RowFiles":
        return cls(pieces=tuple(Piece(Path(path), 0, rows) for path, rows in files if rows))

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)

    def segments(self) -> list[Segment]:
        """The rows in pieces for tasks."""
        return make_segments(self.pieces)


class SplitRows(Config):
    """Rows by split."""

    splits: dict[str, RowFiles]
    clicked: dict[str, int]
    """Number of clicked rows by split; empty if not counted."""

    @property
    def rows(self) -> int:
        return sum(files.rows for files in self.splits.values())


@contextmanager
def new_rows(path: Path, schema: pa.Schema, dictionaries: Sequence[str] = ()) -> Iterator[pq.ParquetWriter]:
    """Open a writer of a scratch file; `dictionaries`: columns whose values repeat."""
    with new_parquet(path, schema, use_dictionary=list(dictionaries), **_OPTIONS) as writer:
        yield writer


def spark_schema(schema: pa.Schema) -> str:
    """The columns of a schema as Spark's DDL."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).simpleString()


@contextmanager
def frame_of_rows(
    workspace: Workspace, stage: str, sources: Sequence[tuple[RowFiles, Read]], schema: pa.Schema
) -> Iterator["DataFrame"]:
    """A stage of the work that begins with the rows of files: a data frame of what each source's function yields.

    Progress counts the rows that are read. Errors of tasks leave the block as those of `counted_rows`.
    """
    items = [(number, segment) for number, (files, _) in enumerate(sources) for segment in files.segments()]
    total = sum(files.rows for files, _ in sources)
    with counted_rows(workspace.spark, workspace.progress, stage, total) as counter:

        def read(item: tuple[int, Segment]) -> Iterator[pa.RecordBatch]:
            number, segment = item
            yield from sources[number][1](segment)
            counter.add(segment.piece.rows)

        yield frame_of_tasks(workspace.spark, items, read, spark_schema(schema))


def write_by_split(
    ordered: "DataFrame",
    folder: Path,
    names: Sequence[str],
    schema: pa.Schema,
    dictionaries: Sequence[str],
    label: str,
    compute: Callable[[pa.RecordBatch], tuple[NDArray[np.integer], pa.RecordBatch]],
) -> SplitRows:
    """Write a file for each split and partition of a sorted data frame.

    `compute`: gives the split (its position in `names`) of each row of a batch, and the rows as they are written.
    `label`: the column of 0 and 1 that is counted.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        partition = partition_number()
        paths = [folder / f"{name}-{partition:06d}.parquet" for name in names]
        rows, clicked = [0] * len(names), [0] * len(names)
        with ExitStack() as stack:
            writers = [stack.enter_context(new_rows(path, schema, dictionaries)) for path in paths]
            for batch in batches:
                split, computed = compute(batch)
                for number, writer in enumerate(writers):
                    part = computed.filter(pa.array(split == number))
                    if part.num_rows:
                        writer.write_batch(part)
                        rows[number] += part.num_rows
                        clicked[number] += int(pc.sum(part[label]).as_py())
        found = {"split": names, "path": map(str, paths), "rows": rows, "clicked": clicked}
        yield pa.RecordBatch.from_pydict({name: list(values) for name, values in found.items()})

    found = sorted(collect_rows(ordered.mapInArrow(write, "split string, path string, rows long, clicked long")))
    return SplitRows(
        splits={name: RowFiles.of((path, rows) for split, path, rows, _ in found if split == name) for name in names},
        clicked={name: sum(clicked for split, *_, clicked in found if split == name) for name in names},
    )


def list_column(owner: NDArray[np.int64], elements: pa.Array, count: int) -> pa.Array:
    """`count` lists; `owner`: for each element, ascending, the list that it belongs to."""
    offsets = np.searchsorted(owner, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements)


def batch_of(schema: pa.Schema, columns: Mapping[str, Any], batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """(n,) arrays by name as a batch; columns of `schema` that are not given come from `batch`, or are null."""
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True)) if batch is not None else {}
    arrays |= {name: pa.array(values) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    return pa.RecordBatch.from_arrays(
        [arrays[f.name].cast(f.type) if f.name in arrays else pa.nulls(rows, f.type) for f in schema], schema=schema
    )
