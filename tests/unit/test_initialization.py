import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from rayrec.models.common.embedding_tables import (
    EmbeddingTable,
    Normal,
    TableValues,
    TruncatedNormal,
    UniformByRows,
    Zeros,
)
from rayrec.models.common.initialization import ROWS_PER_BLOCK, draw_rows, initialize_dense, initialize_shard
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.registry import build_model
from tests.builders import make_schema

GOLDEN = [-0.04105050, 0.11627809, -0.50280714, -0.38778737, 0.20050910, -0.22058626]
"""Changing a scheme makes runs of older versions irreproducible."""
GOLDEN_DRAWN = [0.52737224, -0.52433616, -0.08333805, 0.33796981]
ROWS, DIM = 2 * ROWS_PER_BLOCK + 777, 6


TABLE = EmbeddingTable("C1", ("C1",), ROWS, DIM, UniformByRows())


def whole_table(name: str = "C1", seed: int = 7) -> torch.Tensor:
    table = torch.full((ROWS, DIM), math.nan)
    initialize_shard(table, replace(TABLE, name=name), seed)
    return table


@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ((0, ROWS), (0, DIM)),
        ((0, ROWS // 2), (0, DIM)),
        ((ROWS // 2, ROWS), (0, DIM)),
        ((ROWS_PER_BLOCK, 2 * ROWS_PER_BLOCK), (0, DIM)),
        ((ROWS_PER_BLOCK - 1, ROWS_PER_BLOCK + 1), (2, 3)),
        ((ROWS - 1, ROWS), (DIM - 1, DIM)),
        ((0, ROWS), (1, 4)),
        ((5, 5), (0, DIM)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_shards_are_slices_of_the_whole(rows: tuple[int, int], columns: tuple[int, int], dtype: torch.dtype) -> None:
    shard = torch.full((rows[1] - rows[0], columns[1] - columns[0]), math.nan, dtype=dtype)
    initialize_shard(shard, TABLE, 7, row=rows[0], column=columns[0])
    assert torch.equal(shard, whole_table()[slice(*rows), slice(*columns)].to(dtype))


def test_a_strided_view_is_filled_in_place() -> None:
    buffer = torch.full((ROWS, DIM + 3), math.nan)
    initialize_shard(buffer[:, 1 : DIM + 1], TABLE, 7)
    assert torch.equal(buffer[:, 1 : DIM + 1], whole_table())
    assert buffer[:, 0].isnan().all() and buffer[:, DIM + 1 :].isnan().all()


@pytest.mark.parametrize("change", [{"name": "C2"}, {"seed": 8}])
def test_tables_and_seeds_differ(change: dict[str, object]) -> None:
    assert (whole_table() != whole_table(**change)).float().mean() > 0.99


def test_blocks_of_a_table_differ() -> None:
    table = whole_table()
    assert not torch.equal(table[:ROWS_PER_BLOCK], table[ROWS_PER_BLOCK : 2 * ROWS_PER_BLOCK])


def test_tables_are_uniform_as_published() -> None:
    table = whole_table() * math.sqrt(ROWS)
    assert -1 <= table.min() < -0.999 and 0.999 < table.max() <= 1
    assert abs(table.mean()) < 0.01
    assert abs(table.var() - 1 / 3) < 0.01


def test_linear_layers_are_normal_as_published() -> None:
    network = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 4000))
    initialize_dense(network, seed=1)
    for layer in (network[0], network[2]):
        weights = layer.weight / math.sqrt(2 / (layer.in_features + layer.out_features))
        biases = layer.bias * math.sqrt(layer.out_features)
        assert weights.std().item() == pytest.approx(1, abs=0.01) and weights.abs().max() > 3.5, "not truncated"
        assert biases.std().item() == pytest.approx(1, abs=0.1)
        assert weights.mean().item() == pytest.approx(0, abs=0.01)


def test_cross_layers_are_truncated_normal_as_published() -> None:
    config = DCNv2Config(embedding_dim=64, bottom_mlp=(64,), cross_layers=2, cross_rank=200, top_mlp=(8,))
    layers = build_model(config, make_schema(numeric=1, categorical=4), seed=1).dense_network.cross_layers
    assert not torch.equal(layers[0].u.weight, layers[1].u.weight)
    for layer in layers:
        for kernel in (layer.u.weight, layer.v.weight):
            assert 0.099 < kernel.abs().max() <= 0.1
            assert kernel.std().item() == pytest.approx(0.05 * 0.8796, rel=0.02)
        assert layer.v.bias.abs().max() == 0


def test_values_depend_on_the_seed_alone() -> None:
    config, schema = DLRMConfig(embedding_dim=4, bottom_mlp=(4,), top_mlp=(8,)), make_schema()
    torch.manual_seed(1)
    first = build_model(config, schema, seed=5).state_dict()
    torch.manual_seed(2)
    second = build_model(config, schema, seed=5).state_dict()
    other = build_model(config, schema, seed=6).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_values_are_the_same_in_every_process() -> None:
    table = torch.empty(3, 2)
    initialize_shard(table, replace(TABLE, rows=3, dim=2), 7)
    assert table.flatten().tolist() == pytest.approx(GOLDEN, abs=1e-6)


KEYS = np.arange(20_000, dtype=np.uint64) * np.uint64(2**44 + 1)


def test_a_drawn_row_depends_on_its_key_alone() -> None:
    whole = draw_rows(TABLE, 7, KEYS)
    order = np.random.default_rng(1).permutation(len(KEYS))
    assert torch.equal(draw_rows(TABLE, 7, KEYS[order]), whole[order])
    assert torch.equal(draw_rows(TABLE, 7, KEYS[17:18]), whole[17:18])
    wider = draw_rows(replace(TABLE, dim=9), 7, KEYS)
    assert torch.equal(wider[:, :DIM], whole[:, :DIM]) and wider.shape[1] == 12 and not wider[:, 9:].any()
    for other in (draw_rows(TABLE, 8, KEYS), draw_rows(replace(TABLE, name="C2"), 7, KEYS)):
        assert (other[:, :DIM] != whole[:, :DIM]).float().mean() > 0.99


@pytest.mark.parametrize(
    ("values", "distribution"),
    [
        (UniformByRows(), stats.uniform(-1 / math.sqrt(ROWS), 2 / math.sqrt(ROWS))),
        (Normal(std=0.3), stats.norm(0, 0.3)),
        (TruncatedNormal(std=0.3), stats.truncnorm(-2, 2, scale=0.3)),
    ],
)
def test_drawn_rows_are_as_published(values: TableValues, distribution: stats.rv_continuous) -> None:
    shares = torch.tensor([2.0**-53, 0.01, 0.3, 0.5, 0.99, 1 - 2.0**-53], dtype=torch.float64)
    assert values.quantiles(shares, rows=ROWS).tolist() == pytest.approx(distribution.ppf(shares), rel=1e-6, abs=1e-12)
    drawn = draw_rows(replace(TABLE, values=values), 7, KEYS)[:, :DIM]
    assert stats.kstest(drawn.flatten().numpy(), distribution.cdf).pvalue > 0.01
    assert np.abs(np.corrcoef(drawn.T) - np.eye(DIM)).max() < 0.03, "columns do not follow each other"


def test_a_table_of_zeros_grows_by_zeros() -> None:
    assert not draw_rows(replace(TABLE, values=Zeros()), 7, KEYS).any()


def test_drawn_rows_are_the_same_in_every_process() -> None:
    drawn = draw_rows(replace(TABLE, rows=3, dim=2), 7, np.array([0, 2**64 - 1], np.uint64))[:, :2]
    assert drawn.flatten().tolist() == pytest.approx(GOLDEN_DRAWN, abs=1e-6)
