"""The models by the kind of their config."""

import importlib.util
from collections.abc import Mapping
from typing import Any, cast

import torch

from rayrec.common.errors import ConfigError
from rayrec.common.plugins import MODELS
from rayrec.config import ModelConfig
from rayrec.features.schema import Schema
from rayrec.models.common.initialization import initialize_dense, initialize_shard
from rayrec.models.common.ranking import RankingModel, TrainedWeights, Weights


def build_model(
    config: ModelConfig, schema: Schema, device: str | torch.device = "cpu", *, seed: int = 0
) -> RankingModel:
    """Return the unsharded model of `config` for the features of `schema`.

    On a real device its values are the published initial ones for `seed`. On `meta` it takes no memory and has no
    values: shard or materialize it, then fill it from a checkpoint or with `rayrec.models.common.initialization`.
    Raises UserError if the features do not suit the model.
    """
    model = cast(RankingModel, MODELS.load(config.kind, "model").build(config, schema, torch.device(device)))
    if torch.device(device).type != "meta":
        for table in model.tables:
            initialize_shard(model.embeddings.embedding_bags[table.name].weight.detach(), table, seed)
        initialize_dense(model.dense_network, seed)
    return model


def compose_weights(config: ModelConfig, sources: Mapping[str, TrainedWeights], options: Mapping[str, Any]) -> Weights:
    """Return the initial weights of a model from the sources and options of `train.initial_weights`.

    The module `pretraining` of the model's package composes them. Raises ConfigError where something does not fit.
    """
    if importlib.util.find_spec(f"{MODELS.packages[config.kind]}.pretraining") is None:
        raise ConfigError(
            f"train.initial_weights: a model of kind '{config.kind}' cannot begin with other models' weights; unset it"
        )
    return cast(Weights, MODELS.load(config.kind, "pretraining").compose(config, sources, options))
