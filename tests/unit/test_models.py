"""All models: their logits are those of a naive computation, also of the network alone in mixed precision."""

from typing import Any

import numpy as np
import pytest
import torch

from rayrec.config import ModelConfig
from rayrec.features.schema import Schema
from rayrec.models.common.ranking import RankingModel
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.registry import build_model
from rayrec.models.wide_deep.config import WideDeepConfig
from tests.builders import WITH_SHARED_TABLES, make_schema, users_and_items
from tests.naive_models import naive_logits, random_batch

DOT = DLRMConfig(embedding_dim=6, bottom_mlp=(9, 6), top_mlp=(7, 5))
SQUARES = DOT.model_copy(update={"self_interaction": True})
CAT = DLRMConfig(embedding_dim=6, bottom_mlp=(9, 4), top_mlp=(7, 5), interaction="cat")
CROSS = DCNv2Config(embedding_dim=6, bottom_mlp=(9, 4), cross_layers=2, cross_rank=5, top_mlp=(7, 5))
WIDE_DEEP = WideDeepConfig(embedding_dim=6, embedding_dims={"C2": 3}, mlp=(9, 5), dropout=0.5)
NEUMF = NeuMFConfig(factors=5, mlp=(8, 6, 3), dropout=0.5)

NUMBERS_AND_IDS = make_schema(numeric=3, categorical=4)
LISTS = make_schema(numeric=2, categorical=2, multi_hot=2)
NO_NUMBERS = make_schema(numeric=0, categorical=3)
WEIGHTED = make_schema(numeric=2, categorical=2, multi_hot=3, weighted=("M1", "M2"))
ONE_TABLE = make_schema(numeric=0, categorical=1)
WIDTHS = {"embedding_dims": {"C1": 3, "M2": 11}}
USER_FIRST, ITEM_FIRST = users_and_items(50, 40), users_and_items(50, 40, item_first=True)


def changed(config: ModelConfig, **changes: Any) -> ModelConfig:
    return config.model_copy(update=changes)


CASES: list[tuple[ModelConfig, Schema]] = [
    *((DOT, schema) for schema in (NUMBERS_AND_IDS, LISTS, NO_NUMBERS, WITH_SHARED_TABLES, WEIGHTED)),
    *((SQUARES, schema) for schema in (NUMBERS_AND_IDS, NO_NUMBERS, WEIGHTED)),
    *((CAT, schema) for schema in (LISTS, ONE_TABLE)),
    (changed(CAT, **WIDTHS), LISTS),
    *((CROSS, schema) for schema in (NUMBERS_AND_IDS, LISTS, NO_NUMBERS, WITH_SHARED_TABLES, WEIGHTED)),
    (changed(CROSS, **WIDTHS), LISTS),
    *((WIDE_DEEP, schema) for schema in (LISTS, WITH_SHARED_TABLES, WEIGHTED, NO_NUMBERS)),
    *((changed(WIDE_DEEP, part=part), LISTS) for part in ("wide", "deep")),
    *((changed(WIDE_DEEP, combiner=combiner), LISTS) for combiner in ("sum", "mean")),
    *((changed(WIDE_DEEP, combiner="mean"), schema) for schema in (WITH_SHARED_TABLES, WEIGHTED)),
    (changed(WIDE_DEEP, part="wide", embedding_dims={}), ONE_TABLE),
    *((changed(NEUMF, parts=parts), USER_FIRST) for parts in (("gmf", "mlp"), ("gmf",), ("mlp",))),
    (NEUMF, ITEM_FIRST),
    (changed(NEUMF, mlp=(4,)), USER_FIRST),
    (changed(NEUMF, gmf_output="dot"), ITEM_FIRST),
    (changed(NEUMF, gmf_output="dot", parts=("gmf",)), USER_FIRST),
]


def lively(model: RankingModel) -> RankingModel:
    """With every weight at random: some tables and biases start at 0, which would hide them."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    return model


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize(("config", "schema"), CASES)
def test_logits_equal_a_naive_computation(config: ModelConfig, schema: Schema, rows: int) -> None:
    model = lively(build_model(config, schema, seed=3)).eval()
    batch = random_batch(schema, rows)
    logits = model(batch)
    assert logits.dtype == torch.float32 and logits.shape == (rows,)
    expected = naive_logits(config, schema, model.state_dict(), batch)
    np.testing.assert_allclose(logits.detach().numpy(), expected, rtol=1e-5, atol=2e-5)
    assert expected.std() > 0.01 or rows == 1


@pytest.mark.parametrize(
    ("config", "schema", "width"),
    [
        *((config, make_schema(numeric=2, categorical=3), 18) for config in (DOT, SQUARES, CAT, CROSS)),
        (changed(WIDE_DEEP, embedding_dims={}), make_schema(numeric=2, categorical=3), 18 + 3),
        (NEUMF, USER_FIRST, 18),
    ],
)
def test_a_dense_network_alone_under_autocast(config: ModelConfig, schema: Schema, width: int) -> None:
    network = build_model(config, schema).eval().dense_network
    dense, pooled = torch.randn(8, schema.dense_width), torch.randn(8, width, requires_grad=True)
    expected = network(dense, pooled)
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(dense, pooled)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.1)
    logits.sum().backward()
    assert pooled.grad is not None and pooled.grad.dtype == torch.float32 and pooled.grad.abs().sum() > 0


@pytest.mark.parametrize(("config", "schema"), [(WIDE_DEEP, LISTS), (NEUMF, USER_FIRST)])
def test_dropout_acts_in_training_alone(config: ModelConfig, schema: Schema) -> None:
    model, batch = lively(build_model(config, schema)), random_batch(schema, rows=10)
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_cross_layers_are_in_mixed_precision_though_embeddings_are_not() -> None:
    network = build_model(CROSS, make_schema(numeric=2, categorical=3)).dense_network
    seen = []
    network.cross_layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        network(torch.randn(8, 2), torch.randn(8, 18))
    assert seen == [torch.bfloat16]
