"""Runs tasks in threads of this process, with all rows in memory: a small input is done before Spark has started."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.embedded import EmbeddedEngine
from rayrec.preprocessing.engines.engine import Item
from rayrec.preprocessing.runners.task_runner import Work

ROWS_PER_BATCH = 32_768
"""Rows of the batches that tasks are given of shuffled rows."""


@dataclass(frozen=True)
class RowsInMemory:
    """Rows in memory."""

    runner: "ThreadRunner"
    partitions: tuple[pa.Table, ...]
    order: tuple[tuple[str, str], ...] = ()
    """The columns that each partition is sorted by, before work begins on it, each `ascending` or `descending`."""

    def sum_by_fold(self, keys: Sequence[str], names: Sequence[str], fold: str, folds: int) -> Self:
        table, every = self._whole(), [*names]
        for name in names:
            for number in range(folds):
                every.append(f"{name}_{number}")
                table = table.append_column(every[-1], pc.if_else(pc.equal(table[fold], number), table[name], 0))
        sums = table.group_by(list(keys)).aggregate([(name, "sum") for name in every])
        return self._of(sums.rename_columns({f"{name}_sum": name for name in every}).select([*keys, *every]))

    def sort(self, *columns: str, descending: Collection[str] = ()) -> Self:
        order = tuple((name, "descending" if name in descending else "ascending") for name in columns)
        return replace(self._of(self._whole()), order=order)

    def partition_by(self, column: str) -> Self:
        return self._of(self._whole())

    def partition_by_range(self, column: str, partitions: int) -> Self:
        return self._of(self._whole())

    def partition_by_hash(self, partitions: int) -> Self:
        def range_of(batch: pa.RecordBatch) -> NDArray[np.integer]:
            share = batch[HASH].to_numpy().astype(np.float64) / 2.0**64 + 0.5
            return np.clip(np.floor(share * partitions).astype(np.int32), 0, partitions - 1)

        return self._partition(range_of, partitions)

    def partition_by_key(self, column: str, partitions: int) -> Self:
        return self._partition(lambda batch: batch[column].to_numpy(), partitions)

    def sort_within(self, *columns: str) -> Self:
        return replace(self, order=tuple((name, "ascending") for name in columns))

    def results(self, work: Work, columns: str, batch_rows: int | None = None) -> list[tuple[Any, ...]]:
        """See the protocol; `work` is always given batches of `ROWS_PER_BATCH` rows, as they take no further memory."""

        def run(item: tuple[int, pa.Table]) -> list[tuple[Any, ...]]:
            number, table = item
            if self.order:
                keys = [(name, order, "at_start") for name, order in self.order]
                table = table.take(pc.sort_indices(table.select([name for name, _ in self.order]), sort_keys=keys))
            batches = table.combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
            yielded = work(number, (batch for batch in batches if batch.num_rows))
            return [tuple(row.values()) for batch in yielded for row in batch.to_pylist()]

        found = self.runner.run(list(enumerate(self.partitions)), run)
        return [row for of_partition in found for row in of_partition]

    def _whole(self) -> pa.Table:
        return pa.concat_tables(self.partitions)

    def _of(self, table: pa.Table) -> Self:
        return replace(self, partitions=(table,), order=())

    def _partition(self, partition_of: Callable[[pa.RecordBatch], NDArray[np.integer]], count: int) -> Self:
        """Return the rows in `count` partitions; `partition_of` gives the partitions (n,) of a batch of n rows,
        from 0.
        """

        def cut(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            partition, rows = partition_of(batch), batch
            # Shuffled blocks come in order, and need no copy.
            if (np.diff(partition) < 0).any():
                order = np.argsort(partition, kind="stable")
                partition, rows = partition[order], batch.take(pa.array(order))
            starts = np.searchsorted(partition, np.arange(count + 1))
            return [rows.slice(low, high - low) for low, high in pairwise(starts.tolist())]

        schema = self.partitions[0].schema
        partitioned = self.runner.run([batch for table in self.partitions for batch in table.to_batches()], cut)
        tables = (pa.Table.from_batches([parts[number] for parts in partitioned], schema) for number in range(count))
        return replace(self, partitions=tuple(tables), order=())


@dataclass(frozen=True)
class ThreadRunner(EmbeddedEngine):
    """Some threads of this process."""

    @property
    def partitions(self) -> int:
        return 4 * self.parallelism

    def rows(
        self, items: Sequence[Item], function: Callable[[Item], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> RowsInMemory:
        """Return the batches of all items in the order of the items, as one partition."""
        batches = self.run(items, lambda item: list(function(item)))
        return RowsInMemory(self, (pa.Table.from_batches([batch for of_item in batches for batch in of_item], schema),))

    def partition_keys(self, partitions: int) -> NDArray[np.int32]:
        """Return the numbers of the partitions themselves."""
        return np.arange(partitions, dtype=np.int32)
