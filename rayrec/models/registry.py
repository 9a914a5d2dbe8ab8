"""The models by their config."""

from collections.abc import Callable
from typing import Any

import torch

from rayrec.config import DCNv2Config, DLRMConfig, ModelConfig, NeuMFConfig, WideDeepConfig
from rayrec.features.schema import Schema
from rayrec.models.common.initialization import initialize_model
from rayrec.models.common.ranking import RankingModel
from rayrec.models.dcnv2.model import build_dcnv2
from rayrec.models.dlrm.model import build_dlrm
from rayrec.models.neumf.model import build_neumf
from rayrec.models.wide_deep.model import build_wide_deep

Builder = Callable[[Any, Schema, torch.device], RankingModel]

BUILDERS: dict[type, Builder] = {
    DLRMConfig: build_dlrm,
    DCNv2Config: build_dcnv2,
    NeuMFConfig: build_neumf,
    WideDeepConfig: build_wide_deep,
}


def build_model(
    config: ModelConfig, schema: Schema, device: str | torch.device = "cpu", *, seed: int = 0
) -> RankingModel:
    """The unsharded model of `config` for the features of `schema`.

    On a real device its values are the published initial ones for `seed`. On `meta` it takes no memory and has no
    values: shard or materialize it, then fill it from a checkpoint or with `rayrec.models.common.initialization`.
    Raises UserError where the features do not suit the model.
    """
    model = BUILDERS[type(config)](config, schema, torch.device(device))
    if torch.device(device).type != "meta":
        initialize_model(model, seed)
    return model
