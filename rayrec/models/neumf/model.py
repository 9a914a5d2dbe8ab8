"""NeuMF: Neural Matrix Factorization (He et al. 2017, arXiv:1708.05031), and with the same code its parts GMF and MLP.

Shapes: B rows, G factors of GMF, H half the width of MLP's input, W = G + H columns of a table (0 for an absent part).
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.models.common.embedding_tables import Normal, pooled_features
from rayrec.models.common.initialization import copy_uniform
from rayrec.models.common.layers import Linear, hidden_layers, to_autocast_dtype
from rayrec.models.common.ranking import RankingModel
from rayrec.models.neumf.config import NeuMFConfig

TABLE_VALUES = Normal(std=0.01)
_HIDDEN_VALUES = 2**19
"""Values of the first hidden layer that `pair_logits` has at once: they stay in a core's cache."""


def build(config: NeuMFConfig, schema: Schema, device: torch.device) -> RankingModel:
    """Build NeuMF, GMF or MLP for the interactions of `schema`.

    Raises UserError where the schema does not name the user and the item, or has further features.
    """
    _require_user_and_item_alone(schema)
    schema = schema.with_embedding_dims(config.gmf_width + config.mlp_width, {})
    network = NeuMFDenseNetwork(config, schema, device)
    return RankingModel(schema, pooled_features(schema, TABLE_VALUES), network, device)


class NeuMFDenseNetwork(nn.Module):
    """Product of GMF's embeddings beside MLP's last layer, then a linear layer to one logit (paper, equation 12).

    With `gmf_output: dot` the product's columns are added up beside that layer.
    """

    def __init__(self, config: NeuMFConfig, schema: Schema, device: torch.device) -> None:
        super().__init__()
        assert schema.interactions is not None
        self._user_is_first = schema.categorical[0].name == schema.interactions.user
        self._gmf_width, self._mlp_width = config.gmf_width, config.mlp_width
        self.mlp = None
        if self._mlp_width:
            first, *widths = config.mlp
            self.mlp = hidden_layers(first, widths, device, linear=HiddenLayer, dropout=config.dropout)
        self._adds_up_gmf = config.gmf_output == "dot"
        width = 0 if self._adds_up_gmf else config.gmf_width
        width += config.mlp[-1] if self._mlp_width else 0
        self.output = OutputLayer(width, 1, device=device) if width else OutputBias(device)
        """Columns: GMF's, unless they are added up, then MLP's."""

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Score pooled (B, 2 W) in the schema's order -> logits (B,) float32."""
        # One cast for both parts, and one split of both sides: its backward pass is one concatenation, and those took a
        # tenth of a step.
        sides_B2W = to_autocast_dtype(pooled).unflatten(1, (2, -1))
        gmf_B2G, mlp_B2H = sides_B2W.split([self._gmf_width, self._mlp_width], dim=2)
        vectors = []
        dot_B1: Tensor | float = 0.0
        if self._gmf_width:
            one_BG, other_BG = gmf_B2G.unbind(1)
            product_BG = one_BG * other_BG
            if self._adds_up_gmf:
                dot_B1 = product_BG.sum(1, keepdim=True, dtype=torch.float32)
            else:
                vectors.append(product_BG)
        if self.mlp is not None:
            user_first = mlp_B2H if self._user_is_first else mlp_B2H.flip(1)
            vectors.append(self.mlp(user_first.flatten(1)))
        logits_B1: Tensor = self.output(torch.cat(vectors, dim=1) if vectors else pooled) + dot_B1
        return logits_B1.squeeze(1).float()

    def pair_logits(self, first: Tensor, second: Tensor) -> Tensor:
        """Score (M, W) and (N, W) in the schema's order -> logits (M, N) float32 of all users, items (`ScoresPairs`).

        GMF is a matrix product. The first layer of MLP is linear in its two sides, so it is computed once a user and
        once an item and added up a pair.
        """
        (gmf_MG, mlp_MH), (gmf_NG, mlp_NH) = (
            side.split([self._gmf_width, self._mlp_width], dim=1) for side in (first, second)
        )
        weight = self.output.weight[0] if isinstance(self.output, OutputLayer) else self.output.bias[:0]
        if self._gmf_width and not self._adds_up_gmf:
            gmf_MG = gmf_MG * weight[: self._gmf_width]
            weight = weight[self._gmf_width :]
        logits_MN = gmf_MG @ gmf_NG.T + self.output.bias
        if self.mlp is None:
            return logits_MN
        linear, others = (cast(Linear, self.mlp[0]), self.mlp[1:]) if len(self.mlp) else (None, self.mlp)
        sides = (weight.unsqueeze(0) if linear is None else linear.weight).split(self._mlp_width, dim=1)
        weight_of_first, weight_of_second = sides if self._user_is_first else reversed(sides)
        hidden_M1, hidden_N1 = mlp_MH @ weight_of_first.T, mlp_NH @ weight_of_second.T
        if linear is None:
            return logits_MN + hidden_M1 + hidden_N1.T
        hidden_M1 = hidden_M1 + linear.bias
        step = max(1, _HIDDEN_VALUES // max(1, hidden_M1.numel()))
        for start in range(0, len(hidden_N1), step):
            hidden = hidden_M1.unsqueeze(1) + hidden_N1[start : start + step]
            logits_MN[:, start : start + step] += others(hidden) @ weight
        return logits_MN

    def item_vectors(self, embeddings: Tensor) -> Tensor:
        """Return GMF's columns (N, G) of (N, W), in which an item is the product with users (`HasItemVectors`)."""
        return embeddings[:, : self._gmf_width]


class HiddenLayer(Linear):
    """A layer of MLP."""

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weight Glorot uniform; bias U(-1/sqrt(in), 1/sqrt(in)), which the original leaves to torch."""
        copy_uniform(self.weight, math.sqrt(6 / (self.in_features + self.out_features)), generator)
        copy_uniform(self.bias, math.sqrt(1 / self.in_features), generator)


class OutputLayer(Linear):
    """The last layer."""

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the weight LeCun uniform, the bias as in the hidden layers."""
        copy_uniform(self.weight, math.sqrt(3 / self.in_features), generator)
        copy_uniform(self.bias, math.sqrt(1 / self.in_features), generator)


class OutputBias(nn.Module):
    """The last layer where nothing is left to weigh."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(1, device=device))

    def initialize(self, generator: torch.Generator) -> None:
        """Set the bias to 0."""
        self.bias.zero_()

    def forward(self, rows: Tensor) -> Tensor:
        """Return (B, 1) for rows (B, any width), the same for every row."""
        return self.bias.expand(len(rows), 1)


def _require_user_and_item_alone(schema: Schema) -> None:
    if schema.interactions is None:
        raise UserError(
            "model.kind: 'neumf' needs a dataset whose schema names the user and the item (interactions); "
            "give a dataset of interactions, or another model"
        )
    sides = {schema.interactions.user, schema.interactions.item}
    other = [feature.name for feature in schema.features if feature.name not in sides]
    if other:
        raise UserError(
            f"model.kind: 'neumf' reads only a user and an item, but the dataset also has a feature '{other[0]}'; "
            "leave it out in preprocessing, or use another model"
        )
