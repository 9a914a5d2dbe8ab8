"""The optimizer of the dense network."""

from collections.abc import Iterable

import torch
from torch import nn

from rayrec.config.train import DenseOptimizerConfig


def build_dense_optimizer(config: DenseOptimizerConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """A torch optimizer over `parameters`; its learning rate is set before every step."""
    trained = list(parameters)
    match config.kind:
        case "sgd":
            return torch.optim.SGD(trained, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
        case "adagrad":
            return torch.optim.Adagrad(trained, lr=config.lr, eps=config.eps, weight_decay=config.weight_decay)
        case "adam" | "adamw":
            kind = torch.optim.Adam if config.kind == "adam" else torch.optim.AdamW
            # Fused: the network's parameters are small, and a loop over them took as long as the tables' update.
            return kind(
                trained, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True
            )
