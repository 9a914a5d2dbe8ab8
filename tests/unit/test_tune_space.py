"""Search spaces: what is drawn, what it makes of a recipe, and what is refused before a trial starts."""

import dataclasses
import random
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pytest

from jobs.tune import TuneRequest
from rayrec.common.errors import ConfigError
from rayrec.common.plugins import MODELS
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import load_recipe, read_recipe
from tests.builders import make_dataset
from tune.search import suggest
from tune.space import (
    check_space,
    combinations,
    load_space,
    own_assignment,
    parse_space,
    require_comparable,
    trial_recipe,
)

DEBUG = "dlrm-criteo-debug"
SPACE = """
train.dense_optimizer.lr: {loguniform: [1.0e-4, 0.1]}
train.schedule.warmup_steps: {integer: [0, 4]}
train.dense_optimizer.kind: {choice: [adam, sgd]}
train.dense_optimizer.momentum: {uniform: [0, 0.9], when: {train.dense_optimizer.kind: sgd}}
size:
  choice:
    small: {model.embedding_dim: 8, model.bottom_mlp: [32, 8]}
    large: {model.embedding_dim: 16, model.bottom_mlp: [64, 16]}
model.top_mlp: {choice: [[32], [64, 32]], when: {size: [small, large]}}
"""


def test_a_trial_has_the_values_of_its_assignment() -> None:
    space, recipe = parse_space("s.yaml", SPACE), read_recipe(DEBUG)
    assignment = {
        "train.dense_optimizer.lr": 0.02,
        "train.schedule.warmup_steps": 3,
        "train.dense_optimizer.kind": "sgd",
        "train.dense_optimizer.momentum": 0.5,
        "size": "small",
        "model.top_mlp": "[64, 32]",
    }
    made = trial_recipe(space, recipe, assignment)
    assert made.model.kind == "dlrm"
    assert (made.model.embedding_dim, made.model.bottom_mlp, made.model.top_mlp) == (8, (32, 8), (64, 32))
    dense = made.train.dense_optimizer
    assert (dense.kind, dense.lr, dense.momentum, made.train.schedule.warmup_steps) == ("sgd", 0.02, 0.5, 3)
    unsearched = {"train": {"embedding_optimizer"}, "preprocess": ..., "evaluate": ...}
    assert made.model_dump(include=unsearched) == load_recipe(DEBUG).model_dump(include=unsearched)


def test_values_are_drawn_within_their_ranges_and_where_their_conditions_hold() -> None:
    space = parse_space("s.yaml", SPACE)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    seen: dict[str, set[Any]] = {}
    for _ in range(200):
        drawn = space.draw(partial(suggest, study.ask()))
        assert ("train.dense_optimizer.momentum" in drawn) == (drawn["train.dense_optimizer.kind"] == "sgd")
        for name, value in drawn.items():
            seen.setdefault(name, set()).add(value)
    assert seen["train.schedule.warmup_steps"] == {0, 1, 2, 3, 4}
    assert seen["size"] == {"small", "large"}
    assert seen["model.top_mlp"] == {"[32]", "[64, 32]"}
    rates = seen["train.dense_optimizer.lr"]
    assert min(rates) >= 1e-4 and max(rates) <= 0.1
    assert 0.35 < sum(rate < 10**-2.5 for rate in rates) / len(rates) < 0.65, "uniform in the logarithm"
    assert all(0 <= value <= 0.9 for value in seen["train.dense_optimizer.momentum"])


def test_the_grid_has_every_combination_once() -> None:
    space = parse_space("s.yaml", SPACE)
    grid = list(space.grid())
    assert len(grid) == len({tuple(point.items()) for point in grid}) == 3 * 3 * (1 + 3) * 2 * 2
    assert {point["train.schedule.warmup_steps"] for point in grid} == {0, 2, 4}
    assert {round(point["train.dense_optimizer.lr"], 6) for point in grid} == {0.0001, 0.003162, 0.1}


def test_many_combinations_are_tried_each_value_at_least_once() -> None:
    text = "".join(f"train.schedule.k{i}: {{choice: [1, 2, 3, 4, 5, 6, 7]}}\n" for i in range(6))
    space = parse_space("s.yaml", text)
    tried = list(combinations(space))
    assert len(tried) == 400
    for name in space.names:
        assert {assignment[name] for assignment in tried} == set(range(1, 8))


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [(DEBUG, "dlrm"), ("dcnv2-criteo-debug", "dcnv2"), ("neumf-ml-1m-debug", "neumf"), ("neumf-ml-1m", "neumf"),
     ("wide-deep-outbrain-debug", "wide_deep")],
)  # fmt: skip
def test_shipped_spaces_suit_their_recipes(recipe: str, kind: str) -> None:
    space = load_space(None, kind)
    check_space(space, read_recipe(recipe))
    assert len(space.names) >= 5


def test_every_model_has_a_space() -> None:
    assert all("search_space" in MODELS.texts(kind, ".yaml") for kind in MODELS.packages)


def test_the_recipe_has_its_own_values_within_a_space_or_outside_of_it() -> None:
    recipe = read_recipe(DEBUG)
    space = load_space(None, "dlrm")
    own = own_assignment(space, recipe)
    assert own["tables"] == "dim-16" and own["train.embedding_optimizer.lr"] == 0.05
    assert space.contains(own) and trial_recipe(space, recipe, own) == recipe.resolve()
    outside = parse_space(
        "s.yaml",
        "train.dense_optimizer.lr: {uniform: [0.5, 1]}\nmodel.top_mlp: {choice: [[7], [9]]}\n"
        "train.schedule.decay_share: {uniform: [0.1, 1]}\nsize: {choice: {small: {train.epochs: 77}}}\n"
        "train.seed: {choice: [3], when: {size: small}}\n",
    )
    own = own_assignment(outside, recipe)
    assert own == {"train.dense_optimizer.lr": 0.002, "model.top_mlp": "[64, 32]"}
    assert not outside.contains(own)


# A space's text, and the line that says what is wrong with it.
WRONG = [
    ("{}", "s.yaml: empty; there is nothing to search"),
    ("- 1", "s.yaml: a search space is a mapping of keys of a recipe"),
    ("train.epochs: {integer: [1, 2], uniform: [1, 2]}", "s.yaml: train.epochs: give one of choice, uniform,"),
    ("train.epochs: {integr: [1, 2]}", "s.yaml: train.epochs: unknown key 'integr'; did you mean 'integer'?"),
    ("train.epochs: {integer: [2, 1]}", "integer: the first value must be less than the second"),
    ("train.dense_optimizer.lr: {loguniform: [0, 1]}", "loguniform: values must be above 0"),
    ("train.epochs: {choice: []}", "s.yaml: train.epochs: choice"),
    (
        "train.epochs: {choice: [1], when: {model.kind: dlrm}}",
        "when: 'model.kind' is not a parameter that comes before it",
    ),
    (
        "a: {choice: {x: {train.epochs: 1}}}\ntrain.seed: {choice: [1], when: {a: y}}",
        "s.yaml: train.seed: when: 'a' is never 'y'; name one of its choices",
    ),
    ("preprocess.seed: {choice: [1, 2]}", "s.yaml: preprocess.seed: cannot be searched: trials share one dataset"),
    ("size: {choice: [1, 2]}", "s.yaml: size: cannot be searched"),
    # Known only with the recipe:
    (
        "train.ephocs: {choice: [1]}",
        "s.yaml: with train.ephocs=1: dlrm-criteo-debug: unknown key 'train.ephocs'; did you",
    ),
    (
        "model.embedding_dim: {choice: [8, 16]}",
        "s.yaml: with model.embedding_dim=8: dlrm-criteo-debug: model: bottom_mlp must end in embedding_dim (8)",
    ),
    (
        "train.global_batch_size: {integer: [1, 512]}",
        "s.yaml: with train.global_batch_size=1: dlrm-criteo-debug: train: gl",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:60] for _, message in WRONG])
def test_a_wrong_space_is_refused_before_the_first_trial(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        check_space(parse_space("s.yaml", text), read_recipe(DEBUG))
    assert message in str(raised.value)


def _labelled(dataset: Dataset, split: str, positives: float) -> Dataset:
    """The same dataset with another number of positives in a split."""
    splits = dataset.manifest.splits
    changed = {**splits, split: splits[split].model_copy(update={"positives": positives})}
    return dataclasses.replace(dataset, manifest=dataset.manifest.model_copy(update={"splits": changed}))


def test_trials_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", {"train": 2_000, "validation": 100}, recipe=load_recipe(DEBUG))
    batch, steps = "train.global_batch_size", "train.max_steps"
    space = parse_space("s.yaml", f"{batch}: {{choice: [512, 1024]}}")
    require_comparable(space, read_recipe(DEBUG), dataset)
    # An epoch has four batches of 512 rows at most.
    require_comparable(space, read_recipe(DEBUG, (f"{steps}=4",)), dataset)
    wrong = [
        (dataset, (f"{steps}=2",), None),  # which is evaluated at its end
        (_labelled(dataset, "validation", 0.0), (), r"every label of split 'validation' of .* is 0"),
        (_labelled(dataset, "validation", 100.0), (), r"every label of split 'validation' of .* is 1"),
        (dataset, ("train.evaluation_split=test",), r"no rows in split 'test' to choose by"),
        (dataset, ("source.label=clicked",), r"^source.label: is 'clicked', but .* was made with 'label'; set it back"),
    ]
    for found, overrides, message in wrong:
        with pytest.raises(ConfigError, match=message) if message else nullcontext():
            require_comparable(space, read_recipe(DEBUG, overrides), found)
    with pytest.raises(ConfigError, match=rf"{batch}: 2,000 rows of split 'train' fill no batch"):
        require_comparable(parse_space("s.yaml", f"{batch}: {{choice: [4096]}}"), read_recipe(DEBUG), dataset)


FOUR, ONE = ("train.evaluations_per_epoch=4",), ("train.epochs=1",)


def _request(**fields: Any) -> TuneRequest:
    return TuneRequest(**{"recipe": DEBUG, "data": "d", "output": "o", "trials": 4, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"set": ("model={kind: dlrm}",)}, "searches model."),
        ({"metric": "hr@10"}, "train.checkpoint.keep_best: 'hr@10' is not measured"),
        ({"search": "pbt", "scheduler": "asha", "set": FOUR}, "population based training is a scheduler itself"),
        ({"search": "pbt", "trials": 2, "set": FOUR}, "--search pbt: needs at least two trials"),
        ({"search": "pbt", "set": ONE}, "give --trials 5 and --set train.evaluations_per_e"),
        (
            {"scheduler": "asha", "set": ONE},
            "--scheduler asha: a trial has only one evaluation, so it cannot be stopped early; add",
        ),
        ({"set": ("train.evaluations_per_epoch=0",)}, "trials are compared by their evaluations, but this is 0; add"),
        ({"set": ("train.evaluate_every_steps=9",)}, "set it to null, and train.evaluations_per_epoch instead"),
        ({"space": "dlrm"}, "--space dlrm: a search space is a file whose name ends in .yaml"),
    ],
)
def test_wrong_requests_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        _request(**fields).check()
    assert message in str(raised.value)


def test_a_request_knows_its_metric() -> None:
    assert _request().trial_content().resolve().train.checkpoint.keep_best == "auc"
    assert _request(metric="log_loss").trial_content().resolve().train.checkpoint.keep_best == "log_loss"
    neumf = _request(recipe="neumf-ml-1m-debug")
    assert neumf.chosen_metric(neumf.load_recipe()) == "hr@10"


def test_chance_draws_are_the_same_each_time() -> None:
    state = random.getstate()
    space = parse_space("s.yaml", "".join(f"train.k{i}: {{uniform: [0, 1]}}\n" for i in range(8)))
    assert list(combinations(space)) == list(combinations(space))
    assert random.getstate() == state
