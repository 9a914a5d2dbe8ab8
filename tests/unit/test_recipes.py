"""The shipped recipes: valid, and faithful to what was published."""

from typing import Any

import pytest

from rayrec.common.errors import ConfigError
from rayrec.common.plugins import MODELS
from rayrec.config.optimizers import ScheduleConfig
from rayrec.features.schema import CategoricalFeature, NumericFeature, Schema
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe, RecipeContent, load_recipe, recipe_schema
from rayrec.sources.outbrain.feature_sets import features_of

FREQUENCY_LIMIT_15 = (
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11,
    2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35,
)  # fmt: skip
"""Published table sizes of Criteo Terabyte."""


def criteo_schema(cardinalities: tuple[int, ...]) -> Schema:
    return Schema(
        label="label",
        features=(
            *(NumericFeature(name=f"I{i + 1}") for i in range(13)),
            *(CategoricalFeature(name=f"C{i + 1}", cardinality=n) for i, n in enumerate(cardinalities)),
        ),
    )


@pytest.mark.parametrize(
    ("name", "published"),
    [
        (
            "dlrm-criteo",
            {
                "model.kind": "dlrm",
                "model.interaction": "dot",
                "train.embedding_optimizer.kind": "sgd",
                "train.embedding_optimizer.lr": 24.0,
                "train.dense_optimizer.kind": "sgd",
                "train.dense_optimizer.lr": 24.0,
                "train.dense_optimizer.momentum": 0.0,
                "train.schedule.warmup_steps": 8000,
            },
        ),
        (
            "dcnv2-criteo",
            {
                "model.kind": "dcnv2",
                "model.cross_layers": 3,
                "model.cross_rank": 512,
                "train.embedding_optimizer.kind": "adam",
                "train.embedding_optimizer.lr": 1e-4,
                "train.embedding_optimizer.betas": (0.9, 0.999),
                "train.dense_optimizer.kind": "adam",
                "train.dense_optimizer.lr": 1e-4,
                "train.dense_optimizer.betas": (0.9, 0.999),
                "train.schedule.warmup_steps": 100,
            },
        ),
    ],
)
def test_published_hyper_parameters(name: str, published: dict[str, object]) -> None:
    recipe = load_recipe(name)
    both = {
        "preprocess.split.kind": "day",
        "preprocess.split.held_out_day": 23,
        "preprocess.frequency_limit": 15,
        "preprocess.order": "total_random",
        "model.embedding_dim": 128,
        "model.bottom_mlp": (512, 256, 128),
        "model.top_mlp": (1024, 1024, 512, 256),
        "train.global_batch_size": 65_536,
        "train.epochs": 1,
        "train.embedding_optimizer.weight_decay": 0.0,
        "train.dense_optimizer.weight_decay": 0.0,
        "train.schedule.decay_start": 48_000,
        "train.schedule.decay_steps": 24_000,
        "train.schedule.decay_power": 2.0,
        "train.schedule.end_factor": 0.0,
        "evaluate.global_batch_size": 65_536,
    }
    assert {key: value_at(recipe, key) for key in both | published} == both | published


def test_published_hyper_parameters_of_neumf() -> None:
    optimizer = {"kind": "adam", "lr": 0.0045, "betas": (0.25, 0.5), "eps": 1e-8, "weight_decay": 0.0}
    published = {
        "model.parts": ("gmf", "mlp"),
        "model.factors": 64,
        "model.mlp": (256, 256, 128, 64),
        "model.dropout": 0.5,
        "train.global_batch_size": 2**20,
        "train.epochs": 30,
        "train.sharding.default": "data_parallel",
        "train.schedule.warmup_steps": 0,
        "train.schedule.decay_start": None,
        "evaluate.ranking.names": ("hr@10", "ndcg@10"),
        **{f"train.{part}_optimizer.{k}": v for part in ("embedding", "dense") for k, v in optimizer.items()},
    }
    recipe = load_recipe("neumf-ml-20m")
    assert {key: value_at(recipe, key) for key in published} == published


@pytest.mark.parametrize(
    ("name", "published"),
    [
        (
            "wide-deep-outbrain",
            {
                "model.combiner": "mean",
                "model.dropout": 0.0,
                "train.epochs": 120,
                "train.embedding_optimizer.kind": "adagrad",
                "train.embedding_optimizer.lr": 1.0,
                "train.embedding_optimizer.initial_accumulator": 0.1,
                "train.dense_optimizer.kind": "adagrad",
                "train.dense_optimizer.lr": 1.0,
                "train.dense_optimizer.initial_accumulator": 0.1,
                "train.parts.wide.embedding_optimizer.lr": 0.2,
                "train.parts.wide.dense_optimizer.lr": 0.2,
                "train.schedule": ScheduleConfig(),
            },
        ),
        (
            "wide-deep-outbrain-lean",
            {
                "model.combiner": "sum",
                "model.dropout": 0.1,
                "train.epochs": 20,
                "train.embedding_optimizer.kind": "rmsprop",
                "train.embedding_optimizer.lr": 1.2e-4,
                "train.embedding_optimizer.rho": 0.5,
                "train.dense_optimizer.kind": "rmsprop",
                "train.dense_optimizer.lr": 1.2e-4,
                "train.dense_optimizer.rho": 0.5,
                "train.dense_optimizer.momentum": 0.0,
                "train.parts.wide.embedding_optimizer.lr": 0.02,
                "train.parts.wide.dense_optimizer.lr": 0.02,
                "train.schedule.warmup_epochs": 6,
            },
        ),
    ],
)
def test_published_hyper_parameters_of_wide_and_deep(name: str, published: dict[str, object]) -> None:
    both = {
        "model.part": "wide_deep",
        "model.mlp": (1024,) * 5,
        "train.global_batch_size": 131_072,
        "train.parts.wide.embedding_optimizer.lr_power": -0.5,
        "train.parts.wide.dense_optimizer.lr_power": -0.5,
        "train.parts.wide.embedding_optimizer.initial_accumulator": 0.1,
        "train.parts.wide.dense_optimizer.initial_accumulator": 0.1,
        "train.parts.wide.embedding_optimizer.l1": 0.0,
        "train.parts.wide.dense_optimizer.l1": 0.0,
        "train.parts.wide.embedding_optimizer.l2": 0.0,
        "train.parts.wide.dense_optimizer.l2": 0.0,
        "train.parts.wide.embedding_optimizer.beta": 0.0,
        "train.parts.wide.dense_optimizer.beta": 0.0,
        "train.parts.wide.embedding_optimizer.kind": "ftrl",
        "train.parts.wide.dense_optimizer.kind": "ftrl",
        "train.parts.wide.schedule": ScheduleConfig(),
        "train.parts.wide.embedding_l2": 0.0,
        "train.checkpoint.keep_best": "map@12",
        "evaluate.ranking.names": ("map@12",),
    }
    recipe = load_recipe(name)
    assert {key: value_at(recipe, key) for key in both | published} == both | published


@pytest.mark.parametrize(
    ("name", "feature_set", "deep_input", "parameters"),
    [("wide-deep-outbrain", "full", 1328, None), ("wide-deep-outbrain-lean", "lean", 1235 + 13, 92e6)],
)
def test_published_sizes_of_wide_and_deep(
    name: str, feature_set: Any, deep_input: int, parameters: float | None
) -> None:
    features = [d.feature or NumericFeature(name=d.name) for d in features_of(feature_set)]
    schema = Schema(label="label", features=tuple(features))
    model = build_model(load_recipe(name).model, schema, "meta")
    assert model.dense_network.deep[0].in_features == deep_input
    assert len(model.tables) == 2 * len(schema.categorical)
    if parameters is not None:
        dense = sum(p.numel() for p in model.dense_network.parameters())
        assert sum(t.rows * t.dim for t in model.tables) + dense == pytest.approx(parameters, rel=0.01)


@pytest.mark.parametrize(
    ("name", "first_top_layer", "dense_parameters"),
    [("dlrm-criteo", (1024, 479), 2_368_897), ("dcnv2-criteo", (1024, 3456), 16_044_545)],
)
def test_published_sizes(name: str, first_top_layer: tuple[int, int], dense_parameters: int) -> None:
    model = build_model(load_recipe(name).model, criteo_schema(FREQUENCY_LIMIT_15), "meta")
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["dense_network.top_mlp.0.weight"] == first_top_layer
    assert sum(p.numel() for p in model.dense_network.parameters()) == dense_parameters
    table_gib = sum(p.numel() for p in model.embeddings.parameters()) * 4 / 2**30
    assert table_gib == pytest.approx(15.6, abs=0.1)


def value_at(recipe: Recipe, key: str) -> object:
    value: object = recipe
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    return value


_CRITEO = {"name": "x", "source": {"kind": "criteo"}}


@pytest.mark.parametrize(
    ("model", "train", "expected"),
    [
        ("dlrm", {}, {"embedding_optimizer": ("rowwise_adagrad", 0.02), "dense_optimizer": ("adam", 0.001)}),
        ("dlrm", {"dense_optimizer": {"lr": 0.5}}, {"dense_optimizer": ("adam", 0.5)}),
        ("dlrm", {"dense_optimizer": {"kind": "adam"}}, {"dense_optimizer": ("adam", 0.001)}),
        ("dlrm", {"dense_optimizer": {"kind": "sgd", "lr": 3}}, {"dense_optimizer": ("sgd", 3.0)}),
        ("wide_deep", {}, {"embedding_optimizer": ("adagrad", 0.05)}),
        ("wide_deep", {"epochs": 7}, {"epochs": 7}),
    ],
)
def test_what_a_recipe_leaves_out_of_train_suits_the_model(
    model: str, train: dict[str, Any], expected: dict[str, Any]
) -> None:
    recipe = Recipe.model_validate({**_CRITEO, "model": {"kind": model}, "train": train})
    for key, value in expected.items():
        found = getattr(recipe.train, key)
        assert ((found.kind, found.lr) if isinstance(value, tuple) else found) == value
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_a_part_has_the_optimizers_of_the_model_unless_the_recipe_has_its_own() -> None:
    content = {**_CRITEO, "model": {"kind": "wide_deep"}}
    assert Recipe.model_validate(content).train.parts["wide"].dense_optimizer.kind == "ftrl"
    own = {"embedding_optimizer": {"kind": "sgd", "lr": 0.1}}
    assert not Recipe.model_validate({**content, "train": own}).train.parts
    rate = {"embedding_optimizer": {"lr": 0.1}}
    assert Recipe.model_validate({**content, "train": rate}).train.parts["wide"].dense_optimizer.kind == "ftrl"


@pytest.mark.parametrize(
    ("optimizer", "sharding"),
    [
        ({"lr": 0.002}, "data_parallel"),
        ({"kind": "adam", "lr": 0.002}, "data_parallel"),
        ({"kind": "sgd", "lr": 1}, "auto"),
    ],
)
def test_tables_stay_sharded_as_their_optimizer_needs(optimizer: dict[str, Any], sharding: str) -> None:
    """As a search of learning rates sets them."""
    content = {
        "name": "x",
        "source": {"kind": "interactions"},
        "model": {"kind": "sasrec"},
        "evaluate": {"ranking": {"candidates": "next"}},
        "train": {"embedding_optimizer": optimizer},
    }
    assert Recipe.model_validate(content).train.sharding.default == sharding


def test_an_optimizer_of_another_kind_than_the_models_needs_a_rate() -> None:
    content = {**_CRITEO, "model": {"kind": "dcnv2"}, "train": {"dense_optimizer": {"kind": "sgd"}}}
    with pytest.raises(ConfigError, match=r"^x: .*train.dense_optimizer.lr: missing; .* give a rate for 'sgd'"):
        RecipeContent("x", content).resolve()


def test_the_schema_shows_what_suits_each_model() -> None:
    rules = {rule["if"]["properties"].get("model", {}).get("properties", {}).get("kind", {}).get("const"): rule["then"]
             for rule in recipe_schema()["allOf"]}  # fmt: skip
    for kind, config in MODELS.configs.items():
        shown = rules[kind]["properties"]["train"]["properties"]
        assert {key: found["default"] for key, found in shown.items()} == dict(config.train_defaults) != {}
