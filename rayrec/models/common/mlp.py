"""Multi-layer perceptrons."""

from collections.abc import Sequence

import torch
from torch import nn


def hidden_layers(in_features: int, widths: Sequence[int], device: torch.device) -> nn.Sequential:
    """Linear and ReLU for each width: (B, in_features) -> (B, widths[-1])."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Linear(in_features, width, device=device), nn.ReLU()]
        in_features = width
    return nn.Sequential(*layers)


def scoring_layers(in_features: int, widths: Sequence[int], device: torch.device) -> nn.Sequential:
    """Hidden layers of `widths`, then a linear layer to one logit: (B, in_features) -> (B, 1)."""
    layers = hidden_layers(in_features, widths, device)
    layers.append(nn.Linear(widths[-1], 1, device=device))
    return layers
