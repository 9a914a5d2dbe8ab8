"""The models computed naively in NumPy (float64), row by row, from a state dict: what the real ones must equal."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from rayrec.config import ModelConfig
from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.models.common.batch import Batch
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.wide_deep.config import WideDeepConfig

State = Mapping[str, np.ndarray]


def random_batch(schema: Schema, rows: int, seed: int = 0) -> Batch:
    """Normal numbers; bags of 0 ... hotness ids, with weights 0, 1 and 2, for multi-hot features, one id for others."""
    rng = np.random.default_rng(seed)
    lengths = [
        rng.integers(0, f.hotness + 1, rows) if isinstance(f, MultiHotFeature) else np.ones(rows, dtype=np.int64)
        for f in schema.categorical
    ]
    values = [rng.integers(0, f.cardinality, bag.sum()) for f, bag in zip(schema.categorical, lengths, strict=True)]
    weights = None
    if schema.weighted:
        own = [(rng.integers(0, 3, len(ids)) if f in schema.weighted else np.ones(len(ids)))
               for f, ids in zip(schema.categorical, values, strict=True)]  # fmt: skip
        weights = torch.from_numpy(np.concatenate(own).astype(np.float32))
    sparse = KeyedJaggedTensor(
        keys=[f.name for f in schema.categorical],
        values=torch.from_numpy(np.concatenate(values).astype(np.int32)),
        lengths=torch.from_numpy(np.concatenate(lengths).astype(np.int32)),
        weights=weights,
    )
    dense = torch.from_numpy(rng.standard_normal((rows, schema.dense_width)).astype(np.float32))
    return Batch(dense, sparse, torch.zeros(rows), torch.ones(rows))


def naive_logits(config: ModelConfig, schema: Schema, state: Mapping[str, Tensor], batch: Batch) -> np.ndarray:
    """Logits (B,) float64 of a model with the parameters `state`."""
    arrays = {name: value.double().numpy() for name, value in state.items()}
    return np.array([_row_logit(config, schema, arrays, batch, row) for row in range(batch.size)])


def _row_logit(config: ModelConfig, schema: Schema, state: State, batch: Batch, row: int) -> float:
    if isinstance(config, NeuMFConfig):
        return _neumf_logit(config, schema, state, batch, row)
    if isinstance(config, WideDeepConfig):
        return _wide_deep_logit(config, schema, state, batch, row)
    vectors = []
    if schema.dense:
        layers = range(len(config.bottom_mlp))
        vectors.append(_mlp(state, "dense_network.bottom_mlp", batch.dense[row].double().numpy(), layers, relu=layers))
    for feature in schema.categorical:
        bag, weights = _bag(batch, feature.name, row)
        # Tables are stored in fours of columns.
        table = feature.table or feature.name
        width = config.embedding_dims.get(table, config.embedding_dim)
        rows = state[f"embeddings.embedding_bags.{table}.weight"][bag, :width]
        mean = isinstance(feature, MultiHotFeature) and feature.pooling == "mean"
        vectors.append(weights @ rows / ((weights.sum() or 1) if mean else 1))
    if isinstance(config, DCNv2Config):
        hidden = x0 = np.concatenate(vectors)
        for layer in range(config.cross_layers):
            name = f"dense_network.cross_layers.{layer}"
            product = state[f"{name}.v.weight"] @ (state[f"{name}.u.weight"] @ hidden) + state[f"{name}.v.bias"]
            hidden = x0 * product + hidden
    elif config.interaction == "dot":
        pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        squares = [vector @ vector for vector in vectors] if config.self_interaction else []
        hidden = np.concatenate([vectors[0] if schema.dense else [], pairs, squares])
    else:
        hidden = np.concatenate(vectors)
    layers = range(len(config.top_mlp) + 1)
    return float(_mlp(state, "dense_network.top_mlp", hidden, layers, relu=layers[:-1])[0])


def _neumf_logit(config: NeuMFConfig, schema: Schema, state: State, batch: Batch, row: int) -> float:
    assert schema.interactions is not None
    user, item = (
        state[f"embeddings.embedding_bags.{name}.weight"][int(batch.sparse[name].values()[row])]
        for name in (schema.interactions.user, schema.interactions.item)
    )
    vectors: list[np.ndarray] = []
    dot = 0.0
    gmf = config.factors if "gmf" in config.parts else 0
    if gmf and config.gmf_output == "dot":
        dot = float(user[:gmf] @ item[:gmf])
    elif gmf:
        vectors.append(user[:gmf] * item[:gmf])
    if "mlp" in config.parts:
        own = slice(gmf, gmf + config.mlp[0] // 2)
        x = np.concatenate([user[own], item[own]])
        for layer in range(len(config.mlp) - 1):
            name = f"dense_network.mlp.{3 * layer}"
            x = np.maximum(state[f"{name}.weight"] @ x + state[f"{name}.bias"], 0)
        vectors.append(x)
    logit = dot + state["dense_network.output.bias"][0]
    if vectors:
        logit += (state["dense_network.output.weight"] @ np.concatenate(vectors))[0]
    return float(logit)


def _wide_deep_logit(config: WideDeepConfig, schema: Schema, state: State, batch: Batch, row: int) -> float:
    numbers = batch.dense[row].double().numpy()
    bags = {f.name: _bag(batch, f.name, row) for f in schema.categorical}
    tables = {f.name: f.table or f.name for f in schema.categorical}
    logit = 0.0
    if config.part != "deep":
        logit += float(state["dense_network.wide.weight"] @ numbers + state["dense_network.wide.bias"])
        for name, (bag, weights) in bags.items():
            logit += weights @ state[f"embeddings.embedding_bags.{tables[name]}_wide.weight"][bag, 0]
    if config.part != "wide":
        vectors = []
        for feature in schema.categorical:
            table = tables[feature.name]
            width = config.embedding_dims.get(table, config.embedding_dim)
            bag, weights = bags[feature.name]
            total = weights @ state[f"embeddings.embedding_bags.{table}.weight"][bag, :width]
            is_mean = isinstance(feature, MultiHotFeature) and (config.combiner or feature.pooling) == "mean"
            vectors.append(total / ((weights.sum() or 1) if is_mean else 1))
        x = np.concatenate([*vectors, numbers])
        for layer in range(len(config.mlp) + 1):
            name = f"dense_network.deep.{3 * layer}"
            x = state[f"{name}.weight"] @ x + state[f"{name}.bias"]
            x = np.maximum(x, 0) if layer < len(config.mlp) else x
        logit += float(x[0])
    return logit


def _bag(batch: Batch, feature: str, row: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of a row and their weights."""
    ids = batch.sparse[feature]
    bag = ids.to_dense()[row].long().numpy()
    weights = ids.to_dense_weights()[row].double().numpy() if ids.weights_or_none() is not None else np.ones(len(bag))
    return bag, weights


def _mlp(state: State, name: str, x: np.ndarray, layers: Sequence[int], relu: Sequence[int]) -> np.ndarray:
    for layer in layers:
        x = state[f"{name}.{2 * layer}.weight"] @ x + state[f"{name}.{2 * layer}.bias"]
        if layer in relu:
            x = np.maximum(x, 0)
    return x


def interaction_inputs(
    shape: tuple[int, int, int, bool], dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """Random inputs of `dot_interaction`: a dense vector (B, D) or None, and embeddings (B, N, D).

    `shape` is B, N, D and whether there is a dense vector.
    """
    rows, count, dim, has_dense = shape
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(rows, count, dim, generator=generator).to(dtype).requires_grad_()
    dense = torch.randn(rows, dim, generator=generator).to(dtype).requires_grad_() if has_dense else None
    return dense, embeddings
