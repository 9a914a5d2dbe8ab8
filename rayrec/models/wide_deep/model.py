"""Wide & Deep (Cheng et al. 2016, arXiv:1606.07792), and with the same code its wide and its deep part alone.

Shapes: B rows, N numeric features, D sum of the deep tables' widths, T pooled columns of wide tables, one a feature.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from rayrec.common.errors import ConfigError
from rayrec.config.optimizers import MAIN_PART
from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.models.common.embedding_tables import PooledFeature, TableValues, TruncatedNormal, Zeros, pooled_features
from rayrec.models.common.initialization import copy_uniform
from rayrec.models.common.layers import Linear, scoring_layers, to_autocast_dtype
from rayrec.models.common.ranking import RankingModel
from rayrec.models.common.sequences import HistoryEncoders, lengths_of, read_histories
from rayrec.models.wide_deep.config import WideDeepConfig

WIDE = "wide"
"""The part that recipes train by an optimizer of its own."""
WIDE_SUFFIX = "_wide"
"""The name of a wide table is that of the deep one with this suffix."""
_TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal variable that is cut at two: Keras makes up for it in glorot_normal."""


def build(config: WideDeepConfig, schema: Schema, device: torch.device) -> RankingModel:
    """Build Wide & Deep for the features of `schema`; the deep tables come first, then the wide ones."""
    schema = schema.with_embedding_dims(config.embedding_dim, config.embedding_dims)
    histories = read_histories(config.sequences, schema)
    if histories and config.part == "wide":
        raise ConfigError(f"model.sequences.{histories[0].name}: the wide part alone pools all lists; remove the key")
    pooled = _deep(config, schema, lengths_of(histories)) if config.part != "wide" else []
    if config.part != "deep":
        pooled += _wide(schema)
    sequences = HistoryEncoders(histories, pooled, device)
    network = WideDeepDenseNetwork(config, schema.dense_width, sequences, device)
    return RankingModel(schema, pooled, network, device, parts={WIDE: ("wide",)})


class WideDeepDenseNetwork(nn.Module):
    """The sum of both parts' logits; a part that the config leaves out is None."""

    def __init__(self, config: WideDeepConfig, numeric: int, sequences: HistoryEncoders, device: torch.device) -> None:
        super().__init__()
        self.sequences = sequences
        self._widths = [sequences.width_of(MAIN_PART), sequences.width_of(WIDE)]
        self.wide = WidePart(numeric, device) if config.part != "deep" else None
        self.deep = None
        if config.part != "wide":
            width = self._widths[0] + numeric
            self.deep = scoring_layers(width, config.mlp, device, linear=GlorotLinear, dropout=config.dropout)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Score dense (B, N) float32, pooled (B, D + T) -> logits (B,) float32."""
        deep_BD = wide_BT = pooled = self.sequences(pooled)
        if self.deep is not None and self.wide is not None:
            # One split, whose backward pass is one concatenation; that of two slices fills the whole width twice.
            deep_BD, wide_BT = pooled.split(self._widths, dim=1)
        logits = []
        if self.wide is not None:
            logits.append(self.wide(dense, wide_BT))
        if self.deep is not None:
            inputs = torch.cat([to_autocast_dtype(deep_BD), to_autocast_dtype(dense)], dim=1)
            logits.append(self.deep(inputs).squeeze(1).float())
        return logits[0] if len(logits) == 1 else logits[0] + logits[1]


class WidePart(nn.Module):
    """A linear model of every feature, starting at 0: a weight an id, which the wide tables hold, and a number."""

    def __init__(self, numeric: int, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(numeric, device=device))
        self.bias = nn.Parameter(torch.empty((), device=device))

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Score dense (B, N) float32, pooled (B, T) -> logits (B,) float32, also under autocast."""
        return (dense * self.weight).sum(1) + pooled.sum(1, dtype=torch.float32) + self.bias

    def initialize(self, generator: torch.Generator) -> None:
        """Set everything to 0."""
        self.weight.zero_()
        self.bias.zero_()


class GlorotLinear(Linear):
    """A linear layer as Keras starts one."""

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weight Glorot uniform and set the bias to 0."""
        copy_uniform(self.weight, math.sqrt(6 / (self.in_features + self.out_features)), generator)
        self.bias.zero_()


def _deep(config: WideDeepConfig, schema: Schema, sequences: Mapping[str, int]) -> list[PooledFeature]:
    multi_hot = {feature.name for feature in schema.categorical if isinstance(feature, MultiHotFeature)}
    pooled = []
    for output in pooled_features(schema, Zeros(), sequences):
        table = output.table
        values: TableValues = TruncatedNormal(1 / math.sqrt(table.dim))
        if config.embedding_init == "glorot_normal":
            values = TruncatedNormal(math.sqrt(2 / (table.rows + table.dim)) / _TRUNCATED_STD)
        pooling = output.pooling
        if config.combiner is not None and output.feature in multi_hot and pooling != "sequence":
            pooling = config.combiner
        pooled.append(replace(output, table=replace(table, values=values), pooling=pooling))
    return pooled


def _wide(schema: Schema) -> list[PooledFeature]:
    return [
        replace(
            output,
            table=replace(output.table, name=f"{output.table.name}{WIDE_SUFFIX}", dim=1, part=WIDE),
            pooling="sum",
        )
        for output in pooled_features(schema, Zeros())
    ]
