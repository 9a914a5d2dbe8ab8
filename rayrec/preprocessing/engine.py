"""Engines run the tasks of preprocessing and shuffle rows: their contract, and the one of threads of this process.

Most inputs are done in threads before Spark, the other engine (`rayrec.preprocessing.spark`), has started.

An engine only distributes. What is computed is the same function in every engine: Arrow and NumPy for rows that a
request has too, and SQL (`rayrec.preprocessing.sql`) for what joins, groups or sorts rows.
"""

import mmap
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.disk_errors import naming
from rayrec.common.machine import available_cpus, available_memory
from rayrec.ingest.order import group_starts
from rayrec.preprocessing.sql import SqlShare, set_share
from rayrec.store.paths import cache_root, place_on_this_node

Item = TypeVar("Item")
Result = TypeVar("Result")
Partition = int | NDArray[np.integer]
"""The partition of all rows of a batch, or (n,) that of each, from 0."""
Consume = Callable[[int, Mapping[str, pa.Table]], Result]
"""Turns a partition, given its number and its rows by the name of their source, into a small result."""
_BYTES_AT_ONCE = 2**24
"""Bytes of rows that a task gathers before it cuts them into partitions: few rows a piece take long. PySpark holds the
pieces of ten times as many before it sends them."""
_BYTES_OF_A_MESSAGE = 2**21
"""Most bytes of a message, but for a single row: Spark hands several to a task at once."""
_ALIGNMENT = 64
"""Bytes; Arrow computes with mapped columns where they lie."""


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


class RowFile:
    """Rows of several partitions in a file without a name, which the system removes when this process ends.

    What was written lately is still in memory, so small data never touches the disk, and large data needs no memory.
    """

    def __init__(self, schema: pa.Schema, folder: Path) -> None:
        self._schema, self._folder = schema, folder
        self._messages: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # offsets and sizes by partition
        self._end, self._lock = 0, Lock()
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, partition: int, message: pa.Buffer) -> None:
        """Add rows to a partition. Several threads may do so at once. Raises DiskError."""
        with self._lock:
            offset = self._end
            self._end += -(-message.size // _ALIGNMENT) * _ALIGNMENT
            self._messages[partition].append((offset, message.size))
        content = memoryview(message)
        with naming(self._folder):
            while content:  # a disk that is almost full takes a part
                written = os.pwrite(self._file.fileno(), content, offset)
                content, offset = content[written:], offset + written

    def table(self, partition: int) -> pa.Table:
        """Return the rows of a partition, over mapped memory, which is given back with the last column of them."""
        messages = self._messages.get(partition)
        if not messages:
            return self._schema.empty_table()
        mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        return pa.Table.from_batches(
            pa.ipc.read_record_batch(mapped.slice(offset, size), self._schema) for offset, size in messages
        )


class _Counter:
    """Counts rows from within threads."""

    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self, term: int) -> None:
        with self._lock:
            self.value += term


@dataclass(frozen=True)
class EmbeddedEngine:
    """Some threads of this process; shuffled rows are on its disk."""

    parallelism: int
    memory: int = field(default_factory=lambda: available_memory() // 2)
    """Bytes that queries take together before they use the disk."""
    scratch: Path = field(default_factory=cache_root)
    """Where shuffled rows lie, and what queries have no memory for."""

    @classmethod
    def of_this_machine(cls) -> Self:
        """Return a thread for each CPU that this process may use."""
        return cls(available_cpus())

    def within(self, scratch: Path) -> Self:
        """Return the same engine with its files in the folder of a job, at its place on this node, which is there."""
        return replace(self, scratch=place_on_this_node(scratch))

    def run(self, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
        """See the protocol. An error leaves out the items that have not begun; it is raised when the others ended."""
        share = SqlShare(self.parallelism, self.memory, self.scratch)
        with ThreadPoolExecutor(self.parallelism, "rayrec-task", set_share, (share,)) as pool:
            calls = [pool.submit(function, item) for item in items]
            try:
                return [call.result() for call in calls]
            finally:
                pool.shutdown(cancel_futures=True)

    def shuffle(
        self, sources: Mapping[str, ShuffleInput[Any]], partitions: int, consume: Consume[Result]
    ) -> list[Result]:
        """See the protocol. Rows wait for each other in a file for each source."""
        with ExitStack() as stack:
            files = {name: stack.enter_context(RowFile(s.schema, self.scratch)) for name, s in sources.items()}

            def produce(task: tuple[str, Any]) -> None:
                name, item = task
                rows = sources[name].produce(item)
                for partition, message in messages_by_partition(rows, sources[name].schema, partitions):
                    files[name].append(partition, message)

            def finish(partition: int) -> Result:
                return consume(partition, {name: file.table(partition) for name, file in files.items()})

            self.run([(name, item) for name, source in sources.items() for item in source.items], produce)
            return self.run(range(partitions), finish)

    def counter(self) -> Counter:
        return _Counter()

    def cancel(self) -> None:
        """Stop all tasks; none runs any more when `run` has raised an error."""
