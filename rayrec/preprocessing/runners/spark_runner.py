"""Runs tasks in the executors of a Spark session, and shuffles rows as data frames."""

import gc
import pickle
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.table_parts import HASH
from rayrec.internals.spark import frame_of_batches, has_running_tasks, java
from rayrec.preprocessing.runners.task_runner import Counter, Item, Result, Work

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_CANCEL_SECONDS = 20.0


@dataclass(frozen=True)
class SparkRows:
    """The rows of a data frame."""

    frame: "DataFrame"

    def sum_by_fold(self, keys: Sequence[str], names: Sequence[str], fold: str, folds: int) -> "SparkRows":
        from pyspark.sql import functions as f

        of_folds = [
            f.sum(f.when(f.col(fold) == number, f.col(name)).otherwise(0)).alias(f"{name}_{number}")
            for name in names
            for number in range(folds)
        ]
        return SparkRows(self.frame.groupBy(*keys).agg(*(f.sum(name).alias(name) for name in names), *of_folds))

    def sort(self, *columns: str, descending: Collection[str] = ()) -> "SparkRows":
        from pyspark.sql import functions as f

        return SparkRows(self.frame.orderBy(*(f.desc(name) if name in descending else name for name in columns)))

    def partition_by(self, column: str) -> "SparkRows":
        return SparkRows(self.frame.repartition(column))

    def partition_by_range(self, column: str, partitions: int) -> "SparkRows":
        return SparkRows(self.frame.repartitionByRange(partitions, column))

    def partition_by_hash(self, partitions: int) -> "SparkRows":
        return SparkRows(in_hash_ranges(self.frame, partitions))

    def partition_by_key(self, column: str, partitions: int) -> "SparkRows":
        return SparkRows(self.frame.repartition(partitions, column))

    def sort_within(self, *columns: str) -> "SparkRows":
        return SparkRows(self.frame.sortWithinPartitions(*columns))

    def results(self, work: Work, columns: str, batch_rows: int | None = None) -> list[tuple[Any, ...]]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            yield from work(context.partitionId(), batches)

        settings, usual = self.frame.sparkSession.conf, self.frame.sparkSession.conf.get(_BATCH_ROWS)
        assert usual is not None
        settings.set(_BATCH_ROWS, batch_rows or usual)
        try:
            return collect_rows(self.frame.mapInArrow(run, columns))
        finally:
            settings.set(_BATCH_ROWS, usual)


@dataclass(frozen=True)
class SparkRunner:
    """The executors of a Spark session."""

    session: "SparkSession"

    @property
    def parallelism(self) -> int:
        return self.session.sparkContext.defaultParallelism

    @property
    def partitions(self) -> int:
        return int(self.session.conf.get("spark.sql.shuffle.partitions") or 1)

    def run(self, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
        if not items:
            return []

        def run(item: Item) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(function(item))])], names=["result"])

        # Through a data frame, as all other tasks: Spark keeps Python workers for data frames and for RDDs apart.
        found = frame_of_tasks(self.session, items, run, pa.schema([("result", pa.binary())])).collect()
        return [pickle.loads(result) for (result,) in found]

    def rows(
        self, items: Sequence[Item], function: Callable[[Item], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> SparkRows:
        return SparkRows(frame_of_tasks(self.session, items, function, schema))

    def counter(self) -> Counter:
        """Spark delivers what a task has added when the task ends."""
        return self.session.sparkContext.accumulator(0)

    def partition_keys(self, partitions: int) -> NDArray[np.int32]:
        """Return, for each partition, an integer that Spark's hash partitioning sends to it."""
        return partition_keys(self.session, partitions)

    def cancel(self) -> None:
        # A thread of its own has its own connection to Spark; that of an interrupted call still waits for an answer.
        canceller = threading.Thread(target=self._cancel, name="cancel-tasks")
        canceller.start()
        canceller.join()

    def _cancel(self) -> None:
        with suppress(Exception):  # Spark itself may be what failed
            self.session.sparkContext.cancelAllJobs()
            deadline = time.monotonic() + _CANCEL_SECONDS
            while time.monotonic() < deadline and has_running_tasks(self.session):
                time.sleep(0.1)


def frame_of_tasks(
    spark: "SparkSession",
    items: Sequence[Item],
    function: Callable[[Item], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> "DataFrame":
    """Return a data frame of the batches that `function` yields, with a partition for each item.

    A task is sent its own item and the function, so what `function` refers to must not grow with the items.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item in batch.column(0).to_pylist():
                yield from function(pickle.loads(item))

    return frame_of_batches(spark, packed_items(items)).mapInArrow(run, spark_schema(schema))


def packed_items(items: Sequence[Any]) -> list[pa.RecordBatch]:
    """Return what the tasks of `items` are sent: a batch for each; one without rows if there are no items."""
    schema = pa.schema([("item", pa.binary())])
    batches = [pa.RecordBatch.from_arrays([pa.array([pickle.dumps(item)])], schema=schema) for item in items]
    return batches or [pa.RecordBatch.from_arrays([pa.array([], pa.binary())], schema=schema)]


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns of a schema as Spark's DDL."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).simpleString()


def collect_rows(frame: "DataFrame") -> list[tuple[Any, ...]]:
    """Return the rows of a small data frame."""
    return [tuple(row) for row in frame.collect()]


def reclaim_shuffles(spark: "SparkSession") -> None:
    """Let Spark remove the shuffle files of data frames that are gone; by itself it does so twice an hour."""
    gc.collect()
    java(spark).java.lang.System.gc()


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


def partition_keys(spark: "SparkSession", partitions: int) -> NDArray[np.int32]:
    """Return, for each partition, an integer that Spark's hash partitioning sends to it, so that rows can be sent by
    number.
    """
    from pyspark.sql import functions as f

    keys = np.full(partitions, -1, np.int32)
    if partitions == 1:
        return np.zeros(1, np.int32)
    tried = 0
    while (keys < 0).any():
        candidates = spark.range(tried, tried + 8 * partitions + 64).select(f.col("id").cast("int").alias("key"))
        hashed = candidates.select("key", f.expr(f"pmod(hash(key), {partitions})").alias("partition")).collect()
        for key, partition in hashed:
            keys[partition] = key
        tried += 8 * partitions + 64
    return keys
