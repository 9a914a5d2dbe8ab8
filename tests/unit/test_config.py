"""Recipes: what loads, in which order settings win, and what a person is told about a mistake."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from jobs.command.runner import build_request
from jobs.train import TrainRequest
from rayrec.common.errors import ConfigError
from rayrec.config.preprocess import SparkConfig
from rayrec.config.train import EarlyStopConfig
from rayrec.config.validation import dump_yaml, parse_yaml
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.recipes import dump_recipe, load_recipe, shipped_recipes

RECIPE = """
description: for tests
source: {kind: criteo}
model: {kind: dlrm, embedding_dim: 8, bottom_mlp: [16, 8], top_mlp: [16]}
train:
  global_batch_size: 64
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("name", shipped_recipes())
def test_shipped_recipes_load_and_come_back_equal(name: str, tmp_path: Path) -> None:
    loaded = load_recipe(name)
    assert loaded.name == name
    assert len(loaded.description) > 20
    (tmp_path / "resolved.yaml").write_text(dump_recipe(loaded))
    assert load_recipe(tmp_path / "resolved.yaml") == loaded


@pytest.mark.parametrize(("workers", "least", "most"), [("1:4", 1, 4), (4, None, 4), ("2", None, 2)])
def test_workers_are_a_number_or_a_range(workers: str | int, least: int | None, most: int) -> None:
    request = build_request(TrainRequest, {"recipe": "dlrm-criteo", "data": "d", "output": "o", "workers": workers})
    train = request.load_recipe().train
    assert (train.min_workers, train.workers) == (least, most)


@pytest.mark.parametrize(
    ("workers", "message"),
    [("4:2", r"min_workers \(4\) must not be more than workers \(2\)"), ("0:2", "workers: "), ("many", "workers: ")],
)
def test_a_wrong_range_of_workers_is_refused(workers: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_request(
            TrainRequest, {"recipe": "dlrm-criteo", "data": "d", "output": "o", "workers": workers}
        ).load_recipe()


def test_override_wins_over_file_and_file_over_default(recipe: Path) -> None:
    plain = load_recipe(recipe)
    assert plain.name == "mine"
    assert (plain.train.global_batch_size, plain.train.epochs) == (64, 1)
    changed = load_recipe(recipe, ["train.global_batch_size=128", "train.epochs=3", "name=other"])
    assert (changed.train.global_batch_size, changed.train.epochs, changed.name) == (128, 3, "other")
    assert changed.model == plain.model


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("train.embedding_optimizer.lr=1e-3", "train.embedding_optimizer", "lr", 0.001),
        ("train.schedule.decay_start=null", "train.schedule", "decay_start", None),
        ("train.compile=true", "train", "compile", True),
        ("train.sharding.memory_per_worker=80GB", "train.sharding", "memory_per_worker", "80GB"),
        ("train.sharding.tables.C1=row_wise", "train.sharding", "tables", {"C1": "row_wise"}),
        ("train.freeze=[embeddings]", "train", "freeze", ("embeddings",)),
        ("preprocess.frequency_limit=7", "preprocess", "frequency_limit", 7),
        ("preprocess.spark.executor_memory=4g", "preprocess.spark", "executor_memory", "4g"),
        ("description=a=b", "", "description", "a=b"),
    ],
)
def test_values_of_overrides(recipe: Path, override: str, section: str, key: str, value: object) -> None:
    node: object = load_recipe(recipe, [override])
    for name in filter(None, section.split(".")):
        node = getattr(node, name)
    assert getattr(node, key) == value


def test_later_overrides_win(recipe: Path) -> None:
    assert load_recipe(recipe, ["train.epochs=2", "train.epochs=5"]).train.epochs == 5


def test_kind_chooses_the_model(recipe: Path) -> None:
    assert isinstance(load_recipe(recipe).model, DLRMConfig)
    recipe.write_text("source: {kind: criteo}\nmodel: {kind: dcnv2, cross_rank: 4}")
    model = load_recipe(recipe).model
    assert isinstance(model, DCNv2Config)
    assert model.cross_rank == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epoch=3", "unknown key 'train.epoch'; did you mean 'epochs'?"),
        ("trian.epochs=3", "unknown key 'trian'; did you mean 'train'?"),
        ("model.botom_mlp=[8]", "unknown key 'model.botom_mlp'; did you mean 'bottom_mlp'?"),
        ("model.cross_rank=4", "unknown key 'model.cross_rank'; known keys: bottom_mlp, embedding_dim,"),
        (
            "train.embedding_optimizer.learnrate=1",
            "unknown key 'train.embedding_optimizer.learnrate'; known keys: beta,",
        ),
        ("preprocess.split={kind: hash, tset: 0.2}", "unknown key 'preprocess.split.tset'; did you mean 'test'?"),
        ("train.epochs=0", "train.epochs: must be above 0 (got 0)"),
        ("model.bottom_mlp=[]", "model.bottom_mlp: "),
        ("model.kind=dlmr", "model.kind: no such kind 'dlmr'; did you mean 'dlrm'?"),
        ("train.checkpoint.keep_best=hit@10", "train.checkpoint.keep_best: no such metric; use auc, log_loss,"),
        (
            "train.checkpoint.keep_best=hr@10",
            "train.checkpoint.keep_best: 'hr@10' is not measured; evaluate.ranking gives no metric",
        ),
        ("evaluate.ranking={k: []}", "evaluate.ranking.k: "),
        (
            "train={embedding_optimizer: {kind: adam, lr: 1}, sharding: {tables: {C1: data_parallel}}}",
            "either all tables are data_parallel or none",
        ),
        ("train.initial_weights={sources: {}}", "train.initial_weights.sources: give at least 1 entry"),
        ("train.initial_weights={sources: {a: b}, c: d}", "unknown key 'train.initial_weights.c'; known keys: options"),
        ("train.parts.wide.lr=1", "unknown key 'train.parts.wide.lr'; did you mean train.embedding_optimizer.lr or "),
        ("epochs=2", "unknown key 'epochs'; did you mean train.epochs or train.warm_start.epochs?"),
        ("ephocs=2", "unknown key 'ephocs'; did you mean train.epochs or train.warm_start.epochs?"),
        ("seed=2", "did you mean preprocess.seed or train.seed?"),
        ("train.lr=2", "did you mean train.embedding_optimizer.lr or train.dense_optimizer.lr?"),
        ("source.min_count=2", "did you mean source.features.N.min_count?"),
        ("train.compile=some", "train.compile: must be true or false or 'auto' (got 'some')"),
        ("preprocess.spark.executor_memory=4gb", "preprocess.spark.executor_memory: write it as in '4g' (got '4gb')"),
        ("source.features=[{kind: cross, of: [a]}]", "source.features.0.of: give at least 2 entries (got ['a'])"),
        ("train.dense_optimizer={kind: ftrl, lr: 1, weight_decay: 0.1}", "weight_decay is not available for 'ftrl'"),
        (
            "train.embedding_optimizer={kind: adagrad, lr: 1, weight_decay: 0.1}",
            "embedding_optimizer.weight_decay of 'adagrad' needs sharding.default: data_parallel",
        ),
        (
            "train={evaluations_per_epoch: 0, early_stop: {target: 0.8}}",
            "train: early_stop needs evaluations_per_epoch",
        ),
        ("train.checkpoint=3", "train.checkpoint: must be a section of keys and values (got 3)"),
        ("=3", "--set =3: write it as section.key=value"),
        ("train.epochs=[1", "--set train.epochs=[1: '[1' is not a YAML value"),
        ("description.text=x", "--set description.text=x: 'description' is a value, not a section"),
    ],
)
def test_a_wrong_override_is_one_line_that_names_it(recipe: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(recipe, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("train.epochs", "many", "must be a whole number (got 'many')"),
        ("train.epoch", "3", "unknown key 'train.epoch'; did you mean 'epochs'?"),
        ("train.early_stop", "{metric: auc}", None),
        ("model.kind", "none", None),
    ],
)
def test_a_wrong_override_is_not_blamed_on_the_file(recipe: Path, key: str, value: str, problem: str | None) -> None:
    with pytest.raises(ConfigError) as raised:
        load_recipe(recipe, [f"{key}={value}"])
    assert str(raised.value).startswith(f"--set {key}")
    assert problem is None or str(raised.value) == f"--set {key}: {problem}"


def test_further_mistakes_are_counted(recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(and 2 more\)$"):
        load_recipe(recipe, ["train.epochs=0", "train.workers=0", "serve.replicas=0"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("latin.yaml", b"description: caf\xe9", "latin.yaml: not UTF-8 text"),
        ("list.yaml", b"- 1\n", "list.yaml: a recipe is a mapping of sections"),
        ("empty.yaml", b"", "empty.yaml: a recipe is a mapping of sections"),
        ("key.yaml", b"evaluate: {true: a}\n", "key.yaml: evaluate: a key is true; write 'on' in quotes"),
        ("number.yaml", b"evaluate: {3: a}\n", "number.yaml: evaluate: the key 3 is no text; write '3' in quotes"),
        ("bare.yaml", b"name: bare\n", "bare.yaml: source: missing; it is required (and 1 more)"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "hint"), [("qqqq", "shipped: "), ("some/folder", "shipped: ")])
def test_a_name_that_is_not_shipped_gets_a_hint(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(hint)):
        load_recipe(name)


@pytest.mark.parametrize(
    ("metric", "value", "reached"),
    [
        ("auc", 0.8, True),
        ("auc", 0.79, False),
        ("log_loss", 0.8, True),
        ("log_loss", 0.81, False),
        ("hr@10", 0.9, True),
    ],
)
def test_a_target_is_reached_from_its_better_side(metric: str, value: float, reached: bool) -> None:
    stop = EarlyStopConfig(metric=metric, target=0.8)
    assert stop.is_reached({metric: value}) is reached
    assert not stop.is_reached({"other": 1.0})
    assert not stop.is_reached({metric: None})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{on: user, values: [NO, yes, off, y, n]}", {"on": "user", "values": ["NO", "yes", "off", "y", "n"]}),
        ("[True, FALSE, true, trueish, ~, null, Null]", [True, False, True, "trueish", None, None, None]),
        ("[010, 007, 0100190056, 08, -01, 00, 01.5]", ["010", "007", "0100190056", "08", "-01", "00", "01.5"]),
        ("[12:30:00, 1:30, 190:20:30.15]", ["12:30:00", "1:30", "190:20:30.15"]),
        ("[2024-05-01, 2024-05-01 10:00:00, 2024-05-01T10:00:00Z]",
         ["2024-05-01", "2024-05-01 10:00:00", "2024-05-01T10:00:00Z"]),
        ("[1_000, 0b11, =, 1.2.3, 5., .5, 1e-1, 1E5, 6.0e+3, -7, +8]",
         ["1_000", "0b11", "=", "1.2.3", 5.0, 0.5, 0.1, 1e5, 6e3, -7, 8]),
        ("[0, -0, 0.5, 0x1F, 0o17, .inf, -.INF]", [0, 0, 0.5, 31, 15, float("inf"), -float("inf")]),
        ("{a: &x {b: 1}, c: {<<: *x, b: 2}}", {"a": {"b": 1}, "c": {"b": 2}}),
    ],
)  # fmt: skip
def test_values_are_those_of_yaml_1_2_and_digits_keep_their_zeros(text: str, value: Any) -> None:
    assert parse_yaml(text) == value
    assert parse_yaml(dump_yaml(value)) == value
    assert parse_yaml(dump_yaml(value, default_flow_style=None)) == value


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
    | st.from_regex(r"[-+]?[0-9_.:exo]{1,8}", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
))  # fmt: skip
def test_what_is_written_reads_back_equal(value: Any) -> None:
    assert parse_yaml(dump_yaml(value)) == value


@pytest.mark.parametrize("text", ["train: {epochs: 1, epochs: 2}", "train:\n  epochs: 1\ntrain: {epochs: 2}"])
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"model: {{kind: dlrm}}\n{text}\n")
    key = "epochs" if "epochs: 1," in text else "train"
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(path))}, line [24]: key '{key}' is there twice; keep one"):
        load_recipe(path)
    with pytest.raises(ConfigError, match=r"^--set train=.*: key 'seed' is there twice; keep one$"):
        load_recipe("dlrm-criteo", ["train={seed: 1, seed: 2}"])


def test_recipes_of_earlier_datasets_may_have_partitions_of_shuffles() -> None:
    assert SparkConfig.model_validate({"shuffle_partitions": None, "executors": 2}) == SparkConfig(executors=2)
    with pytest.raises(ValidationError, match="shuffle_partitions"):
        SparkConfig.model_validate({"shuffle_partitions": 7})
