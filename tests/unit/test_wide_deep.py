"""Wide & Deep: its logits, its tables and initial values, its parts, what does not suit it."""

import math

import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.models.registry import build_model
from rayrec.models.wide_deep.config import WideDeepConfig
from rayrec.recipes import load_recipe
from rayrec.training.run.preflight import require_parts
from tests.builders import make_schema
from tests.naive_models import random_batch

SMALL = WideDeepConfig(embedding_dim=6, embedding_dims={"C2": 3}, mlp=(9, 5))
SCHEMA = make_schema(numeric=3, categorical=3, multi_hot=2)


def test_every_feature_feeds_both_parts() -> None:
    model = build_model(SMALL, SCHEMA, "meta")
    tables = model.tables
    names = [feature.name for feature in SCHEMA.categorical]
    assert [(t.name, t.features, t.part) for t in tables] == [
        *((name, (name,), "main") for name in names),
        *((f"{name}_wide", (name,), "wide") for name in names),
    ]
    assert [t.dim for t in tables] == [6, 3, 6, 6, 6, 1, 1, 1, 1, 1]
    assert [o.pooling for o in model.pooled] == ["sum"] * 4 + ["mean"] + ["sum"] * 5
    assert [t.rows for t in tables[:5]] == [t.rows for t in tables[5:]] == [f.cardinality for f in SCHEMA.categorical]


def test_the_wide_part_starts_at_0() -> None:
    model = build_model(SMALL.model_copy(update={"part": "wide"}), SCHEMA, seed=5)
    assert not any(parameter.any() for parameter in model.parameters())
    assert not model(random_batch(SCHEMA, 5)).any()


@pytest.mark.parametrize(
    ("init", "std"), [("truncated_normal", 0.8796 / math.sqrt(16)), ("glorot_normal", math.sqrt(2 / (20_000 + 16)))]
)
def test_initial_values_are_as_published(init: str, std: float) -> None:
    schema = Schema(label="label", features=(CategoricalFeature(name="C1", cardinality=20_000),))
    config = WideDeepConfig(embedding_dim=16, embedding_init=init, mlp=(300, 200))
    model = build_model(config, schema, seed=1)
    table = model.embeddings.embedding_bags["C1"].weight
    assert table.std().item() == pytest.approx(std, rel=0.01)
    assert table.abs().max().item() == pytest.approx(2 * std / 0.8796, rel=0.01)  # drawn again beyond that
    for layer, (rows, columns) in ((0, (300, 16)), (3, (200, 300)), (6, (1, 200))):
        linear = model.dense_network.deep[layer]
        bound = math.sqrt(6 / (rows + columns))
        assert linear.weight.shape == (rows, columns) and not linear.bias.any()
        assert linear.weight.abs().max().item() == pytest.approx(bound, rel=0.05)
        assert linear.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)


def test_tables_of_both_parts_need_names_of_their_own() -> None:
    features = tuple(CategoricalFeature(name=name, cardinality=3) for name in ("a", "a_wide"))
    with pytest.raises(UserError, match="two embedding tables would be named 'a_wide'"):
        build_model(WideDeepConfig(), Schema(label="y", features=features))


@pytest.mark.parametrize("field", ["embedding_optimizer.lr=0.1", "schedule.warmup_steps=5"])
def test_the_wide_parts_settings_are_for_this_model(field: str) -> None:
    for recipe, part, known in (
        ("dlrm-criteo-debug", "wide", "all of it is trained as one"),
        ("wide-deep-outbrain-debug", "deep", "it has wide"),
    ):
        other = load_recipe(recipe, [f"train.parts.{part}.{field}"])
        with pytest.raises(ConfigError, match=rf"train\.parts\.{part}: the model has no such part; {known}"):
            require_parts(other.train, build_model(other.model, SCHEMA, "meta"))
    # Without its wide part, too, so that a part alone can be tried.
    deep = load_recipe("wide-deep-outbrain-debug", [f"train.parts.wide.{field}", "model.part=deep"])
    require_parts(deep.train, build_model(deep.model, SCHEMA, "meta"))
