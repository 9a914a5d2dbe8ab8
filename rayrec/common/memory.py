"""The memory that processes can still use, and what the allocator of the C library does with what they free."""

import ctypes
import re
from pathlib import Path

from rayrec.common.cgroups import cgroups, number_in

_LIMIT_USED_IDLE = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a cgroup of version 2 and of version 1, and a line of its memory.stat."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_LARGEST = 2**31 - 1

ENVIRONMENT_OF_WORKERS = {"MALLOC_ARENA_MAX": "1"}
"""What a process must be started with, so that `keep_freed_memory` holds in its threads, too: glibc gives a thread an
arena of its own, from which freed memory goes back to the kernel whatever the settings. Ray Train computes in a thread.
"""


def available_memory(process: Path = Path("/proc/self")) -> int:
    """Return the bytes that new processes can use: the machine's, or what the process's cgroups leave.

    Pages of files that were read and lie idle are available: the system takes them back when memory is asked for.
    """
    import psutil

    free: int = psutil.virtual_memory().available
    for folder in cgroups("memory", process):
        for limit, used, idle in _LIMIT_USED_IDLE:
            most, now = number_in(folder / limit), number_in(folder / used)
            if most is not None and now is not None:
                found = re.search(rf"^{idle} (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
                free = min(free, max(0, most - now + (int(found[1]) if found else 0)))
    return free


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
