"""What a command and all processes that it started take: memory by kind of process, CPU time, disk."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import psutil

from rayrec.common.process import in_background

MIB = 2**20


@dataclass
class Sampled:
    """The most that was seen at once."""

    largest: dict[str, int] = field(default_factory=dict)
    """Bytes: what processes of each kind have for themselves (USS; pages of mapped files do not count), and folders."""
    cpu_seconds: dict[psutil.Process, float] = field(default_factory=dict)
    """Of each process since the first sample, or since it began."""

    @property
    def largest_mib(self) -> dict[str, int]:
        """Return `largest` in MiB."""
        return {name: size // MIB for name, size in self.largest.items()}


@contextmanager
def sampled(root: psutil.Process, folders: Mapping[str, Path], interval: float) -> Iterator[Sampled]:
    """Look at `root`, which is a driver of Spark on Ray, and at `folders` every `interval` seconds during the block."""
    found = Sampled()
    before = {process: _cpu_seconds(process) for process in _tree(root)}

    def sample() -> None:
        processes = _tree(root)
        memory = _memory(processes)
        sizes = {**memory, "all processes": sum(memory.values())}
        sizes |= {name: folder_size(folder) for name, folder in folders.items()}
        for name, size in sizes.items():
            found.largest[name] = max(found.largest.get(name, 0), size)
        for process in processes:
            if spent := _cpu_seconds(process):
                found.cpu_seconds[process] = spent - before.get(process, 0.0)

    with repeated(sample, interval):
        yield found


def run_sampled(command: Sequence[str], interval: float = 0.05) -> Sampled:
    """Run a program of Python (`-m MODULE ...`); return what its processes took. Ends this program if it fails."""
    process = subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with sampled(psutil.Process(process.pid), {}, interval) as found:
        _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: failed\n{errors.decode()}")
    return found


class CpuByKind:
    """CPU seconds of all that `root` started, by kind of process, as they were when one was last looked at."""

    def __init__(self, root: psutil.Process) -> None:
        self._root, self._lock = root, Lock()
        self._seen: dict[psutil.Process, tuple[str, float]] = {}

    def look(self) -> dict[str, float]:
        """Look at all processes; return the sums. What has ended counts as it was last seen."""
        with self._lock:
            for process in _tree(self._root)[1:]:
                with suppress(psutil.Error):
                    if process.cmdline():  # while it ends, it has none to tell its kind by
                        self._seen[process] = _kind(process, self._root), _cpu_seconds(process)
            sums: dict[str, float] = {}
            for kind, seconds in self._seen.values():
                sums[kind] = sums.get(kind, 0.0) + seconds
            return sums


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder; 0 without the folder."""
    total = 0
    for path, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += (Path(path) / file).stat().st_size
    return total


def _tree(root: psutil.Process) -> list[psutil.Process]:
    """Return `root` and all processes that it started."""
    with suppress(psutil.Error):
        return [root, *root.children(recursive=True)]
    return []


def _cpu_seconds(process: psutil.Process) -> float:
    """Return 0 where the process has ended."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return 0.0


def _memory(processes: list[psutil.Process]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for process in processes:
        with suppress(psutil.Error):
            kind = _kind(process, processes[0])
            sizes[kind] = sizes.get(kind, 0) + process.memory_full_info().uss
    return sizes


def _kind(process: psutil.Process, root: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    if process == root or "bin/rayrec " in words:
        return "driver"
    if process.name() == "java":
        return "executors' JVM" if "RayDPExecutor" in words or "DefaultWorker" in words else "driver's JVM"
    return "Python workers" if "spark_python_daemon" in words else "Ray"


@contextmanager
def repeated(action: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `action` at once, then every `seconds`, and once more at the end."""

    def work(ended: threading.Event) -> None:
        action()
        while not ended.wait(seconds):
            action()
        action()

    with in_background(work, "repeated"):
        yield
