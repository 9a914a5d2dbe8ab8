"""Tunes the allocator of the C library."""

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_LARGEST = 2**31 - 1

ENVIRONMENT_OF_WORKERS = {"MALLOC_ARENA_MAX": "1"}
"""What a process must be started with, so that `keep_freed_memory` holds in its threads, too: glibc gives a thread an
arena of its own, from which freed memory goes back to the kernel whatever the settings. Ray Train computes in a thread.
"""


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
