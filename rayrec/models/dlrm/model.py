"""DLRM: Deep Learning Recommendation Model (Naumov et al. 2019, arXiv:1906.00091).

Shapes: B rows, N numeric features, F categorical features, D embedding width, n interacting vectors.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cuda_ops import dot_interaction, output_width
from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.models.common.layers import hidden_layers, scoring_layers
from rayrec.models.common.ranking import RankingModel
from rayrec.models.common.tables import EmbeddingTable, UniformByRows, feature_tables
from rayrec.models.dlrm.config import DLRMConfig


def build(config: DLRMConfig, schema: Schema, device: torch.device) -> RankingModel:
    """DLRM for the features of `schema`. Raises UserError where the features do not suffice for the interaction."""
    schema = schema.with_embedding_dims(config.embedding_dim, config.embedding_dims)
    tables = feature_tables(schema, UniformByRows())
    return RankingModel(schema, tables, DLRMDenseNetwork(config, len(schema.numeric), tables, device), device)


class DLRMDenseNetwork(nn.Module):
    """Bottom MLP over the numeric features, interaction with the pooled embeddings, top MLP to one logit.

    Without numeric features there is no bottom MLP, and the embeddings interact among themselves.
    """

    def __init__(
        self, config: DLRMConfig, numeric: int, tables: Sequence[EmbeddingTable], device: torch.device
    ) -> None:
        super().__init__()
        self.bottom_mlp = hidden_layers(numeric, config.bottom_mlp, device) if numeric else None
        self.interaction: DotInteraction | Concatenation
        if config.interaction == "dot":
            self.interaction = DotInteraction(len(tables), config.embedding_dim, has_dense=numeric > 0)
        else:
            self.interaction = Concatenation(
                sum(table.dim for table in tables) + (config.bottom_mlp[-1] if numeric else 0)
            )
        self.top_mlp = scoring_layers(self.interaction.out_features, config.top_mlp, device)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """dense (B, N) float32, pooled (B, sum of widths) in the schema's order -> logits (B,) float32."""
        hidden = self.bottom_mlp(dense) if self.bottom_mlp is not None else None
        logits: Tensor = self.top_mlp(self.interaction(hidden, pooled))
        return logits.squeeze(1).float()


class DotInteraction(nn.Module):
    """The dense vector, then the dot products of every pair among it and the F embeddings (paper, section 2.1)."""

    def __init__(self, num_embeddings: int, dim: int, has_dense: bool) -> None:
        super().__init__()
        vectors = num_embeddings + has_dense
        if vectors < 2:
            raise UserError(
                "model.interaction: 'dot' needs two vectors or more, and the data has no numeric and one categorical "
                "feature; set model.interaction=cat"
            )
        self.num_embeddings = num_embeddings
        self.dim = dim
        self.out_features = output_width(vectors, dim, has_dense)

    def forward(self, dense: Tensor | None, pooled: Tensor) -> Tensor:
        """dense (B, D) or None, pooled (B, F * D) -> (B, out_features)."""
        return dot_interaction(dense, pooled.unflatten(1, (self.num_embeddings, self.dim)))


class Concatenation(nn.Module):
    """The dense vector and the embeddings side by side; widths may differ."""

    def __init__(self, out_features: int) -> None:
        super().__init__()
        self.out_features = out_features

    def forward(self, dense: Tensor | None, pooled: Tensor) -> Tensor:
        """dense (B, D) or None, pooled (B, sum of widths) -> (B, out_features)."""
        return pooled if dense is None else torch.cat([dense, pooled], dim=1)
