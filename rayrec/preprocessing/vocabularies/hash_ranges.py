"""Sends rows to partitions by their hash or number, without a first pass over the rows to find the ranges."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.keyed_table import HASH, write_file
from rayrec.preprocessing.sorted_rows import whole_groups
from rayrec.preprocessing.tasks import Rows, Workers, results_of, shuffle_partitions, sorted_rows
from rayrec.preprocessing.threads import HeldRows, Threads

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Finish = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Checks sorted rows, or computes further columns of them."""
ROWS_PER_RANGE = 262_144
_ROWS_PER_BATCH = 131_072


def range_count(workers: Workers, rows: int) -> int:
    """Partitions that `rows` rows are worth, at most those of a shuffle."""
    return max(1, min(shuffle_partitions(workers), -(-rows // ROWS_PER_RANGE)))


def sorted_hash_ranges(rows: Rows, ranges: int, columns: Sequence[str]) -> Rows:
    """Rows in `ranges` partitions by ascending ranges of the column `hash` (long, uniform), each sorted by columns."""
    if isinstance(rows, HeldRows):

        def range_of(batch: pa.RecordBatch) -> NDArray[np.integer]:
            share = batch[HASH].to_numpy().astype(np.float64) / 2.0**64 + 0.5
            return np.clip(np.floor(share * ranges).astype(np.int32), 0, ranges - 1)

        rows = rows.dealt(range_of, ranges)
    return sorted_rows(rows, lambda frame: in_hash_ranges(frame, ranges), columns)


def in_hash_ranges(frame: "DataFrame", ranges: int) -> "DataFrame":
    """`frame` in `ranges` partitions by ascending ranges of the column `hash` (long, uniform)."""
    from pyspark.sql import functions as f

    share = f.col(HASH).cast("double") / f.lit(2.0**64) + f.lit(0.5)
    return _in_ranges(frame, ranges, share)


def in_number_ranges(frame: "DataFrame", ranges: int, column: str, count: int) -> "DataFrame":
    """`frame` in `ranges` partitions by ascending ranges of a column of numbers 0 ... count - 1."""
    from pyspark.sql import functions as f

    share = f.col(column).cast("double") / f.lit(float(max(count, 1)))
    return _in_ranges(frame, ranges, share)


def _in_ranges(frame: "DataFrame", ranges: int, share: "Column") -> "DataFrame":
    """`frame` in `ranges` partitions, of which the one at `share`, from 0 to 1, gets a row."""
    from pyspark.sql import functions as f

    keys = f.array(*[f.lit(int(key)) for key in partition_keys(frame.sparkSession, ranges)])
    inside = f.greatest(f.lit(0), f.least(f.floor(share * ranges).cast("int"), f.lit(ranges - 1)))
    return frame.repartition(ranges, f.element_at(keys, inside + 1))


def partition_keys(workers: Workers, partitions: int) -> NDArray[np.int32]:
    """For each partition an integer that Spark's hash partitioning sends to it, so that rows can be sent by number.

    Held rows are dealt by the number of the partition itself.
    """
    if isinstance(workers, Threads):
        return np.arange(partitions, dtype=np.int32)
    from pyspark.sql import functions as f

    keys = np.full(partitions, -1, np.int32)
    if partitions == 1:
        return np.zeros(1, np.int32)
    tried = 0
    while (keys < 0).any():
        candidates = workers.range(tried, tried + 8 * partitions + 64).select(f.col("id").cast("int").alias("key"))
        hashed = candidates.select("key", f.expr(f"pmod(hash(key), {partitions})").alias("partition")).collect()
        for key, partition in hashed:
            keys[partition] = key
        tried += 8 * partitions + 64
    return keys


def write_table(
    workers: Workers,
    gathered: Rows,
    rows: int,
    keys: Sequence[str],
    folder: Path,
    schema: pa.Schema,
    finish: Finish | None = None,
) -> None:
    """Write gathered rows as the table of `schema` in `folder`, which is looked up by the columns `keys`.

    `rows`: about how many there are; `finish`: see `write_sorted`. See `rayrec.features.keyed_table`.
    """

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield row_count(write_sorted(batches, folder, schema, finish))

    results_of(sorted_hash_ranges(gathered, range_count(workers, rows), (HASH, *keys)), write, ROW_COUNT)


def write_sorted(
    batches: Iterator[pa.RecordBatch], folder: Path, schema: pa.Schema, finish: Finish | None = None
) -> int:
    """Write rows sorted by hash, which have the columns of `schema` among others, as a file of the table in `folder`.

    `finish` is given all rows of a hash at once, among others, before they are written. Returns the rows.
    """
    whole = whole_groups(batches, HASH, _ROWS_PER_BATCH)
    finished = map(finish, whole) if finish else whole
    return write_file(folder, schema, (batch.select(schema.names).cast(schema) for batch in finished))


ROW_COUNT = "rows long"
"""The columns of `row_count`, as Spark's DDL."""


def row_count(rows: int) -> pa.RecordBatch:
    """The result of a task that writes files: one row with the number of rows written."""
    return pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], names=["rows"])
