"""Loss scaling for float16."""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor


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
