"""Rows in scratch files: read to be shuffled, and written a file for each partition."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.preprocessing.runners.spark_runner import SparkRows
from rayrec.preprocessing.runners.task_runner import PartitionedRows
from rayrec.preprocessing.segments import Piece, Segment, count_rows
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.parquet import new_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FactT = TypeVar("FactT")
Read = Callable[[Segment], Iterator[pa.RecordBatch]]
Write = Callable[[str, pa.RecordBatch], None]


def new_rows(
    path: Path, schema: pa.Schema, dictionaries: Sequence[str] = ()
) -> AbstractContextManager[pq.ParquetWriter]:
    """Return a writer of a scratch file; `dictionaries`: columns whose values repeat."""
    return new_parquet(path, schema, use_dictionary=list(dictionaries), compression="lz4", write_statistics=False)


@contextmanager
def frame_of_rows(
    workspace: Workspace, stage: str, sources: Sequence[tuple[Sequence[Segment], Read]], schema: pa.Schema
) -> Iterator["DataFrame"]:
    """Yield the rows of `gathered_rows` as a data frame, in a job that needs Spark."""
    with gathered_rows(workspace, stage, sources, schema) as rows:
        assert isinstance(rows, SparkRows), "the job says that it needs Spark"
        yield rows.frame


@contextmanager
def gathered_rows(
    workspace: Workspace, stage: str, sources: Sequence[tuple[Sequence[Segment], Read]], schema: pa.Schema
) -> Iterator[PartitionedRows]:
    """Yield a stage of the work that begins with segments of rows: what each source's function yields.

    Progress counts the rows that are read. Errors of tasks leave the block as those of `counted_rows`.
    """
    items = [(number, segment) for number, (segments, _) in enumerate(sources) for segment in segments]
    total = count_rows(segment for _, segment in items)
    functions = [function for _, function in sources]
    with counted_rows(workspace.runner, workspace.progress, stage, total) as counter:

        def read(item: tuple[int, Segment]) -> Iterator[pa.RecordBatch]:
            number, segment = item
            yield from functions[number](segment)
            counter.add(segment.piece.rows)

        yield workspace.runner.rows(items, read, schema)


def write_partitions(
    gathered: PartitionedRows,
    folder: Path,
    names: Sequence[str],
    schema: pa.Schema,
    dictionaries: Sequence[str],
    work: Callable[[Iterator[pa.RecordBatch], Write], FactT],
) -> tuple[dict[str, list[Piece]], list[FactT]]:
    """Write a file of each name for every partition of rows.

    `work(batches, write)` takes the batches of a partition, calls `write(name, rows)` and returns a small fact. Returns
    the files by name, without empty ones, and the facts, both in the order of partitions.
    """

    def path_of(name: str, partition: int) -> Path:
        return folder / f"{name}-{partition:06d}.parquet"

    def run(partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = Counter[str]()
        with ExitStack() as stack:
            files = {name: new_rows(path_of(name, partition), schema, dictionaries) for name in names}
            writers = {name: stack.enter_context(file) for name, file in files.items()}

            def write(name: str, batch: pa.RecordBatch) -> None:
                if batch.num_rows:
                    writers[name].write_batch(batch)
                    rows[name] += batch.num_rows

            fact = work(batches, write)
        yield pa.RecordBatch.from_pydict({"partition": [partition], "written": [pickle.dumps((rows, fact))]})

    found = sorted(gathered.results(run, "partition long, written binary"))
    written = [(partition, *pickle.loads(of_partition)) for partition, of_partition in found]
    pieces = {name: [Piece(path_of(name, p), 0, rows[name]) for p, rows, _ in written if rows[name]] for name in names}
    return pieces, [fact for *_, fact in written]


def batch_of(schema: pa.Schema, columns: Mapping[str, Any], batch: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """(n,) arrays by name as a batch; columns of `schema` that are not given come from `batch`, or are null."""
    arrays = dict(zip(batch.schema.names, batch.columns, strict=True)) if batch is not None else {}
    arrays |= {name: pa.array(values) for name, values in columns.items()}
    rows = len(next(iter(arrays.values())))
    return pa.RecordBatch.from_arrays(
        [arrays[f.name].cast(f.type) if f.name in arrays else pa.nulls(rows, f.type) for f in schema], schema=schema
    )
