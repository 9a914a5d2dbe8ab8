"""The memory that is left, the machine's or that of a container with a limit; and what the C library does with freed
memory, where it has the functions."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rayrec.common import machine
from rayrec.common.machine import ENVIRONMENT_OF_WORKERS
from tests.cgroup_files import V2, process_folder


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        pytest.param("1000000", 1_000_000 - 700_000 + 250_000, id="idle pages of files are available"),
        pytest.param("400000", 0, id="a limit below what is used"),
        pytest.param("max", None, id="no limit"),
        pytest.param(str(2**60), None, id="a limit beyond the machine's memory"),
    ],
)
def test_a_container_has_what_its_limit_leaves(
    limit: str, expected: int | None, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    assert machine.available_memory(tmp_path / "nowhere") == free.available, "no container"
    of_limit, of_use, idle = machine._LIMIT_USED_IDLE[2 - version]
    files = {
        # The limit is that of a cgroup above the process's own.
        f"cg/pod/{of_limit}": f"{limit}\n",
        f"cg/pod/{of_use}": "700000\n",
        "cg/pod/memory.stat": f"anon 400000\nfile 300000\n{idle} 250000\nactive_file 50000\n",
    }
    cgroup, mounted = ("0::/pod/box\n", V2) if version == 2 else ("5:memory:/pod/box\n", "cgroup cgroup rw,memory")
    process = process_folder(tmp_path, cgroup, [("/", "cg", mounted)], files)
    assert machine.available_memory(process) == (free.available if expected is None else expected)


KEEPS = """
import ctypes

import numpy as np

from rayrec.common.machine import keep_freed_memory


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
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1", "0", "0"]


KEEPS_IN_A_THREAD = """
import resource
import threading

import numpy as np

from rayrec.common.machine import keep_freed_memory


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def step() -> None:
    blocks = [np.ones(24 * 2**20, np.uint8) for _ in range(6)]
    del blocks


def work() -> None:
    keep_freed_memory()
    step()
    before = faults()
    for _ in range(3):
        step()
    print(faults() - before)


thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_large_blocks_of_a_workers_thread_do_not_come_from_the_kernel_each_time() -> None:
    def run(environment: dict[str, str]) -> int:
        command = [sys.executable, "-c", KEEPS_IN_A_THREAD]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert run(ENVIRONMENT_OF_WORKERS) < 1000 < run({})


GIVES_BACK = """
import psutil

from rayrec.common.machine import give_back_freed_memory


def resident_mib() -> float:
    return psutil.Process().memory_info().rss / 2**20


# Below the size from which a block is mapped by itself; the last one keeps the others from the end of the heap.
blocks = [b"x" * 100_000 for _ in range(2000)]
last = blocks[-1]
del blocks
before = resident_mib()
give_back_freed_memory()
print(before - resident_mib())
"""


def test_freed_blocks_go_back_to_the_kernel() -> None:
    done = subprocess.run([sys.executable, "-c", GIVES_BACK], capture_output=True, text=True, check=True)
    assert float(done.stdout) > 150
