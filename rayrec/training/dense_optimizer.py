"""The optimizers of the dense network: of its deep part, and of a wide one."""

from collections.abc import Iterable

import torch
from torch import nn

from rayrec.config.train import DenseOptimizerConfig, WideOptimizerConfig
from rayrec.training.ftrl import FTRL


def build_dense_optimizer(config: DenseOptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """A torch optimizer over `parameters`; its learning rate is set before every step."""
    trained = list(parameters)
    match config.kind:
        case "sgd":
            return torch.optim.SGD(trained, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
        case "adagrad":
            return torch.optim.Adagrad(
                trained,
                lr=config.lr,
                eps=config.eps,
                weight_decay=config.weight_decay,
                initial_accumulator_value=config.initial_accumulator,
            )
        case "rmsprop":
            return torch.optim.RMSprop(
                trained,
                lr=config.lr,
                alpha=config.rho,
                eps=config.eps,
                momentum=config.momentum,
                weight_decay=config.weight_decay,
            )
        case "adam" | "adamw":
            kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
            # Fused: the network's parameters are small, and a loop over them took as long as the tables' update.
            return kind(
                trained, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
            )


def build_wide_optimizer(config: WideOptimizerConfig, parameters: Iterable[nn.Parameter]) -> FTRL:
    """FTRL over `parameters`; its learning rate is set before every step."""
    return FTRL(
        parameters,
        lr=config.lr,
        lr_power=config.lr_power,
        initial_accumulator=config.initial_accumulator,
        l1=config.l1,
        l2=config.l2,
        beta=config.beta,
    )
