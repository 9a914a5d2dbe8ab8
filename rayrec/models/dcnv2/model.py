"""DCN-V2: Deep & Cross Network, version 2 (Wang et al. 2021, arXiv:2008.13535), stacked, low-rank cross layers.

Shapes: B rows, N numeric features, W width of the cross network, R rank of its layers.
"""

import torch
from torch import Tensor, nn

from rayrec.features.schema import Schema
from rayrec.models.common.embedding_tables import UniformByRows, pooled_features
from rayrec.models.common.initialization import copy_normal
from rayrec.models.common.layers import Linear, hidden_layers, scoring_layers, to_autocast_dtype
from rayrec.models.common.ranking import RankingModel
from rayrec.models.common.sequences import HistoryEncoders, lengths_of, read_histories
from rayrec.models.dcnv2.config import DCNv2Config

KERNEL_STD = 0.05
"""The standard deviation of the cross layers' truncated normal kernels: Keras' default, as published."""


def build(config: DCNv2Config, schema: Schema, device: torch.device) -> RankingModel:
    """Build DCN-V2 for the features of `schema`."""
    schema = schema.with_embedding_dims(config.embedding_dim, config.embedding_dims)
    histories = read_histories(config.sequences, schema)
    pooled = pooled_features(schema, UniformByRows(), lengths_of(histories))
    sequences = HistoryEncoders(histories, pooled, device)
    return RankingModel(schema, pooled, DCNv2DenseNetwork(config, schema.dense_width, sequences, device), device)


class DCNv2DenseNetwork(nn.Module):
    """Cross layers over [bottom MLP's output, pooled embeddings], then the top MLP to one logit.

    Without numeric features there is no bottom MLP, and the cross layers see the embeddings alone.
    """

    def __init__(self, config: DCNv2Config, numeric: int, sequences: HistoryEncoders, device: torch.device) -> None:
        super().__init__()
        self.sequences = sequences
        self.bottom_mlp = hidden_layers(numeric, config.bottom_mlp, device) if numeric else None
        width = sum(sequences.widths) + (config.bottom_mlp[-1] if numeric else 0)
        self.cross_layers = nn.ModuleList(
            LowRankCrossLayer(width, config.cross_rank, device) for _ in range(config.cross_layers)
        )
        self.top_mlp = scoring_layers(width, config.top_mlp, device)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Score dense (B, N) float32, pooled (B, sum of widths) in the schema's order -> logits (B,) float32."""
        x0_BW = to_autocast_dtype(self.sequences(pooled))
        if self.bottom_mlp is not None:
            x0_BW = torch.cat([to_autocast_dtype(self.bottom_mlp(dense)), x0_BW], dim=1)
        x_BW = x0_BW
        for layer in self.cross_layers:
            x_BW = layer(x0_BW, x_BW)
        logits: Tensor = self.top_mlp(x_BW)
        return logits.squeeze(1).float()


class LowRankCrossLayer(nn.Module):
    """x_{l+1} = x_0 * (V (U x_l) + b) + x_l, with U of (R, W) and V of (W, R) (paper, equation 2)."""

    def __init__(self, width: int, rank: int, device: torch.device) -> None:
        super().__init__()
        self.u = Linear(width, rank, bias=False, device=device)
        self.v = Linear(rank, width, device=device)

    def forward(self, x0_BW: Tensor, x_BW: Tensor) -> Tensor:
        return torch.addcmul(x_BW, x0_BW, self.v(self.u(x_BW)))

    def initialize(self, generator: torch.Generator) -> None:
        """Draw kernels from a truncated normal distribution, set the bias to 0, as published."""
        copy_normal(self.u.weight, KERNEL_STD, generator, truncate=True)
        copy_normal(self.v.weight, KERNEL_STD, generator, truncate=True)
        self.v.bias.zero_()
