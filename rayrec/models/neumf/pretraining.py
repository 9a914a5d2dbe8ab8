"""NeuMF's weights from those of a trained GMF and a trained MLP (He et al. 2017, section 3.4.1)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rayrec.common.errors import ConfigError
from rayrec.models.common.embedding_tables import COLUMN_GRAIN, EmbeddingTable
from rayrec.models.common.ranking import TrainedWeights
from rayrec.models.neumf.config import NeuMFConfig

_WEIGHT, _BIAS = "output.weight", "output.bias"
_EQUAL = {"gmf": ("factors", "gmf_output"), "mlp": ("mlp",)}
"""Fields of the model in which a source must equal the new one."""


@dataclass(frozen=True)
class ComposedWeights:
    """NeuMF made of a GMF and an MLP.

    Its logits are alpha times GMF's plus (1 - alpha) times MLP's before it is trained further (equation 13).
    """

    config: NeuMFConfig
    gmf: TrainedWeights
    mlp: TrainedWeights
    alpha: float

    def table(self, table: EmbeddingTable) -> Tensor:
        """Join (rows, G) and (rows, H) to (rows, G + H), with columns of 0 up to a multiple of `COLUMN_GRAIN`.

        Where no weights of the output layer can hold GMF's share of the logit (`gmf_output: dot`), its columns do.
        """
        gmf, mlp = (_columns(source, table.name) for source in (self.gmf, self.mlp))
        share = math.sqrt(self.alpha) if self.config.gmf_output == "dot" else 1.0
        both = torch.cat([share * gmf, mlp], dim=1)
        return F.pad(both, (0, -both.shape[1] % COLUMN_GRAIN))

    def dense(self) -> dict[str, Tensor]:
        """Return MLP's layers, and the output layer h = [alpha h_GMF ; (1 - alpha) h_MLP], with the bias likewise."""
        gmf, mlp = self.gmf.dense(), self.mlp.dense()
        state = {name: value for name, value in mlp.items() if name.startswith("mlp.")}
        weights = [self.alpha * gmf[_WEIGHT]] if _WEIGHT in gmf else []
        state[_WEIGHT] = torch.cat([*weights, (1 - self.alpha) * mlp[_WEIGHT]], dim=1)
        state[_BIAS] = self.alpha * gmf[_BIAS] + (1 - self.alpha) * mlp[_BIAS]
        return state


def compose(config: NeuMFConfig, sources: Mapping[str, TrainedWeights], options: Mapping[str, Any]) -> ComposedWeights:
    """Compose NeuMF of the sources `gmf` and `mlp`; the option `alpha` (0.5) is GMF's share in the output layer.

    Raises ConfigError where these are not a GMF and an MLP of the new model's sizes.
    """
    field, alpha = "train.initial_weights", options.get("alpha", 0.5)
    if set(config.parts) != {"gmf", "mlp"} or set(sources) != {"gmf", "mlp"}:
        raise ConfigError(f"{field}.sources: a NeuMF with both parts begins with two runs or models, gmf and mlp")
    if set(options) - {"alpha"} or not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise ConfigError(f"{field}.options: NeuMF takes alpha, from 0 to 1, not {dict(options)}")
    for part, source in sources.items():
        found = source.recipe.model
        if not isinstance(found, NeuMFConfig) or found.parts != (part,):
            raise ConfigError(f"{field}.sources.{part}: not a model of kind 'neumf' with parts: [{part}]; give one")
        for key in _EQUAL[part]:
            old, new = getattr(found, key), getattr(config, key)
            if old != new:
                raise ConfigError(f"{field}.sources.{part}: has model.{key}={old}, this model {new}; make them equal")
    return ComposedWeights(config, sources["gmf"], sources["mlp"], alpha)


def _columns(source: TrainedWeights, name: str) -> Tensor:
    """Return the columns of a table that the source's model reads."""
    (table,) = (t for t in source.tables if t.name == name)
    return source.table(table)[:, : table.dim]
