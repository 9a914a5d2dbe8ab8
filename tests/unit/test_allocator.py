"""Freed memory stays with the process, where the C library has the options."""

import subprocess
import sys

PROGRAM = """
import ctypes

import numpy as np

from rayrec.common.allocator import keep_freed_memory


class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abc"] + [("mapped_blocks", ctypes.c_size_t)] + [
        (name, ctypes.c_size_t) for name in "efghij"
    ]


library = ctypes.CDLL(None)
library.mallinfo2.restype = Info


def mapped() -> int:
    before = library.mallinfo2().mapped_blocks
    array = np.empty(100 * 2**20, np.uint8)
    return library.mallinfo2().mapped_blocks - before


print(mapped(), mapped())
keep_freed_memory()
print(mapped(), mapped())
"""


def test_large_blocks_no_longer_come_from_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "0", "0"]
