"""NeuMF and its parts: what they compute, how they begin, and how NeuMF is made from the trained parts."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.features.schema import NumericFeature, Schema
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.common.ranking import RankingModel, ScoresPairs
from rayrec.models.neumf import model as neumf
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.neumf.pretraining import compose
from rayrec.models.registry import build_model
from tests.builders import users_and_items
from tests.naive_models import random_batch

NEUMF = NeuMFConfig(factors=5, mlp=(8, 6, 3), dropout=0.5)
GMF = NEUMF.model_copy(update={"parts": ("gmf",)})
MLP = NEUMF.model_copy(update={"parts": ("mlp",)})
PARTS = {
    "neumf": NEUMF,
    "gmf": GMF,
    "mlp": MLP,
    "no layer": NEUMF.model_copy(update={"mlp": (4,)}),
    "dot": NEUMF.model_copy(update={"gmf_output": "dot"}),
    "dot alone": GMF.model_copy(update={"gmf_output": "dot"}),
}
PAIRS = users_and_items(50, 40)


@pytest.mark.parametrize("item_first", [False, True])
@pytest.mark.parametrize("config", PARTS.values(), ids=PARTS.keys())
def test_all_pairs_equal_pairs_one_by_one(
    config: NeuMFConfig, item_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neumf, "_HIDDEN_VALUES", 60)  # several blocks
    network = build_model(config, users_and_items(50, 40, item_first=item_first), seed=3).eval().dense_network
    assert isinstance(network, ScoresPairs)
    width = config.gmf_width + config.mlp_width
    first, second = torch.randn(7, width), torch.randn(11, width)
    pooled = torch.cat([first.repeat_interleave(11, 0), second.repeat(7, 1)], dim=1)
    with torch.inference_mode():
        expected = network(torch.empty(77, 0), pooled).view(7, 11)
        torch.testing.assert_close(network.pair_logits(first, second), expected, rtol=1e-5, atol=1e-5)


def test_published_size() -> None:
    schema = users_and_items(138_493 + 1, 26_744 + 1)
    model = build_model(NeuMFConfig(), schema, "meta")
    assert model.embeddings.embedding_bags["user"].weight.shape == (138_494, 192)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert shapes["dense_network.mlp.6.weight"] == (64, 128)
    assert shapes["dense_network.output.weight"] == (1, 128)
    parameters = sum(p.numel() for p in model.parameters()) - 2 * 192  # the rows of the unknown user and item
    assert parameters == 31_832_577


def test_initial_values_are_as_published() -> None:
    model = build_model(NeuMFConfig(), users_and_items(3_000, 2_000), seed=1)
    for table in model.embeddings.parameters():
        assert table.std().item() == pytest.approx(0.01, rel=0.02)
        assert table.mean().item() == pytest.approx(0, abs=1e-4)
        assert table.abs().max() > 0.03, "not truncated"
    limits = {
        "mlp.0": math.sqrt(6 / 512), "mlp.3": math.sqrt(6 / 384), "mlp.6": math.sqrt(6 / 192),
        "output": math.sqrt(3 / 128),
    }  # fmt: skip
    for name, limit in limits.items():
        layer = model.dense_network.get_submodule(name)
        assert 0.95 * limit < layer.weight.abs().max() <= limit
        assert layer.weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.1)
        assert 0 < layer.bias.abs().max() <= 1 / math.sqrt(layer.in_features)


@pytest.mark.parametrize("config", PARTS.values(), ids=PARTS.keys())
def test_every_parameter_learns(config: NeuMFConfig) -> None:
    schema = users_and_items(4, 3)
    model = build_model(config.model_copy(update={"dropout": 0.0}), schema)
    model(random_batch(schema, rows=64)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (PAIRS.model_copy(update={"interactions": None}), "names the user and the item"),
        (
            users_and_items(50, 40).model_copy(
                update={"features": (*users_and_items(50, 40).features, NumericFeature(name="age"))}
            ),
            "also has a feature 'age'",
        ),
    ],
)
def test_unsuitable_features(schema: Schema, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_model(NEUMF, schema)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"parts": ("gmf", "gmf")}, "parts names one part twice"), ({"mlp": (7, 4)}, "mlp must begin with an even width")],
)
def test_unsuitable_hyper_parameters(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuMFConfig(**changes)


class _Trained:
    """The weights of a model in memory, as those of a run."""

    def __init__(self, config: NeuMFConfig, model: RankingModel) -> None:
        self.recipe = SimpleNamespace(model=config)
        self.tables = model.tables
        self._model = model

    def table(self, table: EmbeddingTable) -> torch.Tensor:
        return self._model.embeddings.embedding_bags[table.name].weight.detach()

    def dense(self) -> dict[str, torch.Tensor]:
        return self._model.dense_network.state_dict()


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("gmf_output", ["learned", "dot"])
def test_made_from_trained_parts(gmf_output: str, alpha: float) -> None:
    """Before further training its logits are the weighted sum of the parts' logits."""
    schema = users_and_items(50, 40)
    configs = [config.model_copy(update={"gmf_output": gmf_output}) for config in (GMF, MLP, NEUMF)]
    parts = [build_model(config, schema, seed=seed).eval() for config, seed in zip(configs[:2], (1, 2), strict=True)]
    with torch.no_grad():
        for part in parts:
            for table in part.embeddings.parameters():
                table.mul_(100)
    model = build_model(configs[2], schema, seed=3).eval()
    sources = {name: _Trained(config, part) for name, config, part in zip(("gmf", "mlp"), configs, parts, strict=False)}
    composed = compose(configs[2], sources, {"alpha": alpha})
    tables = {f"embeddings.embedding_bags.{table.name}.weight": composed.table(table) for table in model.tables}
    dense = {f"dense_network.{name}": value for name, value in composed.dense().items()}
    model.load_state_dict(tables | dense)
    batch = random_batch(schema, rows=20)
    gmf, mlp = (part(batch) for part in parts)
    torch.testing.assert_close(model(batch), alpha * gmf + (1 - alpha) * mlp)
    assert not torch.equal(model(batch), model(replace(batch, sparse=random_batch(schema, 20, seed=1).sparse)))
