import dataclasses

import pytest
import torch

from cuda_ops import interaction
from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from tests.builders import make_schema
from tests.naive_models import random_batch

DOT = DLRMConfig(embedding_dim=6, bottom_mlp=(9, 6), top_mlp=(7, 5))
SQUARES = DOT.model_copy(update={"self_interaction": True})
CAT = DLRMConfig(embedding_dim=6, bottom_mlp=(9, 4), top_mlp=(7, 5), interaction="cat")


def test_squares_are_summed_in_float32() -> None:
    """In float16, 2048 + 1 is 2048."""
    config = DLRMConfig(embedding_dim=4097, bottom_mlp=(4097,), top_mlp=(2,), self_interaction=True)
    network = build_model(config, make_schema(numeric=0, categorical=2)).dense_network
    seen: list[torch.Tensor] = []
    network.top_mlp[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.autocast("cpu", torch.float16):
        network(torch.empty(1, 0), torch.ones(1, 2 * 4097))
    assert seen[0].dtype == torch.float16 and seen[0].tolist() == [[4096.0, 4096.0, 4096.0]]


def test_self_interaction_is_of_dot_products() -> None:
    with pytest.raises(ValueError, match="self_interaction needs interaction 'dot'"):
        DLRMConfig(embedding_dim=6, bottom_mlp=(4,), interaction="cat", self_interaction=True)


def test_meta_and_real_models_have_the_same_parameters() -> None:
    schema = make_schema(numeric=2, multi_hot=1)
    models = [build_model(DOT, schema, device) for device in ("meta", "cpu")]
    assert "embeddings" not in dict(models[0].named_children()), "TorchRec is not imported for nothing"
    assert models[0].embeddings.is_weighted() is False
    meta, real = (model.state_dict() for model in models)
    assert all(value.is_meta for value in meta.values())
    assert {k: (v.shape, v.dtype) for k, v in meta.items()} == {k: (v.shape, v.dtype) for k, v in real.items()}
    assert {k.split(".")[0] for k in real} == {"embeddings", "dense_network"}


@pytest.mark.parametrize(
    ("config", "schema", "message"),
    [
        (DOT, make_schema(categorical=0), "no categorical feature"),
        (DOT, make_schema(numeric=0, categorical=1), "set model.interaction=cat"),
        (CAT.model_copy(update={"embedding_dims": {"X": 3}}), make_schema(), "no categorical feature 'X'"),
    ],
)
def test_unsuitable_features(config: DLRMConfig, schema: Schema, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model(config, schema)


@pytest.mark.parametrize(
    ("config", "numeric", "columns"), [(DOT, 2, 16), (DOT, 0, 8), (SQUARES, 2, 16), (SQUARES, 0, 8)]
)
def test_padded_columns_change_nothing(
    config: DLRMConfig, numeric: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU computes, whose interaction is padded to a multiple of 8 columns."""
    network = build_model(config, make_schema(numeric=numeric, categorical=3)).dense_network
    dense, pooled = torch.randn(8, numeric), torch.randn(8, 18, requires_grad=True)
    parameters = [pooled, *network.parameters()]
    expected = network(dense, pooled)
    gradients = torch.autograd.grad(expected.sum(), parameters)
    seen: list[int] = []
    network.top_mlp[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    monkeypatch.setitem(interaction._COLUMN_MULTIPLES, "cpu", 8)
    padded = network(dense, pooled)
    assert seen == [columns]
    torch.testing.assert_close(padded, expected)
    for gradient, plain in zip(torch.autograd.grad(padded.sum(), parameters), gradients, strict=True):
        torch.testing.assert_close(gradient, plain)


def test_int64_ids_give_the_same_logits() -> None:
    schema = make_schema(numeric=2, categorical=3)
    model = build_model(DOT, schema)
    batch = random_batch(schema, rows=5)
    wide = dataclasses.replace(
        batch,
        sparse=type(batch.sparse)(batch.sparse.keys(), batch.sparse.values().long(), lengths=batch.sparse.lengths()),
    )
    assert torch.equal(model(batch), model(wide))
