"""The memory that processes can still use, and what the allocator of the C library does with what they free."""

import ctypes
import re
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_LARGEST = 2**31 - 1

ENVIRONMENT_OF_WORKERS = {"MALLOC_ARENA_MAX": "1"}
"""What a process must be started with, so that `keep_freed_memory` holds in its threads, too: glibc gives a thread an
arena of its own, from which freed memory goes back to the kernel whatever the settings. Ray Train computes in a thread.
"""


def available_memory() -> int:
    """Bytes that new processes can use: the machine's, or what the container's limit (of cgroups v2) leaves.

    Pages of files that were read and lie idle are available: the system takes them back when memory is asked for.
    """
    import psutil

    free: int = psutil.virtual_memory().available
    try:
        limit, used, statistics = ((_CGROUP / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
    except OSError:
        return free
    if limit.strip() == "max":
        return free
    idle = re.search(r"^inactive_file (\d+)$", statistics, re.MULTILINE)
    return min(free, max(0, int(limit) - int(used) + (int(idle[1]) if idle else 0)))


def keep_freed_memory(most: int = _LARGEST) -> None:
    """Let this process keep up to `most` bytes of what it frees for what it allocates next.

    glibc gives what lies free at the end of its heap, and large blocks, back to the kernel, which hands out the next
    ones page by page, filled with zeros: 20,000 pages a step, if every step frees and allocates the same large tensors
    in host memory. It still does so in all threads but the first (`ENVIRONMENT_OF_WORKERS`). Does nothing if the C
    library lacks these options.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, most)
        mallopt(_MMAP_THRESHOLD, most)


def give_back_freed_memory() -> None:
    """Give what this process has freed, and its allocator keeps for later, back to the kernel.

    glibc does that by itself only at the end of its heap. Does nothing if the C library lacks the function.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
