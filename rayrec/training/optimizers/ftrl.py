"""FTRL-proximal (McMahan et al. 2013, "Ad click prediction: a view from the trenches", algorithm 1), as TensorFlow
defines it (`tf.raw_ops.ResourceApplyFtrlV2`)."""

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class FTRL(Optimizer):
    """An optimizer for parameters that start at 0; it keeps two moments a coordinate.

    With gradient g, weight w, and n starting at `initial_accumulator`, z at 0:

        n' = n + g^2
        z' = z + g - (n'^-p - n^-p) / lr * w
        w' = (l1 sign(z') - z') / ((n'^-p + beta) / lr + 2 l2) where |z'| > l1, else 0

    where p = `lr_power`, -0.5 in the paper. So w' minimizes the sum of all gradients' linear approximations, each with
    its proximal term, plus l1 |w| + l2 w^2. A coordinate without a gradient keeps its weight while `lr` does: the dense
    update is then that of the coordinates that occur. At `lr` 0 nothing changes.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        lr_power: float = -0.5,
        initial_accumulator: float = 0.1,
        l1: float = 0.0,
        l2: float = 0.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "lr_power": lr_power, "l1": l1, "l2": l2, "beta": beta})
        for group in self.param_groups:
            for parameter in group["params"]:
                # From the start, so that a checkpoint can be loaded into them.
                self.state[parameter] = {
                    "accumulator": torch.full_like(parameter, initial_accumulator),
                    "linear": torch.zeros_like(parameter),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient; `closure`, if given, computes the loss first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters and group["lr"] > 0:
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Update the parameters by operations over the whole list, as there may be many small tables."""
        lr, l1, power = group["lr"], group["l1"], -group["lr_power"]
        gradients = [cast(Tensor, p.grad) for p in parameters]
        accumulators = [self.state[p]["accumulator"] for p in parameters]
        linears = [self.state[p]["linear"] for p in parameters]

        shifts = _power(accumulators, power)
        torch._foreach_addcmul_(accumulators, gradients, gradients)
        rates = _power(accumulators, power)
        torch._foreach_sub_(shifts, rates)
        torch._foreach_mul_(shifts, parameters)
        torch._foreach_add_(linears, gradients)
        torch._foreach_add_(linears, shifts, alpha=1 / lr)

        torch._foreach_add_(rates, group["beta"])
        torch._foreach_div_(rates, lr)
        torch._foreach_add_(rates, 2 * group["l2"])
        # A coordinate that never had a gradient may have none of these: 0 / 0.
        torch._foreach_clamp_min_(rates, torch.finfo(rates[0].dtype).tiny)
        weights = torch._foreach_clamp_min(linears, -l1)
        torch._foreach_clamp_max_(weights, l1)
        torch._foreach_sub_(weights, linears)
        torch._foreach_div_(weights, rates)
        torch._foreach_copy_(parameters, weights)


def _power(tensors: list[Tensor], exponent: float) -> list[Tensor]:
    return list(torch._foreach_sqrt(tensors) if exponent == 0.5 else torch._foreach_pow(tensors, exponent))
