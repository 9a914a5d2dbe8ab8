"""torch's optimizers by the recipe's settings, for the dense network and for tables with a dense gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.optim import RowWiseAdagrad

from cuda_ops import rmsprop_
from rayrec.config.optimizers import DenseOptimizerConfig, EmbeddingOptimizerConfig
from rayrec.training.optimizers.ftrl import FTRL


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
        case _:
            return {}


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
