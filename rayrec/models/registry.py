"""The models by the kind of their config."""

from typing import cast

import torch

from rayrec.common.plugins import MODELS
from rayrec.config import ModelConfig
from rayrec.features.schema import Schema
from rayrec.models.common.initialization import initialize_model
from rayrec.models.common.ranking import RankingModel


def build_model(
    config: ModelConfig, schema: Schema, device: str | torch.device = "cpu", *, seed: int = 0
) -> RankingModel:
    """The unsharded model of `config` for the features of `schema`.

    On a real device its values are the published initial ones for `seed`. On `meta` it takes no memory and has no
    values: shard or materialize it, then fill it from a checkpoint or with `rayrec.models.common.initialization`.
    Raises UserError if the features do not suit the model.
    """
    model = cast(RankingModel, MODELS.load(config.kind, "model").build(config, schema, torch.device(device)))
    if torch.device(device).type != "meta":
        initialize_model(model, seed)
    return model
