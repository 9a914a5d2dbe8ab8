"""Limits of the machine are said in one line before Ray starts, and by `rayrec doctor`."""

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster import machine_limits as limits
from cluster.machine_limits import MachineCheck, machine_limits, require_room, temporary_folder
from jobs.command import Request
from jobs.doctor import run
from rayrec.common.errors import UserError
from rayrec.common.progress import SilentProgress
from tests.cgroup_files import V2, process_folder

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:3])))
from cluster.machine_limits import connections_of_haproxy, machine_limits, require_room
print(connections_of_haproxy(), next(machine_limits()).status)
from cluster.ray_session import ray_session
with ray_session():
    print("started")
"""


def _found(name: str, **where: Path) -> MachineCheck:
    (limit,) = [limit for limit in machine_limits(**where) if limit.name == name]
    return limit


def test_too_few_files_are_said_before_ray_starts() -> None:
    """The soft limit does not count, because Ray and HAProxy raise it."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-c", LIMITED, "300", "400"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "started" not in done.stdout
    assert done.stdout.split() == ["108", "fail"]
    last = done.stderr.splitlines()[-1]
    assert "UserError: Ray cannot run on this machine: open files: 400 per process" in last and "ulimit -Hn" in last


@pytest.mark.parametrize(
    ("files", "connections", "status"),
    [(511, 153, "fail"), (600, 188, "warn"), (5_000, 1_948, "warn"), (65_536, 4_096, "ok"), (-1, 4_096, "ok")],
)
def test_connections_fit_the_files(files: int, connections: int, status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, files))
    assert limits.connections_of_haproxy() == connections
    found = _found("Open files")
    assert found.status == status
    # HAProxy counts its two ends, and pipes for every fourth connection.
    assert files == -1 or connections * 2 + 2 * (connections // 4) + 100 < files
    assert (f"{connections:,} connections" in found.found) is (status == "warn")


@pytest.mark.parametrize(
    ("cgroup", "mounted", "files", "status"),
    [
        ("0::/pod/box\n", V2, {"cg/pod/pids.max": "5000", "cg/pod/pids.current": "17"}, "ok"),
        ("0::/pod/box\n", V2, {"cg/pod/pids.max": "1000", "cg/pod/pids.current": "300"}, "warn"),
        ("0::/pod/box\n", V2, {"cg/pod/pids.max": "1000", "cg/pod/pids.current": "800"}, "fail"),
        ("0::/pod/box\n", V2, {"cg/pod/box/pids.max": "max", "cg/pod/box/pids.current": "800"}, "ok"),
        ("7:pids:/a\n", "cgroup cgroup rw,pids", {"cg/a/pids.max": "120", "cg/a/pids.current": "1"}, "fail"),
        ("7:cpu:/a\n", "cgroup cgroup rw,cpu", {"cg/a/pids.max": "120", "cg/a/pids.current": "1"}, "ok"),
    ],
)
def test_room_for_processes(cgroup: str, mounted: str, files: dict[str, str], status: str, tmp_path: Path) -> None:
    process = process_folder(tmp_path, cgroup, [("/", "cg", mounted)], files)
    found = _found("Processes", process=process)
    assert found.status == status and found.fix


def test_root_is_not_limited_by_the_users_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 100))
    for user, status in ((0, "ok"), (1000, "fail")):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert _found("Processes", process=tmp_path).status == status


def test_small_shared_memory_puts_the_object_store_on_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = SimpleNamespace(total=2**40, free=3 * 2**30)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(limits, "available_memory", lambda: 8 * 2**30)
    assert _found("Shared memory", shared_memory=tmp_path).status == "ok"
    monkeypatch.setattr(limits, "available_memory", lambda: 20 * 2**30)
    found = _found("Shared memory", shared_memory=tmp_path)
    assert found.status == "warn" and str(temporary_folder()) in found.found and "--shm-size=6g" in found.fix
    assert _found("Shared memory", shared_memory=tmp_path / "nowhere").status == "warn"


@pytest.mark.parametrize(
    ("name", "status", "text"),
    [
        ("t", "ok", "free at"),
        ("nowhere/at/all", "fail", "no such file"),
        ("x" * 40, "fail", "at most 39"),
        ("προσωρινά", "fail", "ASCII"),
        ("a'b", "fail", "ASCII"),
        ('a b%;"c', "ok", "free at"),
    ],
)
def test_the_folder_for_temporary_files(name: str, status: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest's own folders are longer than Ray's sockets allow.
    folder = Path(f"/tmp/rl{os.getpid()}") / name
    if status == "ok" or "nowhere" not in name:
        folder.mkdir(parents=True)
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    monkeypatch.setenv("TMPDIR", "/tmp")
    # A disk of this machine that is nearly full would be a warning.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**40, free=2**39))
    try:
        found = _found("Temporary files")
        assert (found.status, text in found.found) == (status, True), found
        if status == "fail":
            with pytest.raises(UserError, match=r"temporary files: .*RAY_TMPDIR"):
                require_room(serves=False)
        # Ray makes its folder elsewhere where nobody asked for this one in particular.
        monkeypatch.delenv("RAY_TMPDIR")
        monkeypatch.setenv("TMPDIR", str(folder))
        does = status == "ok" or "nowhere" in name
        assert temporary_folder() == (folder if does else Path("/tmp"))
    finally:
        shutil.rmtree(f"/tmp/rl{os.getpid()}", ignore_errors=True)


@pytest.mark.parametrize(
    ("free", "flag", "status", "text"),
    [
        (2**40, 0, "ok", "free at"),
        (100 * 2**20, 0, "fail", "MiB free"),
        (4 * 2**30, 0, "warn", "4.0 GiB free"),
        (2**36, 0, "warn", "64.0 GiB free"),  # less than 5 % of the disk
        (2**40, os.ST_NOEXEC, "warn", "noexec"),
        (2**40, os.ST_RDONLY, "fail", "not writable"),
    ],
)
def test_the_disk_of_temporary_files(
    free: int, flag: int, status: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=2**41, free=free))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flag))
    found = _found("Temporary files")
    assert (found.status, text in found.found) == (status, True), found


def test_ray_looks_for_its_folder_as_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade may change these private parts of Ray: adapt cluster/machine_limits.py."""
    from ray._common.utils import get_default_system_temp_dir

    for variables in ({}, {"TMPDIR": "/a"}, {"TMPDIR": "/a", "RAY_TMPDIR": "/b"}):
        for name in ("TMPDIR", "RAY_TMPDIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert str(temporary_folder()) == get_default_system_temp_dir()


def test_the_doctor_shows_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.doctor.check_torch", list)
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy.invalid:3128")
    checks = {check["name"]: check for check in run(Request(), SilentProgress()).details["checks"]}
    assert {limit.name for limit in machine_limits()} | {
        "Proxies",
        "IPv6",
        "HAProxy",
        "Java",
        "Memory",
    } <= checks.keys()
    assert "HTTPS_PROXY" in checks["Proxies"]["found"] and "secret" not in str(checks)
