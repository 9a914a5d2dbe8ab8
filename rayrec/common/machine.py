"""What this process may use of its machine: CPUs, memory and ports. And what the machine was while it was measured.

A container has limits that libraries do not know: threads for 64 CPUs where the cgroup's quota gives two would wait for
each other, and memory would be planned that the kernel does not give. So everything here asks the cgroups. Linux only.
"""

import ctypes
import math
import mmap
import os
import platform
import random
import re
import socket
import subprocess
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

CPUS_OF_COMMAND = "RAYREC_CPUS"
"""Environment variable of a Ray session's processes: the CPUs of the command that has started the session for itself.

Ray gives its workers an OMP_NUM_THREADS of its own, so they do not have the user's."""
_USERS_VARIABLE = "OMP_NUM_THREADS"
_BENEATH_RAY = ("RAY_RAYLET_PID", "RAY_JOB_CONFIG_JSON_ENV_VAR")
"""Variables of Ray's workers, and of the command of a Ray job: its OMP_NUM_THREADS is that of the worker it comes from.
"""
_LIMIT_USED_IDLE = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Files of a cgroup of version 2 and of version 1, and a line of its memory.stat."""
ENVIRONMENT_OF_WORKERS = {"MALLOC_ARENA_MAX": "1"}
"""What a process must be started with, so that `keep_freed_memory` holds in its threads, too: glibc gives a thread an
arena of its own, from which freed memory goes back to the kernel whatever the settings. Ray Train computes in a thread.
"""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3)."""
_LARGEST = 2**31 - 1
_LARGE_BYTES = 256 * 2**20
"""A smaller file is soon in memory as a whole, so for it the file system had better read ahead."""
_PORTS = range(20_000, 30_000)
"""Above the ports that Ray gives to its workers, and below those that Ray Serve gives to replicas, and Linux to any
connection that is made until the server has started."""
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
_DIRECT = ("no_proxy", "NO_PROXY")
"""The hosts that are reached directly; most programs read the first, and the second where it is not set."""
_PACKAGES = (
    "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "pyarrow", "ray", "raydp", "pyspark", "triton",
)  # fmt: skip
"""The installed packages that speed depends on."""


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
        """Return the least of them; a part of a CPU counts as one."""
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
        quota=_cpu_quota(process),
        variable=_cpus_of_environment(environment),
    )


def limit_libraries(environment: MutableMapping[str, str] = os.environ, process: Path = Path("/proc/self")) -> None:
    """Let libraries that are imported later keep to a cgroup's quota, which they do not look at.

    Otherwise OpenMP (torch), OpenBLAS (NumPy) and Arrow start a thread for each CPU that the process may run on, and
    these wait for each other whenever the quota is used up. What the user has set stands.
    """
    limits = cpu_limits(environment, process)
    if limits.available < limits.affinity:
        environment.setdefault(_USERS_VARIABLE, str(limits.available))


def _cpus_of_environment(environment: Mapping[str, str]) -> tuple[str, int] | None:
    names = (CPUS_OF_COMMAND,) if any(name in environment for name in _BENEATH_RAY) else (_USERS_VARIABLE,)
    for name in names:
        # OpenMP takes a number for each level of nesting: "4,2".
        if (number := re.match(r"\s*(\d+)", environment.get(name, ""))) and int(number[1]) > 0:
            return name, int(number[1])
    return None


def _cpu_quota(process: Path) -> float | None:
    """Return the least quota of the process's cgroup and of those above it, as far as their files can be seen."""
    quotas = []
    for folder in cgroups("cpu", process):
        with suppress(OSError, ValueError):  # the file is not there, or says `max`
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            quotas.append(quota / period)
        # Version 1 has two files, and -1 where there is no quota.
        with suppress(OSError, ValueError):
            quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            quotas += [quota / period] if quota > 0 else []
    return min(quotas, default=None)


def cgroups(controller: str, process: Path = Path("/proc/self")) -> Iterator[Path]:
    """Yield the folders of the cgroups of `controller` (cpu, memory, pids): a process's and those above, where mounted.

    `process`: its folder of /proc. Of version 2 the folder is that of all controllers. A mount shows a hierarchy from
    some cgroup on. One that is not above the process's own, as the names in a container can have it, counts itself: it
    is what the container was given.
    """
    try:
        paths = dict(_cgroup_paths(controller, process))
        mounts = list(_cgroup_mounts(controller, process))
    except OSError:
        return
    for kind, path in paths.items():
        of_kind = [(root, folder) for mounted, root, folder in mounts if mounted == kind]
        above = [(root, folder) for root, folder in of_kind if path.is_relative_to(root) and ".." not in path.parts]
        for root, folder in above or of_kind[:1]:
            own = folder / path.relative_to(root) if above else folder
            yield own
            yield from (parent for parent in own.parents if parent.is_relative_to(folder))


def number_in(file: Path) -> int | None:
    """Return the number that a file of a cgroup holds; None if there is no such file, or if it says `max`."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _cgroup_paths(controller: str, process: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """Return the path of the process's cgroup in the hierarchy of version 2 and in version 1's of the controller."""
    for line in (process / "cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            yield "cgroup2", PurePosixPath(path)
        elif controller in controllers.split(","):
            yield "cgroup", PurePosixPath(path)


def _cgroup_mounts(controller: str, process: Path) -> Iterator[tuple[str, PurePosixPath, Path]]:
    """Yield (cgroup2 or cgroup, the cgroup that is mounted, the folder) of these hierarchies' mounts: see proc(5)."""
    for line in (process / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            # A blank in a path is written as \040.
            fields = before.split(" ")[3:5]
            root, folder = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), field) for field in fields)
            yield kind, PurePosixPath(root), Path(folder)


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


class MappedFile:
    """A file that is mapped into memory, to be read here and there; processes share the pages that were read."""

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


def free_ports(count: int, but: Collection[int] = ()) -> list[int]:
    """Return different ports of 127.0.0.1 on which nothing listens, none of `but`.

    Raises OSError if there are too few.
    """
    ports: list[int] = []
    with ExitStack() as stack:
        # Drawn from the system's randomness, so that no two processes draw the same ones.
        candidates = (port for port in random.SystemRandom().sample(_PORTS, len(_PORTS)) if port not in but)
        while len(ports) < count:
            if (port := next(candidates, None)) is None:
                raise OSError(f"this machine does not have {count} free ports; end other programs that listen")
            one = stack.enter_context(socket.socket())
            with suppress(OSError):
                one.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def free_port() -> int:
    """Return one port of 127.0.0.1 on which nothing listens."""
    return free_ports(1)[0]


def proxy_variables(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables, in either case, that name a proxy."""
    return [name for name in environment if name.lower() in _PROXIES and environment[name]]


def reach_this_machine_directly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Add this machine's names and addresses to the hosts that this process, and those it starts, ask without a proxy.

    Otherwise a proxy, which is elsewhere or does not know them, would be asked for servers on this machine. Does
    nothing where the environment names no proxy.
    """
    if not proxy_variables(environment):
        return
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    found = [of for interface in psutil.net_if_addrs().values() for of in interface if of.family in families]
    addresses = ["127.0.0.1", "::1", *(address.address.partition("%")[0] for address in found)]
    # Some programs compare the host as a URL has it.
    own = ["localhost", socket.gethostname(), *addresses, *(f"[{one}]" for one in addresses if ":" in one)]
    given = next((environment[name] for name in _DIRECT if environment.get(name)), "")
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    if "*" not in hosts:
        environment.update(dict.fromkeys(_DIRECT, ",".join(dict.fromkeys([*hosts, *own]))))


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement, which begins when this object is made."""

    load_at_start: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def described(self) -> dict[str, Any]:
        """Describe it for a file of results as the measurement ends; loads are averages over 1, 5 and 15 minutes."""
        limits = cpu_limits()
        installed = {name: found for name in _PACKAGES if (found := _version(name)) is not None}
        return {
            "cpu": _cpu_model(),
            "cores": limits.machine,
            "cpus_usable": limits.available,
            "load_at_start": [round(load, 2) for load in self.load_at_start],
            "load_at_end": [round(load, 2) for load in os.getloadavg()],
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "versions": {"rayrec": _own_version(), "python": platform.python_version(), **installed},
        }


def describe_machine(described: dict[str, Any]) -> str:
    """Return the line of a measurement, from what `described` gives: `AMD EPYC, 2 of 2 CPUs, load 0.1 to 1.9`."""
    cpus = f"{described['cpus_usable']} of {described['cores']} CPUs"
    return f"{described['cpu']}, {cpus}, load {described['load_at_start'][0]} to {described['load_at_end'][0]}"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _own_version() -> str | None:
    """Return the commit of a checkout, marked if files differ from it; otherwise the installed version."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / ".git").exists():
        describe = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        with suppress(OSError, subprocess.CalledProcessError):  # no git, or a checkout of another user
            return subprocess.run(describe, cwd=checkout, capture_output=True, text=True, check=True).stdout.strip()
    return _version("rayrec")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
