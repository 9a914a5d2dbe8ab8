"""Under which conditions something was measured: the machine, what else it did, the versions."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rayrec.common.cpus import cpu_limits

_PACKAGES = (
    "torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "numpy", "pyarrow", "ray", "raydp", "pyspark", "triton",
)  # fmt: skip


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement, which begins when this object is made."""

    load_at_start: tuple[float, float, float] = field(default_factory=os.getloadavg)

    def described(self) -> dict[str, Any]:
        """Describe it for a file of results as the measurement ends; loads are averages over 1, 5 and 15 minutes."""
        limits = cpu_limits()
        return {
            "cpu": _cpu_model(),
            "cores": limits.machine,
            "cpus_usable": limits.available,
            "load_at_start": [round(load, 2) for load in self.load_at_start],
            "load_at_end": [round(load, 2) for load in os.getloadavg()],
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "versions": {"rayrec": _own_version(), "python": platform.python_version(), **_versions()},
        }


def describe_machine(described: dict[str, Any]) -> str:
    """`AMD EPYC, 2 of 2 CPUs, load 0.1 to 1.9`: the line of a measurement's text, from what `described` gives."""
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


def _versions() -> dict[str, str]:
    """List the versions of the installed packages that speed depends on."""
    return {name: found for name in _PACKAGES if (found := _version(name)) is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
