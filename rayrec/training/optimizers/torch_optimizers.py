"""torch's optimizers by the recipe's settings, for the dense network and for tables with a dense gradient."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torchrec.optim import RowWiseAdagrad

from cuda_ops import rmsprop_
from rayrec.config.optimizers import DenseOptimizerConfig, EmbeddingOptimizerConfig


def build_optimizer(
    config: DenseOptimizerConfig | EmbeddingOptimizerConfig, parameters: Sequence[nn.Parameter]
) -> torch.optim.Optimizer:
    """Return the optimizer over `parameters`; its learning rate is set before every step.

    For tables it has the update rule of FBGEMM's fused optimizer, if there is one, and its state exists from the start,
    so that a checkpoint can be loaded into it.
    """
    is_table = isinstance(config, EmbeddingOptimizerConfig)
    momentum = 0.0 if isinstance(config, EmbeddingOptimizerConfig) else config.momentum
    lr, eps, decay, accumulator = config.lr, config.eps, config.weight_decay, config.initial_accumulator
    match config.kind:
        case "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=decay)
        case "adagrad":
            return torch.optim.Adagrad(
                parameters, lr=lr, eps=eps, weight_decay=decay, initial_accumulator_value=accumulator
            )
        case "rowwise_adagrad":
            return RowWiseAdagrad(parameters, lr=lr, eps=eps, initial_accumulator_value=accumulator)
        case "rmsprop":
            kind = RMSpropOfTables if is_table else torch.optim.RMSprop
            rmsprop = kind(parameters, lr=lr, alpha=config.rho, eps=eps, momentum=momentum, weight_decay=decay)
            return _with_state(rmsprop, parameters, "square_avg") if is_table else rmsprop
        case "adam" | "adamw":
            # For tables AdamW, as the weight decay of FBGEMM's Adam is decoupled. It updates a row as the fused one
            # does, but all rows at every step. `fused` here: a loop over small parameters took as long as the tables.
            rule = torch.optim.Adam if config.kind == "adam" and not is_table else torch.optim.AdamW
            adam = rule(parameters, lr=lr, betas=config.betas, eps=eps, weight_decay=decay, fused=True)
            return _with_state(adam, parameters, "exp_avg", "exp_avg_sq") if is_table else adam
        case "ftrl":
            return FTRL(
                parameters,
                lr=lr,
                lr_power=config.lr_power,
                initial_accumulator=accumulator,
                l1=config.l1,
                l2=config.l2,
                beta=config.beta,
            )


class RMSpropOfTables(torch.optim.RMSprop):
    """torch's RMSprop without momentum, in one pass over each table (`cuda_ops.rmsprop`)."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; without a closure."""
        for group in self.param_groups:
            settings = {name: group[name] for name in ("lr", "alpha", "eps", "weight_decay")}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rmsprop_(parameter, self.state[parameter]["square_avg"], parameter.grad, **settings)


def table_moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return the optimizer's state of one table as a checkpoint keeps it, by FBGEMM's names if FBGEMM has the
    optimizer.
    """
    state = optimizer.state[parameter]
    match optimizer:
        case FTRL():
            return {"accumulator": state["accumulator"], "linear": state["linear"]}
        case torch.optim.RMSprop():
            return {"square_avg": state["square_avg"]}
        case torch.optim.AdamW():
            return {"momentum1": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"], "step": state["step"]}
        case RowWiseAdagrad():
            # It keeps (rows, 1); its fused twin has (rows,).
            return {"momentum1": state["sum"].view(-1)}
        case torch.optim.Adagrad():
            return {"momentum1": state["sum"]}
        case torch.optim.SGD():
            return {}
        case _:
            raise AssertionError(f"the state of {type(optimizer).__name__} has no names in checkpoints")


def _with_state(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], *moments: str
) -> torch.optim.Optimizer:
    """Set the state that torch would make at the first step."""
    for parameter in parameters:
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            **{name: torch.zeros_like(parameter) for name in moments},
        }
    return optimizer


class FTRL(Optimizer):
    """FTRL-proximal, for parameters that start at 0; it keeps two moments a coordinate.

    McMahan et al. 2013, "Ad click prediction: a view from the trenches", algorithm 1, as TensorFlow defines it
    (`tf.raw_ops.ResourceApplyFtrlV2`).

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
