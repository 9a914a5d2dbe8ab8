"""Dynamic loss scaling for float16 (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2)."""

import torch
import torch.distributed as dist
from torch import Tensor


class LossScale:
    """Multiplies the loss so that float16 gradients do not underflow; halves when any gradient overflows.

    torch's GradScaler cannot be used: it acts between backward and step, but the tables are updated inside backward.
    """

    def __init__(self, device: torch.device, *, initial: float = 65536.0, growth_interval: int = 2000) -> None:
        self.scale = torch.full((), initial, device=device)
        self._growth_interval = growth_interval
        self._clean_steps = 0

    def unscale_(self, gradients: list[Tensor]) -> bool:
        """Divide `gradients` by the scale in place; whether all gradients of all ranks are finite.

        Must be called on every rank. Adapts the scale: half after an overflow, double after `growth_interval` steps
        without one.
        """
        found = torch.zeros((), device=self.scale.device)
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, self.scale.reciprocal())
        if dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        finite = not found.item()
        if not finite:
            self.scale.mul_(0.5)
            self._clean_steps = 0
        else:
            self._clean_steps += 1
            if self._clean_steps == self._growth_interval:
                self.scale.mul_(2.0)
                self._clean_steps = 0
        return finite

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale.item(), "clean_steps": self._clean_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale.fill_(state["scale"])
        self._clean_steps = int(state["clean_steps"])
