"""Decides which number format a run computes in, and says why; loss scaling for float16."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from rayrec.common.errors import ConfigError
from rayrec.training.run.preflight import DeviceName

PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True)
class Precision:
    """How the dense network computes; embedding tables and master weights stay float32."""

    name: PrecisionName
    device: DeviceName
    reason: str
    """Why this was picked, for the log."""

    def autocast(self) -> AbstractContextManager[Any]:
        """Autocast for the dense network."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)
        return torch.autocast(self.device, dtype=dtype) if dtype is not None else nullcontext()

    def on_the_wire(self, wanted: Literal["auto", "fp32", "bf16"]) -> torch.dtype:
        """The format in which pooled embeddings travel between ranks: see `ShardingConfig.wire`."""
        is_half = wanted == "bf16" or (wanted == "auto" and self.name == "bf16" and self.device == "cuda")
        return torch.bfloat16 if is_half else torch.float32

    def pooled(self, wire: torch.dtype) -> torch.dtype:
        """The format of pooled embeddings in training: that of the wire where the network rounds to it anyway.

        Only GPUs: FBGEMM's kernels for CPUs have no bfloat16.
        """
        return wire if self.name == "bf16" and self.device == "cuda" else torch.float32

    def apply_to_process(self) -> None:
        """Set the process-wide matmul mode."""
        torch.set_float32_matmul_precision("high" if self.name == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = self.name == "tf32"


def resolve_precision(wanted: Literal["auto"] | PrecisionName, device: DeviceName) -> Precision:
    """Pick what the hardware does well. Must run on a worker, whose hardware decides."""
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
            raise ConfigError(f"train.precision: {name} has no {wanted}; use fp16, fp32 or auto")
    elif wanted == "tf32":
        raise ConfigError("train.precision: tf32 is a mode of NVIDIA GPUs; use fp32, bf16 or auto on a CPU")
    elif wanted == "auto":
        fast = sorted({"amx_bf16", "avx512_bf16"} & cpu_flags())
        if fast:
            return Precision("bf16", device, f"this CPU has {fast[0]}")
        return Precision("fp32", device, "this CPU has no bfloat16 instructions (avx512_bf16, amx_bf16)")
    return Precision(wanted, device, "asked for")


def cpu_flags() -> set[str]:
    """The processor's feature flags; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split(":", 1)[1].split()) for line in lines if line.startswith("flags")), set())


class LossScale:
    """A factor on the loss so that float16 gradients do not underflow; if dynamic, it halves when any overflows.

    Micikevicius et al. 2018, arXiv:1710.03740, section 3.2.

    torch's GradScaler cannot be used: it acts between backward and step, but the tables are updated inside backward.
    Everything stays on the device, so that nobody waits for it.
    """

    def __init__(
        self, device: torch.device, *, initial: float = 65536.0, growth_interval: int = 2000, dynamic: bool = True
    ) -> None:
        self.scale = torch.full((), initial, device=device)
        self._growth_interval, self._dynamic = growth_interval, dynamic
        self._clean_steps = torch.zeros((), dtype=torch.int32, device=device)

    @classmethod
    def of(cls, wanted: float | Literal["dynamic"], device: torch.device) -> "LossScale":
        """See `TrainConfig.loss_scale`."""
        return cls(device) if wanted == "dynamic" else cls(device, initial=wanted, dynamic=False)

    def unscale_(self, gradients: list[Tensor]) -> Tensor:
        """Divide `gradients` by the scale in place; () float32: 1 if a gradient of any rank is not finite, else 0.

        Must be called on every rank. Adapts a dynamic scale: half after an overflow, double after `growth_interval`
        steps without one.
        """
        overflow = torch.zeros((), device=self.scale.device)
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, self.scale.reciprocal())
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        if self._dynamic:
            torch._amp_update_scale_(self.scale, self._clean_steps, overflow, 2.0, 0.5, self._growth_interval)
        return overflow

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale.item(), "clean_steps": int(self._clean_steps.item())}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on as another scale was; one that is not dynamic stays."""
        if self._dynamic:
            self.scale.fill_(state["scale"])
            self._clean_steps.fill_(int(state["clean_steps"]))
