"""Writes tables that are looked up by a hash, from rows in ranges of it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from rayrec.features.table_parts import HASH, write_file
from rayrec.preprocessing.runners.task_runner import PartitionedRows, TaskRunner
from rayrec.preprocessing.sorted_rows import cut_row_groups

Finish = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Checks sorted rows, or computes further columns of them."""
ROWS_PER_RANGE = 262_144
_ROWS_PER_BATCH = 131_072


def range_count(runner: TaskRunner, rows: int) -> int:
    """Return the number of partitions for `rows` rows, at most those of a shuffle."""
    return max(1, min(runner.partitions, -(-rows // ROWS_PER_RANGE)))


def write_table(
    runner: TaskRunner,
    gathered: PartitionedRows,
    rows: int,
    keys: Sequence[str],
    folder: Path,
    schema: pa.Schema,
    finish: Finish | None = None,
) -> None:
    """Write gathered rows as the table of `schema` in `folder`, which is looked up by the columns `keys`.

    `rows`: about how many there are; `finish`: see `write_sorted`. See `rayrec.features.lookup_table`.
    """

    def write(_: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield row_count(write_sorted(batches, folder, schema, finish))

    gathered.partition_by_hash(range_count(runner, rows)).sort_within(HASH, *keys).results(write, ROW_COUNT)


def write_sorted(
    batches: Iterator[pa.RecordBatch], folder: Path, schema: pa.Schema, finish: Finish | None = None
) -> int:
    """Write rows sorted by hash, which have the columns of `schema` among others, as a file of the table in `folder`.

    `finish` is given all rows of a hash at once, among others, before they are written. Return the rows.
    """
    # Cut by the rows alone: an engine may hand them over in any batches.
    whole = (table.combine_chunks().to_batches()[0] for table in cut_row_groups(batches, _ROWS_PER_BATCH, HASH))
    finished = map(finish, whole) if finish else whole
    return write_file(folder, schema, (batch.select(schema.names).cast(schema) for batch in finished))


ROW_COUNT = "rows long"
"""The columns of `row_count`, as Spark's DDL."""


def row_count(rows: int) -> pa.RecordBatch:
    """Return the result of a task that writes files: one row with the number of rows written."""
    return pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], names=["rows"])
