"""Contract of what runs the tasks of a preprocessing job: Spark's executors or threads of this process."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.preprocessing.engines.engine import Engine, Item

Work = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Turns a partition, given its number and its batches, into a few small rows."""


class PartitionedRows(Protocol):
    """Rows in partitions. Every method but `results` returns other rows, which are computed when `results` is called.

    Sorted rows have null first, and texts in the order of their UTF-8 bytes.
    """

    def sum_by_fold(self, keys: Sequence[str], names: Sequence[str], fold: str, folds: int) -> "PartitionedRows":
        """Return the sums of the columns `names` over the rows with equal `keys`, and over those of each fold among
        them.

        The number of a row's fold is in the column `fold`. The columns are the keys, the sums by their names, then
        NAME_0, NAME_1, ... of the folds, first those of the first name.
        """

    def sort(self, *columns: str, descending: Collection[str] = ()) -> "PartitionedRows":
        """Return all rows sorted by columns: those of a partition come after those of the partitions before it."""

    def partition_by(self, column: str) -> "PartitionedRows":
        """Return the rows with equal values of a column in one partition."""

    def partition_by_range(self, column: str, partitions: int) -> "PartitionedRows":
        """Return the rows in partitions by ascending ranges of a column, which are cut so that they have about equal
        sizes.
        """

    def partition_by_hash(self, partitions: int) -> "PartitionedRows":
        """Return the rows in partitions by ascending ranges of equal width of the column `hash` (int64, uniform)."""

    def partition_by_key(self, column: str, partitions: int) -> "PartitionedRows":
        """Return each row in the partition of its key, one of `TaskRunner.partition_keys(partitions)`, which is in a
        column.
        """

    def sort_within(self, *columns: str) -> "PartitionedRows":
        """Return the rows sorted within each partition."""

    def results(self, work: Work, columns: str, batch_rows: int | None = None) -> list[tuple[Any, ...]]:
        """Return the small rows that `work` yields; `columns`: theirs, as Spark's DDL.

        `batch_rows`: the most rows of a batch that is handed to `work`, for rows that are large.
        """


class TaskRunner(Engine, Protocol):
    """Runs the tasks of a job, several at once; what is left to move to `Engine` alone."""

    @property
    def partitions(self) -> int:
        """Most partitions into which rows are shuffled."""

    def rows(
        self, items: Sequence[Item], function: Callable[[Item], Iterator[pa.RecordBatch]], schema: pa.Schema
    ) -> PartitionedRows:
        """Return the batches that `function` yields for each item, ready to be shuffled or sorted."""

    def partition_keys(self, partitions: int) -> NDArray[np.int32]:
        """Return (partitions,) the keys by which `PartitionedRows.partition_by_key` sends rows to each partition."""
