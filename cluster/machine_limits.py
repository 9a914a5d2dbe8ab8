"""Limits of this machine that a Ray session meets; each look takes well under 10 ms.

Ray, Java and HAProxy meet these limits half a minute after they were started, and say so in a traceback.
"""

import logging
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from rayrec.common.errors import UserError
from rayrec.common.machine import available_memory, cgroups, number_in
from rayrec.common.text import format_bytes

logger = logging.getLogger(__name__)

Status = Literal["ok", "warn", "fail"]
_FILES = "Open files"
_MIB, _GIB = 2**20, 2**30
_LEAST_FILES = 512
"""Spark's Java opens 330 files on one machine, a process of Ray's 70, and more where more workers run."""
_LEAST_PROCESSES, _PROCESSES = 300, 600
"""Processes and threads of a session: 320 where two workers train or a model is served on two CPUs, 570 with Spark."""
_SOCKET, _LONGEST_SOCKET = "ray/session_2000-12-31_23-59-59_999999_1234567/sockets/plasma_store", 107
"""The longest path of a socket in the folder for temporary files, and the most bytes that Linux takes."""
_LEAST_TEMPORARY = 200 * _MIB
"""Bytes of a session's logs, and of a library that Ray unpacks for Java."""
_LARGEST_STORE = 10**10
"""Bytes that Ray's object store has at most where there is less shared memory."""
_MOST_CONNECTIONS = 4096
"""Connections that HAProxy takes at once where files suffice, as Ray Serve has it."""
_OTHER_FILES = 128


class MachineCheck(NamedTuple):
    """One thing about the machine that was checked."""

    name: str
    found: str
    status: Status
    fix: str = ""
    """What to do unless the status is `ok`."""


def require_room(*, serves: bool) -> None:
    """Raise UserError, of one line, if a Ray session cannot run here; log what makes it slow or small.

    `serves`: clients will connect.
    """
    for name, found, status, fix in machine_limits():
        text = f"{name.lower()}: {found}; {fix}"
        if status == "fail":
            raise UserError(f"Ray cannot run on this machine: {text}")
        if status == "warn" and (serves or name != _FILES):
            logger.warning("%s", text)


def machine_limits(
    process: Path = Path("/proc/self"), shared_memory: Path = Path("/dev/shm")
) -> Iterator[MachineCheck]:
    """Yield the limits of a process, whose folder of /proc is given, on the machine's resources."""
    yield _open_files()
    yield _processes(process)
    yield _shared_memory(shared_memory)
    yield _temporary_files(temporary_folder())


def temporary_folder() -> Path:
    """Return the folder in which Ray makes `ray`, with sockets and logs of sessions: /tmp where TMPDIR does not do."""
    if given := os.environ.get("RAY_TMPDIR"):
        return Path(given)
    folder = Path(os.environ.get("TMPDIR") or "/tmp")
    return folder if _can_have_sockets(folder) else Path("/tmp")


def _can_have_sockets(folder: Path) -> bool:
    is_short = len(os.fsencode(folder / _SOCKET)) <= _LONGEST_SOCKET
    return is_short and str(folder).isascii() and "'" not in str(folder)


def connections_of_haproxy() -> int:
    """Return how many connections at once HAProxy can take, at most 4,096: it does not start where it needs more files.

    It counts two and a half of them for each: its two ends, and pipes between the ends for every fourth.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, max(1, (files - _OTHER_FILES) * 2 // 5))


def _open_files() -> MachineCheck:
    """Look at the hard limit: Ray and HAProxy raise the soft one to it."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    connections = connections_of_haproxy()
    fix = "raise the hard limit (ulimit -Hn, LimitNOFILE, docker --ulimit nofile=65536:65536)"
    if files == resource.RLIM_INFINITY:
        return MachineCheck(_FILES, "no limit", "ok", fix)
    if files < _LEAST_FILES:
        return MachineCheck(_FILES, f"{files:,} per process; Ray needs {_LEAST_FILES}", "fail", fix)
    found = f"{files:,} per process"
    if connections == _MOST_CONNECTIONS:
        return MachineCheck(_FILES, found, "ok", fix)
    return MachineCheck(_FILES, f"{found}: a server accepts at most {connections:,} connections", "warn", fix)


def _processes(process: Path) -> MachineCheck:
    """Look at what pids.max of the cgroups leaves, and at the user's limit, which does not count for root."""
    fix = "raise the limit (ulimit -u, TasksMax, docker --pids-limit, the kubelet's podPidsLimit)"
    limits = [] if os.geteuid() == 0 else [resource.getrlimit(resource.RLIMIT_NPROC)[1]]
    for folder in cgroups("pids", process):
        most, now = number_in(folder / "pids.max"), number_in(folder / "pids.current")
        limits += [] if most is None or now is None else [max(0, most - now)]
    room = min((limit for limit in limits if limit != resource.RLIM_INFINITY), default=None)
    if room is None:
        return MachineCheck("Processes", "no limit", "ok", fix)
    found = f"room for {room:,} processes and threads"
    if room >= 2 * _PROCESSES:
        return MachineCheck("Processes", found, "ok", fix)
    status: Status = "warn" if room >= _LEAST_PROCESSES else "fail"
    return MachineCheck(
        "Processes", f"{found}; a Ray session needs {_LEAST_PROCESSES}, with Spark {_PROCESSES}", status, fix
    )


def _shared_memory(folder: Path) -> MachineCheck:
    """Look if there is room for Ray's object store, 30 % of the memory; Ray puts all of it on a disk otherwise."""
    free = shutil.disk_usage(folder).free if folder.exists() else 0
    store = min(3 * available_memory() // 10, _LARGEST_STORE)
    found = f"{format_bytes(free)} free at {folder}"
    if free >= store:
        return MachineCheck("Shared memory", found, "ok", "")
    fix = f"start the container with --shm-size={-(-store // _GIB)}g (Kubernetes: an emptyDir of medium Memory there)"
    return MachineCheck(
        "Shared memory", f"{found}: Ray's object store is in {temporary_folder()}, on a disk", "warn", fix
    )


def _temporary_files(folder: Path) -> MachineCheck:
    """Check the folder of temporary files.

    It has Ray's sessions, the copies of its library that Java maps, Spark's shuffle and HAProxy's program.
    """
    name, elsewhere = "Temporary files", "or set RAY_TMPDIR to another folder"
    try:
        usage, flags = shutil.disk_usage(folder), os.statvfs(folder).f_flag
    except OSError as error:
        return MachineCheck(
            name, f"{folder}: {(error.strerror or str(error)).lower()}", "fail", f"create it, {elsewhere}"
        )
    made = folder / "ray"
    written = made if made.exists() else folder
    if flags & os.ST_RDONLY or not os.access(written, os.W_OK | os.X_OK):
        return MachineCheck(name, f"{written} is not writable", "fail", f"change its permissions, {elsewhere}")
    if not _can_have_sockets(folder):
        most = _LONGEST_SOCKET - len(_SOCKET) - 1
        found = f"{folder}: Ray needs a path of at most {most} ASCII characters without apostrophes"
        return MachineCheck(name, found, "fail", "set RAY_TMPDIR to another folder, such as /tmp")
    found = f"{format_bytes(usage.free)} free at {folder}"
    if flags & os.ST_NOEXEC:
        return MachineCheck(
            name, f"{folder} is mounted noexec: Spark and HAProxy do not run", "warn", f"remount it, {elsewhere}"
        )
    if usage.free < _LEAST_TEMPORARY:
        return MachineCheck(name, found, "fail", f"free some space, {elsewhere}")
    # Ray writes no more objects to a disk that is 95 % full.
    if usage.free < 5 * _GIB or usage.free < usage.total / 20:
        return MachineCheck(name, found, "warn", f"free some space, {elsewhere}")
    return MachineCheck(name, found, "ok", "")
