"""Contract of an engine, which runs the tasks of preprocessing and shuffles rows: threads of this process, or Spark.

An engine only distributes. What is computed is the same function in every engine: Arrow and NumPy for rows that a
request has too, and SQL (`rayrec.preprocessing.engines.sql`) for what joins, groups or sorts rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.ingest.order import group_starts

Item = TypeVar("Item")
Result = TypeVar("Result")
Partition = int | NDArray[np.integer]
"""The partition of all rows of a batch, or (n,) that of each, from 0."""
Consume = Callable[[int, Mapping[str, pa.Table]], Result]
"""Turns a partition, given its number and its rows by the name of their source, into a small result."""
_BYTES_AT_ONCE = 2**25
"""Bytes of rows that a task gathers before it cuts them into partitions: few rows a piece take long."""
_BYTES_OF_A_MESSAGE = 2**21
"""Most bytes of a message, but for a single row: Spark hands several to a task at once."""


class Counter(Protocol):
    """Counts rows from within tasks."""

    @property
    def value(self) -> int:
        """Rows so far; only the process that made the counter knows them."""

    def add(self, term: int) -> None:
        """Add some rows."""


@dataclass(frozen=True)
class ShuffleInput(Generic[Item]):
    """Rows that go into a shuffle."""

    items: Sequence[Item]
    """What tasks make the rows of: a task for each."""
    schema: pa.Schema
    """The columns of the rows, which are cast to it."""
    produce: Callable[[Item], Iterable[tuple[Partition, pa.RecordBatch]]]
    """Yields rows of an item, and their partitions."""


class Engine(Protocol):
    """Runs the tasks of a job, several at once."""

    @property
    def parallelism(self) -> int:
        """Return how many tasks run at once."""

    def within(self, scratch: Path) -> Self:
        """Return the same engine for a job that has `scratch` for its files."""

    def run(self, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
        """Run a task for each item; return the results, small ones, in the order of the items."""

    def shuffle(
        self, sources: Mapping[str, ShuffleInput[Any]], partitions: int, consume: Consume[Result]
    ) -> list[Result]:
        """Bring the rows of each partition together; return what `consume` makes of partitions 0, 1, ... in this order.

        Every partition is consumed, also one without rows. The rows of a partition come in no order, so what depends
        on one sorts them. They are tables over files, so a partition may have more rows than the memory holds, as far
        as `consume` reads them by `query` or in batches.
        """

    def counter(self) -> Counter:
        """Return a new counter of rows."""

    def cancel(self) -> None:
        """Stop the tasks that still run, and wait for their end."""


def messages_by_partition(
    produced: Iterable[tuple[Partition, pa.RecordBatch]], schema: pa.Schema, partitions: int
) -> Iterator[tuple[int, pa.Buffer]]:
    """Yield produced rows as Arrow messages, each of one partition."""
    held: list[tuple[NDArray[np.integer], pa.RecordBatch]] = []
    size = 0
    for partition, rows in produced:
        if rows.num_rows:
            held.append((np.broadcast_to(np.asarray(partition), rows.num_rows), rows.cast(schema)))
            size += rows.nbytes
        if size >= _BYTES_AT_ONCE:
            yield from _messages(held, partitions)
            held, size = [], 0
    if held:
        yield from _messages(held, partitions)


def _messages(
    held: Sequence[tuple[NDArray[np.integer], pa.RecordBatch]], partitions: int
) -> Iterator[tuple[int, pa.Buffer]]:
    partition = np.concatenate([of_rows for of_rows, _ in held])
    table = pa.Table.from_batches([rows for _, rows in held])
    assert partition.min() >= 0 and partition.max() < partitions, "a partition that there is not"
    if (np.diff(partition) < 0).any():
        order = np.argsort(partition, kind="stable")
        partition, table = partition[order], table.take(pa.array(order))
    (rows,) = table.combine_chunks().to_batches()
    most = max(1, int(_BYTES_OF_A_MESSAGE / (rows.nbytes / rows.num_rows + 1)))
    starts = group_starts(partition)
    for low, high in zip(starts.tolist(), [*starts[1:].tolist(), rows.num_rows], strict=True):
        for start in range(low, high, most):
            yield int(partition[start]), rows.slice(start, min(most, high - start)).serialize()


def partition_by_hash(hashes: NDArray[np.int64], partitions: int) -> NDArray[np.int64]:
    """Return (n,) the partitions of rows by their hashes (n,): ascending ranges of hashes, all of about one width."""
    # Signed, as the hashes are sorted: the upper 32 bits, counted from 0, times the number of partitions.
    return ((hashes >> 32) + 2**31) * partitions >> 32
