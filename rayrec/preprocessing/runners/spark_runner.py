"""Runs tasks in the executors of a Spark session, and shuffles rows as data frames."""

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.table_parts import HASH
from rayrec.internals.spark import java
from rayrec.preprocessing.engines.engine import Item
from rayrec.preprocessing.engines.spark import SparkEngine, frame_of_tasks, keys_of_partitions
from rayrec.preprocessing.runners.task_runner import Work

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


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
class SparkRunner(SparkEngine):
    """The executors of a Spark session."""

    @property
    def partitions(self) -> int:
        return int(self.session.conf.get("spark.sql.shuffle.partitions") or 1)

    def rows(
        self, items: Sequence[Item], function: Callable[[Item], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> SparkRows:
        return SparkRows(frame_of_tasks(self.session, items, function, schema))

    def partition_keys(self, partitions: int) -> NDArray[np.int32]:
        """Return, for each partition, an integer that Spark's hash partitioning sends to it."""
        return keys_of_partitions(partitions)


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

    keys = f.array(*[f.lit(int(key)) for key in keys_of_partitions(ranges)])
    inside = f.greatest(f.lit(0), f.least(f.floor(share * ranges).cast("int"), f.lit(ranges - 1)))
    return frame.repartition(ranges, f.element_at(keys, inside + 1))
