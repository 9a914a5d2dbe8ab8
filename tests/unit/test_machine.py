"""This machine: CPUs by affinity, quotas and the user's variable; memory that is left; how results describe it."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from ray._private.ray_constants import RAY_INTERNAL_FLAGS
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from benchmarks.result_rows import ResultRows
from rayrec.common import machine
from rayrec.common.machine import (
    ENVIRONMENT_OF_WORKERS,
    CpuLimits,
    Machine,
    available_cpus,
    cpu_limits,
    describe_machine,
    limit_libraries,
)
from tests.cgroup_files import V2, process_folder

V1 = "cgroup cgroup rw,cpu,cpuacct"


@pytest.mark.parametrize(
    ("cgroup", "mounts", "files", "quota"),
    [
        pytest.param("0::/\n", [("/", "cg", V2)], {"cg/cpu.max": "150000 100000\n"}, 1.5, id="v2, container"),
        pytest.param("0::/\n", [("/", "cg", V2)], {"cg/cpu.max": "max 100000\n"}, None, id="v2, max"),
        pytest.param("0::/\n", [("/", "cg", V2)], {}, None, id="v2, no file"),
        pytest.param("0::/a\n", [("/", "cg", V2)], {"cg/a/cpu.max": "what\n"}, None, id="v2, nonsense"),
        pytest.param(
            "0::/pods/pod/box\n",
            [("/", "cg", V2)],
            {
                "cg/pods/cpu.max": "900000 100000\n",
                "cg/pods/pod/cpu.max": "200000 100000\n",
                "cg/pods/pod/box/cpu.max": "max 100000\n",
            },
            2.0,
            id="v2, the parent's is the least",
        ),
        pytest.param(
            "4:memory:/m\n1:cpu,cpuacct:/a/b\n",
            [("/", "memory", "cgroup cgroup rw,memory"), ("/", "cpu", V1)],
            {
                "memory/m/cpu.cfs_quota_us": "1\n",
                "memory/m/cpu.cfs_period_us": "1\n",
                "cpu/a/cpu.cfs_quota_us": "300000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "cpu/a/b/cpu.cfs_quota_us": "-1\n",
                "cpu/a/b/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="v1, the parent's",
        ),
        pytest.param(
            "1:cpu:/docker/x\n",
            [("/docker/x", "cpu", V1)],
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.5,
            id="v1, a container that sees its own cgroup as the root",
        ),
        pytest.param(
            "1:cpu:/\n",
            [("/docker/x", "cpu", V1)],
            {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            0.5,
            id="v1, a container with other names",
        ),
        pytest.param(
            "1:cpu:/a\n0::/b\n",
            [("/", "cpu", V1), ("/", "unified", V2)],
            {
                "cpu/a/cpu.cfs_quota_us": "400000\n",
                "cpu/a/cpu.cfs_period_us": "100000\n",
                "unified/b/cpu.max": "800000 100000\n",
            },
            4.0,
            id="both",
        ),
        pytest.param(
            "0::/here\n",
            [("/there", "other", V2), ("/", "my cg", V2)],
            {"other/cpu.max": "1 1\n", "my cg/here/cpu.max": "200000 100000\n"},
            2.0,
            id="another's cgroup is mounted, too; a blank",
        ),
        pytest.param("0::/../x\n", [("/", "cg/y", V2)], {"cg/x/cpu.max": "1 1\n"}, None, id="v2, outside the mount"),
        pytest.param("0::/a\n", [], {}, None, id="nothing is mounted"),
    ],
)
def test_the_least_quota_above_a_process_counts(
    cgroup: str, mounts: list[tuple[str, str, str]], files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    assert cpu_limits({}, process_folder(tmp_path, cgroup, mounts, files)).quota == quota


def test_what_cannot_be_read_limits_nothing(tmp_path: Path) -> None:
    assert cpu_limits({}, tmp_path / "nowhere").quota is None
    process = process_folder(tmp_path, "0::/\n", [("/", "cg", V2)], {"cg/cpu.max/is a folder": ""})
    assert cpu_limits({}, process).quota is None


@pytest.mark.parametrize(
    ("affinity", "quota", "variable", "available"),
    [
        (8, None, None, 8),
        (8, 3.5, None, 4),
        (8, 0.2, None, 1),
        (2, 3.5, None, 2),
        (8, 3.5, ("OMP_NUM_THREADS", 3), 3),
        (4, None, ("OMP_NUM_THREADS", 64), 4),
    ],
)
def test_the_least_limit_counts(
    affinity: int, quota: float | None, variable: tuple[str, int] | None, available: int
) -> None:
    limits = CpuLimits(machine=8, affinity=affinity, quota=quota, variable=variable)
    assert limits.available == available
    assert str(limits).startswith(f"{available} of 8")


def test_what_lowers_the_number_is_said_and_nothing_else() -> None:
    limits = CpuLimits(machine=96, affinity=64, quota=3.5, variable=("OMP_NUM_THREADS", 16))
    assert all(part in str(limits) for part in ("64", "3.5")) and "OMP_NUM_THREADS" not in str(limits)


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({"OMP_NUM_THREADS": "3"}, ("OMP_NUM_THREADS", 3)),
        ({"OMP_NUM_THREADS": " 4,2"}, ("OMP_NUM_THREADS", 4)),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "-2"}, None),
        ({"OMP_NUM_THREADS": "all"}, None),
        ({"OMP_NUM_THREADS": ""}, None),
        ({}, None),
        # In Ray's workers and in the command of a job Ray itself has set it.
        ({"RAY_RAYLET_PID": "7", "OMP_NUM_THREADS": "1"}, None),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "OMP_NUM_THREADS": "1"}, None),
        ({"RAY_RAYLET_PID": "7", "OMP_NUM_THREADS": "1", "RAYREC_CPUS": "2"}, ("RAYREC_CPUS", 2)),
    ],
)
def test_the_users_variable_counts_and_rays_does_not(
    environment: dict[str, str], variable: tuple[str, int] | None, tmp_path: Path
) -> None:
    assert cpu_limits(environment, tmp_path).variable == variable


def test_the_variables_of_processes_beneath_ray_are_rays() -> None:
    """An upgrade may change these private names: adapt rayrec/common/machine.py."""
    assert "RAY_RAYLET_PID" in RAY_INTERNAL_FLAGS
    assert RAY_JOB_CONFIG_JSON_ENV_VAR == "RAY_JOB_CONFIG_JSON_ENV_VAR"


def test_a_pinned_process_has_the_cpus_it_is_pinned_to() -> None:
    program = "import os; from rayrec.common.machine import available_cpus as n; print(n(), end=' '); "
    program += "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(n())"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert 1 <= int(done[0]) <= len(os.sched_getaffinity(0)) and done[1] == "1"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="there is nothing to limit on one CPU")
def test_libraries_are_told_of_a_quota_but_the_user_has_the_last_word(tmp_path: Path) -> None:
    limited = process_folder(tmp_path, "0::/\n", [("/", "cg", V2)], {"cg/cpu.max": "20000 100000\n"})
    for process, before, after in (
        (limited, {}, {"OMP_NUM_THREADS": "1"}),
        (limited, {"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}),
        (tmp_path / "nowhere", {}, {}),
    ):
        environment: dict[str, str] = dict(before)
        limit_libraries(environment, process)
        assert environment == after


# --- memory


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


# --- how results describe it


def test_a_machine_is_described_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (7.5, 2.0, 1.5))
    described = Machine(load_at_start=(0.123, 0.5, 1.0)).described()
    assert described["load_at_start"] == [0.12, 0.5, 1.0] and described["load_at_end"] == [7.5, 2.0, 1.5]
    assert described["cpu"] and described["cores"] == os.cpu_count()
    assert 1 <= described["cpus_usable"] == available_cpus() <= described["cores"]
    assert described["memory_gib"] == pytest.approx(psutil.virtual_memory().total / 2**30, abs=0.1)
    versions = described["versions"]
    assert versions["python"] == platform.python_version() and torch.__version__.startswith(versions["torch"])
    assert {"rayrec", "torchrec", "ray", "pyarrow", "pyspark", "raydp"} <= versions.keys()
    assert json.loads(json.dumps(described)) == described
    assert all(str(value) in describe_machine(described) for value in (described["cpu"], 0.12, 7.5))


def test_each_row_of_results_has_its_machine(tmp_path: Path) -> None:
    results = ResultRows(tmp_path / "rows.json", keys=("side",), printed=("side",))
    for side in ("a", "b", "a"):
        results.add({"side": side})
    rows = results.read()
    assert [row["side"] for row in rows] == ["b", "a"]
    assert all(row["machine"].keys() == Machine().described().keys() for row in rows)
