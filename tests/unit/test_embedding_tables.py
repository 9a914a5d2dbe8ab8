"""Embedding tables: several of one feature, widths that the kernels do not take, pooling, unusable names."""

import math
import random
from typing import Literal

import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.common.errors import UserError
from rayrec.models.common.embedding_tables import (
    EmbeddingTable,
    Normal,
    PooledFeature,
    PooledOutputs,
    UniformByRows,
    build_embeddings,
    distinct_tables,
    pooled_features,
    require_names,
)
from rayrec.models.common.initialization import initialize_shard
from tests.builders import WITH_SHARED_TABLES

CPU = torch.device("cpu")
IDS = KeyedJaggedTensor.from_lengths_sync(
    keys=["a", "b"], values=torch.tensor([0, 1, 2, 2, 0, 1, 1]), lengths=torch.tensor([1, 1, 1, 3, 0, 1])
)
"""Rows: a 0, 1, 2; b [2, 0, 1], [], [1]."""
POOLINGS: tuple[Literal["sum", "mean"], ...] = ("sum", "sum", "mean")


def table(name: str, *features: str, rows: int = 3, dim: int = 4) -> EmbeddingTable:
    return EmbeddingTable(name, features or (name,), rows, dim, UniformByRows())


def output(
    stated: EmbeddingTable, feature: str | None = None, pooling: Literal["sum", "mean"] = "sum"
) -> PooledFeature:
    return PooledFeature(feature or stated.features[0], stated, pooling)


def pooled(*outputs: PooledFeature) -> torch.Tensor:
    """With 1, 2, 3 in the rows of the first table, 10, 20, 30 in those of the second, ... and NaN where none reads."""
    tables = distinct_tables(outputs)
    embeddings = build_embeddings(tables, CPU)
    for number, stated in enumerate(tables):
        weight = embeddings.embedding_bags[stated.name].weight.data
        weight.fill_(math.nan)[:, : stated.dim] = 10.0**number * torch.arange(1.0, stated.rows + 1).unsqueeze(1)
    return PooledOutputs(outputs)(embeddings(IDS), IDS)


def test_a_feature_with_several_tables() -> None:
    found = pooled(output(table("b", dim=2)), output(table("a")), output(table("b_wide", "b", dim=1)))
    expected = [[6, 6, 10, 10, 10, 10, 600], [0, 0, 20, 20, 20, 20, 0], [2, 2, 30, 30, 30, 30, 200]]
    assert found.tolist() == expected


def test_a_table_of_several_features() -> None:
    """Their outputs stand where the features do, each pooled in its own way, also if a feature has another table."""
    both, wide = table("t", "b", "a", dim=2), table("a_wide", "a", dim=1)
    found = pooled(output(both, "a"), output(wide), output(both, "b", "mean"))
    assert found.tolist() == [[1, 1, 10, 2, 2], [2, 2, 20, 0, 0], [3, 3, 30, 2, 2]]


def test_features_with_a_table_in_common() -> None:
    found = pooled_features(WITH_SHARED_TABLES.with_embedding_dims(4, {"C1": 8}), UniformByRows())
    assert [(o.feature, o.table.name, o.table.features, o.table.dim, o.pooling) for o in found] == [
        ("C1", "C1", ("C1", "C3", "M2"), 8, "sum"),
        ("C2", "C2", ("C2", "M1"), 4, "sum"),
        ("C3", "C1", ("C1", "C3", "M2"), 8, "sum"),
        ("M1", "C2", ("C2", "M1"), 4, "sum"),
        ("M2", "C1", ("C1", "C3", "M2"), 8, "mean"),
    ]
    assert [table.name for table in distinct_tables(found)] == ["C1", "C2"]


def test_means_leave_other_tables_alone() -> None:
    found = pooled(
        output(table("b", dim=1), pooling="mean"),
        output(table("b_wide", "b", dim=1)),
        output(table("a", dim=1), pooling="mean"),
    )
    assert found.tolist() == [[2, 60, 100], [0, 0, 200], [2, 20, 300]]


def test_weights_multiply_embeddings_and_divide_means() -> None:
    """Also where all weights of a row, or its ids, are 0; a feature without weights has weights of 1."""
    weights = torch.tensor([1.0, 1.0, 1.0, 0.5, 0.0, 2.0, 0.0])
    weighted = KeyedJaggedTensor(["a", "b"], IDS.values(), weights, IDS.lengths())
    a, b, wide = table("a", dim=1), table("b", dim=1), table("b_wide", "b", dim=1)
    embeddings = build_embeddings([a, b, wide], CPU, is_weighted=True)
    for stated in (a, b, wide):
        embeddings.embedding_bags[stated.name].weight.data[:] = torch.arange(1.0, 4.0).unsqueeze(1)
    outputs = PooledOutputs([output(a, pooling="mean"), output(b, pooling="mean"), output(wide)])
    found = outputs(embeddings(weighted), weighted)
    torch.testing.assert_close(found, torch.tensor([[1, 2.2, 5.5], [2, 0, 0], [3, 0, 0]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_gradients_are_those_of_slices_by_key(seed: int, dtype: torch.dtype) -> None:
    """For widths, means and orders of all kinds; padding gets a gradient of 0, and an order may change."""
    draw = random.Random(seed)
    outputs = [
        output(table(f"t{number}", "ab"[number % 2], dim=draw.choice([1, 1, 4, 8, 7])), pooling=draw.choice(POOLINGS))
        for number in range(9)
    ]
    keys = [f"{o.feature}@{o.table.name}" for o in outputs]
    taken = PooledOutputs(outputs)
    for order in (range(9), draw.sample(range(9), 9)):
        widths = [outputs[index].table.columns for index in order]
        values = torch.randn(3, sum(widths)).to(dtype).requires_grad_()
        sums = KeyedTensor([keys[index] for index in order], widths, values)
        found = taken(sums, IDS)
        by_key = sums.to_dict()
        divisors = {name: IDS[name].lengths().clamp(min=1).unsqueeze(1) for name in "ab"}
        slices = [by_key[key][:, : o.table.dim] for key, o in zip(keys, outputs, strict=True)]
        slices = [s / divisors[o.feature] if o.pooling == "mean" else s for s, o in zip(slices, outputs, strict=True)]
        expected = torch.cat(slices, dim=1)
        assert found.dtype == dtype and found.equal(expected)
        grad = torch.randn(expected.shape).to(dtype)
        before = grad.clone()
        gradients = [torch.autograd.grad(pooled, values, grad)[0] for pooled in (found, expected)]
        assert gradients[0].equal(gradients[1]) and grad.equal(before)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([table("a.b")], r"'a\.b' cannot name an embedding table"),
        ([table("type")], "'type' cannot name an embedding table"),
        ([table("")], "'' cannot name an embedding table"),
        ([table("a"), table("a", "b")], "two embedding tables would be named 'a'"),
    ],
)
def test_unusable_names(tables: list[EmbeddingTable], message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_names(tables)


@pytest.mark.parametrize(("column", "columns"), [(0, 8), (0, 4), (4, 4), (6, 2)])
def test_a_shard_has_zeros_where_the_model_does_not_read(column: int, columns: int) -> None:
    whole = torch.empty(50, 6)
    stated = EmbeddingTable("a", ("a",), 50, 6, Normal(1.0))
    initialize_shard(whole, stated, 3)
    shard = torch.full((10, columns), math.nan)
    initialize_shard(shard, stated, 3, row=20, column=column)
    expected = torch.nn.functional.pad(whole, (0, 2))[20:30, column : column + columns]
    assert torch.equal(shard, expected)
