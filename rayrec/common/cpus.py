"""Number of CPUs that this process may use: a container or a pinned process has fewer than the machine. Linux only."""

import math
import os
import re
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rayrec.common.cgroups import cgroups

CPUS_OF_COMMAND = "RAYREC_CPUS"
"""Environment variable of a Ray session's processes: the CPUs of the command that has started the session for itself.

Ray gives its workers an OMP_NUM_THREADS of its own, so they cannot know the user's."""
_USERS_VARIABLE = "OMP_NUM_THREADS"
_BENEATH_RAY = ("RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR")
"""Variables of Ray's workers, and of the command of a Ray job: its OMP_NUM_THREADS is that of the worker it comes from.
"""


@dataclass(frozen=True)
class CpuLimits:
    """The limits of the CPUs of a process."""

    machine: int
    affinity: int
    """CPUs that the process may run on (taskset, a container's cpuset)."""
    quota: float | None
    """CPUs' worth of time that its cgroup may use, as a container's limit; None without a quota."""
    variable: tuple[str, int] | None
    """The environment variable that says how many, and its number."""

    @property
    def available(self) -> int:
        """Least of them; a part of a CPU counts as one."""
        return max(1, min(cpus for _, cpus in self._limits()))

    def __str__(self) -> str:
        """Return the number, and what lowers it: `2 of 8: affinity 4, quota of the cgroup 1.5`."""
        reasons, least = [], self.machine
        for reason, cpus in self._limits():
            if cpus < least:
                reasons.append(reason)
                least = cpus
        return f"{self.available} of {self.machine}{': ' if reasons else ''}{', '.join(reasons)}"

    def _limits(self) -> Iterator[tuple[str, int]]:
        yield f"affinity {self.affinity}", self.affinity
        if self.quota is not None:
            yield f"quota of the cgroup {self.quota:g}", math.ceil(self.quota)
        if self.variable is not None:
            name, cpus = self.variable
            yield f"{name}={cpus}", cpus


def available_cpus() -> int:
    """Count the CPUs that this process may use, at least 1: `cpu_limits` says why."""
    return cpu_limits().available


def cpu_limits(environment: Mapping[str, str] = os.environ, process: Path = Path("/proc/self")) -> CpuLimits:
    """Find the limits of the process with this environment and this folder of /proc."""
    return CpuLimits(
        machine=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)),
        quota=_quota(process),
        variable=_variable(environment),
    )


def limit_libraries(environment: MutableMapping[str, str] = os.environ, process: Path = Path("/proc/self")) -> None:
    """Let libraries that are imported later keep to a cgroup's quota, of which they do not know.

    Otherwise OpenMP (torch), OpenBLAS (NumPy) and Arrow start a thread for each CPU that the process may run on, and
    these wait for each other whenever the quota is used up. What the user has set stands.
    """
    limits = cpu_limits(environment, process)
    if limits.available < limits.affinity:
        environment.setdefault(_USERS_VARIABLE, str(limits.available))


def _variable(environment: Mapping[str, str]) -> tuple[str, int] | None:
    names = (CPUS_OF_COMMAND,) if any(name in environment for name in _BENEATH_RAY) else (_USERS_VARIABLE,)
    for name in names:
        # OpenMP takes a number for each level of nesting: "4,2".
        if (number := re.match(r"\s*(\d+)", environment.get(name, ""))) and int(number[1]) > 0:
            return name, int(number[1])
    return None


def _quota(process: Path) -> float | None:
    """Return the least quota of the process's cgroup and of those above it, as far as their files can be seen."""
    quotas = [
        quota for folder in cgroups("cpu", process) for quota in (_quota_of_v2(folder), _quota_of_v1(folder)) if quota
    ]
    return min(quotas, default=None)


def _quota_of_v2(folder: Path) -> float | None:
    with suppress(OSError, ValueError):  # the file is not there, or says `max`
        quota, period = (folder / "cpu.max").read_text().split()
        return int(quota) / int(period)
    return None


def _quota_of_v1(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        return quota / period if quota > 0 else None
    return None
