"""Runs tasks in threads of this process: most inputs are done before Spark has started. Shuffled rows lie in a file."""

import mmap
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from rayrec.common.disk_errors import naming
from rayrec.common.machine import available_cpus, available_memory
from rayrec.preprocessing.engines.engine import Consume, Counter, Item, Result, ShuffleInput, messages_by_partition
from rayrec.preprocessing.engines.sql import SqlShare, set_share
from rayrec.store.paths import cache_root, place_on_this_node

_ALIGNMENT = 64
"""Bytes; Arrow computes with mapped columns where they lie."""


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
