"""A file that is mapped into memory to be read here and there."""

import mmap
from pathlib import Path

_LARGE_BYTES = 256 * 2**20
"""A smaller file is soon in memory as a whole, so for it the file system had better read ahead."""


class MappedFile:
    """The content of a file; the process holds the pages that it has read, and shares them with others."""

    def __init__(self, path: Path) -> None:
        """Map a file, which takes a file descriptor. Raises OSError, and ValueError if it is empty."""
        with path.open("rb") as file:
            self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if len(self.content) > _LARGE_BYTES:
            self.content.madvise(mmap.MADV_RANDOM)

    def release(self) -> None:
        """Give the pages in memory back. Later reads map them again from the system's page cache."""
        self.content.madvise(mmap.MADV_DONTNEED)

    def expect_order(self) -> None:
        """Announce a read from front to back: the file system reads ahead, which is many times as fast."""
        self.content.madvise(mmap.MADV_SEQUENTIAL)
