"""Decides which number format a dense network computes in, says why, and measures the error that it makes."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rayrec.common.errors import ConfigError
from rayrec.config.train import DeviceName

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Precision:
    """Number format of the dense network; embedding tables and master weights stay float32."""

    name: PrecisionName
    device: DeviceName
    reason: str
    """Why this was picked, for the log."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast of the dense network."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)
        return torch.autocast(self.device, dtype=dtype) if dtype is not None else nullcontext()

    def on_the_wire(self, wanted: Literal["auto", "fp32", "bf16"]) -> torch.dtype:
        """Return the format in which pooled embeddings travel between ranks: see `ShardingConfig.wire`."""
        is_half = wanted == "bf16" or (wanted == "auto" and self.name == "bf16" and self.device == "cuda")
        return torch.bfloat16 if is_half else torch.float32

    def pooled(self, wire: torch.dtype) -> torch.dtype:
        """Return the format of pooled embeddings in training: that of the wire where the network rounds to it anyway.

        Only GPUs: FBGEMM's kernels for CPUs have no bfloat16.
        """
        return wire if self.name == "bf16" and self.device == "cuda" else torch.float32

    def apply_to_process(self) -> None:
        """Set the process-wide matmul mode."""
        torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = self.name == "tf32"


def resolve_precision(
    wanted: Literal["auto"] | PrecisionName, device: DeviceName, field: str = "train.precision"
) -> Precision:
    """Pick what the hardware does well. Must run on a worker, whose hardware decides.

    Raises ConfigError, which names `field`, where the device has no such format.
    """
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        name = f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
        if wanted == "auto":
            if major >= 8:
                return Precision("bf16", device, f"{name} has bfloat16 tensor cores")
            if major == 7:
                return Precision("fp16", device, f"{name} has float16 tensor cores and no bfloat16")
            return Precision("fp32", device, f"{name} has no tensor cores")
        if wanted in {"bf16", "tf32"} and major < 8:
            raise ConfigError(f"{field}: {name} has no {wanted}; use fp16, fp32 or auto")
    elif wanted == "tf32":
        raise ConfigError(f"{field}: tf32 is a mode of NVIDIA GPUs; use fp32, bf16 or auto on a CPU")
    elif wanted == "auto":
        fast = sorted({"amx_bf16", "avx512_bf16"} & cpu_flags())
        if fast:
            return Precision("bf16", device, f"this CPU has {fast[0]}")
        return Precision("fp32", device, "no bfloat16 instructions")
    return Precision(wanted, device, "asked for")


def cpu_flags() -> set[str]:
    """Return the processor's feature flags; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())


@dataclass
class AmpError:
    """Adds up how far probabilities of mixed precision (AMP) are from those of float32."""

    rows: int = 0
    largest: float = 0.0
    total: float = 0.0

    def add(self, scores: NDArray[np.float32], exact: NDArray[np.float32]) -> None:
        """Compare the probabilities (n,) of n further rows with their exact ones."""
        differences = np.abs(scores.astype(np.float64) - exact)
        self.rows += len(differences)
        self.largest = max(self.largest, float(differences.max(initial=0.0)))
        self.total += float(differences.sum())

    @classmethod
    def of_all(cls, errors: Iterable["AmpError"]) -> "AmpError":
        """Join the rows of several."""
        rows, largest, totals = zip(*((error.rows, error.largest, error.total) for error in errors), strict=True)
        return cls(sum(rows), max(largest), sum(totals))

    def metrics(self) -> dict[str, float | None]:
        """Return the greatest and the mean absolute difference of the probabilities; None without rows."""
        mean = self.total / self.rows if self.rows else None
        return {"amp_error_max": self.largest if self.rows else None, "amp_error_mean": mean}
