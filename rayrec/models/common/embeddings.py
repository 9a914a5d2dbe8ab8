"""The embedding tables of a schema, and their pooled outputs in the schema's order."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from rayrec.common.errors import UserError
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema


def build_embeddings(schema: Schema, device: torch.device) -> EmbeddingBagCollection:
    """One float32 table for each categorical feature, named as the feature, of (cardinality, embedding_dim).

    One-hot features are bags of one id, so their pooling changes nothing. Raises UserError where the schema has no
    categorical feature, or one whose name torch cannot give to a module.
    """
    if not schema.categorical:
        raise UserError("schema.features: no categorical feature; this model needs at least one embedding table")
    for feature in schema.categorical:
        _require_module_name(feature.name)
    return EmbeddingBagCollection([_table(feature) for feature in schema.categorical], device=device)


def concat_pooled(pooled: KeyedTensor, keys: Sequence[str]) -> Tensor:
    """The pooled embeddings of `keys` side by side, in the order of `keys`: (B, sum of their widths).

    A sharded collection returns its keys in an order that depends on the sharding plan, so `pooled.values()` would
    mean something else under another plan.
    """
    if list(keys) == pooled.keys():
        return pooled.values()
    by_key = pooled.to_dict()
    return torch.cat([by_key[key] for key in keys], dim=1)


def embedding_widths(schema: Schema) -> list[int]:
    """Width of each categorical feature's table, in the schema's order; the schema's widths are resolved."""
    return [_width(feature) for feature in schema.categorical]


def _table(feature: CategoricalFeature) -> EmbeddingBagConfig:
    mean = isinstance(feature, MultiHotFeature) and feature.pooling == "mean"
    return EmbeddingBagConfig(
        name=feature.name,
        num_embeddings=feature.cardinality,
        embedding_dim=_width(feature),
        feature_names=[feature.name],
        pooling=PoolingType.MEAN if mean else PoolingType.SUM,
    )


def _width(feature: CategoricalFeature) -> int:
    assert feature.embedding_dim is not None, f"embedding_dim of '{feature.name}' is not resolved"
    return feature.embedding_dim


def _require_module_name(name: str) -> None:
    """Tables become sub-modules by name: torch forbids dots and the names of nn.ModuleDict's own attributes."""
    if not name or "." in name or hasattr(nn.ModuleDict(), name):
        raise UserError(f"schema.features: '{name}' cannot name an embedding table; rename the feature")
