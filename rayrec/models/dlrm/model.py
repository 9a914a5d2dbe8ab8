"""DLRM: Deep Learning Recommendation Model (Naumov et al. 2019, arXiv:1906.00091).

Shapes: B rows, N numeric features, F categorical features, D embedding width, n interacting vectors.
"""

import torch
from torch import Tensor, nn

from cuda_ops import aligned_padding, dot_interaction, output_width
from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.models.common.embedding_tables import UniformByRows, pooled_features
from rayrec.models.common.layers import LinearOfPadded, hidden_layers, scoring_layers
from rayrec.models.common.ranking import RankingModel
from rayrec.models.common.sequences import HistoryEncoders, lengths_of, read_histories
from rayrec.models.dlrm.config import DLRMConfig


def build(config: DLRMConfig, schema: Schema, device: torch.device) -> RankingModel:
    """Build DLRM for the features of `schema`. Raises UserError where the features are too few for the interaction."""
    schema = schema.with_embedding_dims(config.embedding_dim, config.embedding_dims)
    histories = read_histories(config.sequences, schema)
    pooled = pooled_features(schema, UniformByRows(), lengths_of(histories))
    dot_width = config.embedding_dim if config.interaction == "dot" else None
    sequences = HistoryEncoders(histories, pooled, device, width=dot_width)
    return RankingModel(schema, pooled, DLRMDenseNetwork(config, schema.dense_width, sequences, device), device)


class DLRMDenseNetwork(nn.Module):
    """Bottom MLP over the numeric features, interaction with the pooled embeddings, top MLP to one logit.

    Without numeric features there is no bottom MLP, and the embeddings interact among themselves.
    """

    def __init__(self, config: DLRMConfig, numeric: int, sequences: HistoryEncoders, device: torch.device) -> None:
        super().__init__()
        self.sequences = sequences
        # Numbers: one vector of the embeddings' width, so that it can interact with them.
        self.bottom_mlp = hidden_layers(numeric, config.bottom_mlp, device) if numeric else None
        self._dot_width = config.embedding_dim if config.interaction == "dot" else None
        self._with_squares = config.self_interaction
        # The interaction's width: of all vectors side by side, or of the dense vector and one product for each pair.
        width = sum(sequences.widths) + (config.bottom_mlp[-1] if numeric else 0)
        if self._dot_width is not None:
            vectors = len(sequences.widths) + (numeric > 0)
            if vectors < 2:
                raise UserError(
                    "model.interaction: 'dot' needs two vectors or more, and the data has no numeric and one "
                    "categorical feature; set model.interaction=cat"
                )
            width = output_width(vectors, self._dot_width, has_dense=numeric > 0)
            width += vectors if config.self_interaction else 0
        self._width = width
        # Its first layer ignores the columns that `forward` pads the interaction with.
        self.top_mlp = scoring_layers(width, config.top_mlp, device, linear=LinearOfPadded)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Score dense (B, N) float32, pooled (B, sum of widths) in the schema's order -> logits (B,) float32.

        The interaction is the dense vector, then the dot products of every pair among it and the F embeddings (paper,
        section 2.1) and perhaps of each with itself; or all vectors side by side. On a GPU its columns are padded with
        0 (`aligned_padding`).
        """
        pooled = self.sequences(pooled)
        hidden = self.bottom_mlp(dense) if self.bottom_mlp is not None else None
        if self._dot_width is not None:
            # The pooled embeddings are F vectors of one width; a kernel multiplies each pair of them.
            padding = aligned_padding(self._width, pooled.device)
            rows, columns = pooled.shape
            vectors = pooled.reshape(rows, columns // self._dot_width, self._dot_width)
            if self._with_squares:
                pairs = dot_interaction(hidden, vectors)
                # In float32: autocast would sum the squares in 16 bits.
                every = vectors if hidden is None else torch.cat([hidden.unsqueeze(1), vectors], dim=1)
                squares = every.to(pairs.dtype).float().square().sum(2).to(pairs.dtype)
                interaction = nn.functional.pad(torch.cat([pairs, squares], dim=1), (0, padding))
            else:
                interaction = dot_interaction(hidden, vectors, padding)
        else:
            interaction = pooled if hidden is None else torch.cat([hidden, pooled], dim=1)
        logits: Tensor = self.top_mlp(interaction)
        return logits.squeeze(1).float()
