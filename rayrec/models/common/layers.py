"""Multi-layer perceptrons, and the dtype in which they compute under autocast."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class LinearOfPadded(nn.Linear):
    """A linear layer whose input may have more columns than `in_features`; it ignores these."""

    def forward(self, input: Tensor) -> Tensor:
        """(B, in_features or more) -> (B, out_features)."""
        padding = input.shape[-1] - self.in_features
        # Weights of 0, and no view of the columns: they are there so that rows begin at multiples of 16 bytes.
        weight = F.pad(self.weight, (0, padding)) if padding else self.weight
        return F.linear(input, weight, self.bias)


def hidden_layers(
    in_features: int,
    widths: Sequence[int],
    device: torch.device,
    *,
    linear: type[nn.Linear] = nn.Linear,
    dropout: float | None = None,
) -> nn.Sequential:
    """Linear, ReLU and, unless `dropout` is None, dropout for each width: (B, in_features) -> (B, widths[-1])."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [linear(in_features, width, device=device), nn.ReLU()]
        if dropout is not None:
            layers.append(nn.Dropout(dropout))
        in_features = width
    return nn.Sequential(*layers)


def scoring_layers(
    in_features: int,
    widths: Sequence[int],
    device: torch.device,
    *,
    linear: type[nn.Linear] = nn.Linear,
    dropout: float | None = None,
) -> nn.Sequential:
    """Hidden layers of `widths`, then a linear layer to one logit: (B, in_features) -> (B, 1)."""
    layers = hidden_layers(in_features, widths, device, linear=linear, dropout=dropout)
    layers.append(linear(widths[-1], 1, device=device))
    return layers


def to_autocast_dtype(tensor: Tensor) -> Tensor:
    """`tensor` in autocast's dtype where autocast is on for its device, else unchanged.

    Autocast promotes a concatenation to the widest dtype, so that float32 embeddings would keep what follows them in
    float32.
    """
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
