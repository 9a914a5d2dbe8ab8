"""Blocks of a transformer (Vaswani et al. 2017, arXiv:1706.03762) over padded sequences.

Shapes: B sequences, L positions, D columns, H heads.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayrec.models.common.initialization import copy_normal
from rayrec.models.common.layers import Dropout, Linear, hidden_layers


class Block(nn.Module):
    """Attention, then a feed-forward network of one hidden layer, each added to what went in and behind a layer norm
    (pre-norm: Xiong et al. 2020, arXiv:2002.04745).
    """

    def __init__(self, width: int, heads: int, dropout: float, device: torch.device) -> None:
        super().__init__()
        self._heads = heads
        self.attention_norm, self.hidden_norm = LayerNorm(width, device=device), LayerNorm(width, device=device)
        self.inputs = Linear(width, 3 * width, bias=False, device=device)
        """Queries, keys and values side by side. A bias of keys would change nothing, and Adam let it drift."""
        self.output = Linear(width, width, device=device)
        self.hidden = hidden_layers(width, [4 * width], device)
        self.hidden_output = Linear(4 * width, width, device=device)
        self.dropout = Dropout(dropout)

    def forward(
        self, x_BLD: Tensor, *, is_causal: bool = False, is_there_BL: Tensor | None = None, first: int | None = None
    ) -> Tensor:
        """Return (B, L, D), or (B, `first`, D) of the first positions alone.

        `is_causal`: a position attends to itself and to earlier ones, else to all, or to those that are there.
        """
        inputs = self.inputs(self.attention_norm(x_BLD)).unflatten(2, (3, self._heads, -1))
        query_BHLE, key_BHLE, value_BHLE = inputs.permute(2, 0, 3, 1, 4).unbind(0)
        mask_B11L = None if is_there_BL is None else is_there_BL[:, None, None]
        found_BHLE = F.scaled_dot_product_attention(
            query_BHLE[:, :, :first], key_BHLE, value_BHLE, attn_mask=mask_B11L, is_causal=is_causal
        )
        x_BLD = x_BLD[:, :first] + self.dropout(self.output(found_BHLE.transpose(1, 2).flatten(2)))
        return x_BLD + self.dropout(self.hidden_output(self.hidden(self.hidden_norm(x_BLD))))


class LayerNorm(nn.LayerNorm):
    """Layer normalization, which begins without scale and shift."""

    def initialize(self, generator: torch.Generator) -> None:
        """Set the scale to 1 and the shift to 0."""
        self.reset_parameters()


class Positions(nn.Module):
    """A learned vector for each position from 0 on."""

    def __init__(self, length: int, width: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(length, width, device=device))

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Add the vectors of positions 0 ... L - 1 to (B, L, D)."""
        return x_BLD + self.weight[: x_BLD.shape[1]]

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the vectors from N(0, 0.02^2)."""
        copy_normal(self.weight, 0.02, generator)
