"""Shuffled rows on the way from the tasks that make them to those that consume them: Arrow messages in a file."""

import mmap
import os
import tempfile
from collections import defaultdict
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import pyarrow as pa

from rayrec.common.disk_errors import naming

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
