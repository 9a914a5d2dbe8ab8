"""What works on small inputs, which is done before Spark would have started: threads, and rows held in memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Item = TypeVar("Item")
Result = TypeVar("Result")
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

ROWS_PER_BATCH = 32_768
"""Rows of the batches that tasks are given of rows that were brought together."""
_partition: ContextVar[int] = ContextVar("partition")


@dataclass(frozen=True)
class Threads:
    """So many threads of this process."""

    count: int

    @classmethod
    def of_this_machine(cls) -> Self:
        """A thread for each CPU."""
        return cls(os.cpu_count() or 1)

    def run(self, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
        """Call a function for each item; returns the results in the order of the items.

        An error of one call leaves out those that have not begun, and is raised when the others have ended.
        """
        with ThreadPoolExecutor(self.count, "rayrec-task") as pool:
            calls = [pool.submit(function, item) for item in items]
            try:
                return [call.result() for call in calls]
            finally:
                pool.shutdown(cancel_futures=True)


class ThreadCounter:
    """Counts rows from within threads."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self, term: int) -> None:
        with self._lock:
            self.value += term


@dataclass(frozen=True)
class HeldRows:
    """Rows in memory, in partitions: what a data frame is with Spark."""

    threads: Threads
    partitions: tuple[pa.Table, ...]
    order: tuple[tuple[str, str], ...] = ()
    """The columns that each partition is sorted by, before work begins on it, each `ascending` or `descending`."""

    @classmethod
    def of_tasks(
        cls,
        threads: Threads,
        items: Sequence[Item],
        function: Callable[[Item], Iterator[pa.RecordBatch]],
        schema: pa.Schema,
    ) -> Self:
        """The batches that a function yields for each item, in the order of the items, as one partition."""
        batches = threads.run(items, lambda item: list(function(item)))
        return cls(threads, (pa.Table.from_batches([batch for of_item in batches for batch in of_item], schema),))

    def whole(self, change: Callable[[pa.Table], pa.Table]) -> Self:
        """What `change` makes of all rows together, as one partition."""
        return replace(self, partitions=(change(pa.concat_tables(self.partitions)),))

    def summed(self, keys: Sequence[str], numbers: Sequence[str]) -> Self:
        """The sums of columns over the rows with equal keys, as one partition."""

        def add_up(table: pa.Table) -> pa.Table:
            sums = table.group_by(list(keys)).aggregate([(name, "sum") for name in numbers])
            return sums.rename_columns({f"{name}_sum": name for name in numbers}).select([*keys, *numbers])

        return self.whole(add_up)

    def dealt(self, partition_of: Callable[[pa.RecordBatch], NDArray[np.integer]], count: int) -> Self:
        """The rows in `count` partitions; `partition_of` gives the partitions (n,) of a batch of n rows, from 0."""

        def deal(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            partition = partition_of(batch)
            order = np.argsort(partition, kind="stable")
            starts = np.searchsorted(partition[order], np.arange(count + 1))
            rows = batch.take(pa.array(order))
            return [rows.slice(low, high - low) for low, high in pairwise(starts.tolist())]

        schema = self.partitions[0].schema
        dealt = self.threads.run([batch for table in self.partitions for batch in table.to_batches()], deal)
        tables = (pa.Table.from_batches([parts[number] for parts in dealt], schema) for number in range(count))
        return replace(self, partitions=tuple(tables))

    def sorted_by(self, *columns: str | tuple[str, str]) -> Self:
        """The rows sorted within each partition; null comes first, and texts are in the order of their bytes."""
        return replace(self, order=tuple((c, "ascending") if isinstance(c, str) else c for c in columns))

    def results(self, work: Work) -> list[tuple[Any, ...]]:
        """The rows that `work` yields, small ones, in the order of the partitions; it is given one at a time."""

        def run(item: tuple[int, pa.Table]) -> list[tuple[Any, ...]]:
            number, table = item
            if self.order:
                keys = [(name, order, "at_start") for name, order in self.order]
                table = table.take(pc.sort_indices(table.select([name for name, _ in self.order]), sort_keys=keys))
            _partition.set(number)
            batches = table.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
            yielded = work(batch for batch in batches if batch.num_rows)
            return [tuple(row.values()) for batch in yielded for row in batch.to_pylist()]

        found = self.threads.run(list(enumerate(self.partitions)), run)
        return [row for of_partition in found for row in of_partition]


def partition_here() -> int | None:
    """The number of the partition that this thread works on; None outside of such work."""
    return _partition.get(None)
