"""What Ray Tune is given: points of a grid, and a scheduler that remembers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import TrialScheduler

from rayrec.common.errors import ConfigError
from rayrec.recipes import read_recipe
from tune.search import RememberingASHA, strategy
from tune.space import parse_space, searchable_space
from tune.sweep_folder import Search, SweepSettings, TrialRecord
from tune.trial import EVALUATION, GIVEN, OBJECTIVE

SPACE = """
train.dense_optimizer.lr: {loguniform: [1.0e-4, 0.1]}
train.schedule.warmup_steps: {integer: [0, 4]}
model.top_mlp: {choice: [[32], [64, 32]]}
"""
GRID = 3 * 3 * 2


def _settings(folder: Path, search: Search = "optuna") -> SweepSettings:
    recipe = read_recipe("dlrm-criteo-debug")
    space = parse_space("s.yaml", SPACE)
    return SweepSettings(recipe, space, folder, "log_loss", 30, search, "asha", folder, lambda *_: None)


@pytest.mark.parametrize("text", [SPACE, "model.top_mlp: {choice: [[9]]}\ntrain.epochs: {integer: [50, 60]}\n"])
@pytest.mark.parametrize("search", ["optuna", "random", "grid"])
def test_the_first_trial_alone_is_the_given_recipe(text: str, search: Search, tmp_path: Path) -> None:
    """Within the space and outside of it."""
    settings = replace(_settings(tmp_path, search), space=parse_space("s.yaml", text))
    searcher = strategy(settings, 4).searcher
    drawn = [searcher.suggest(str(number)) for number in range(5)]
    assert [bool(config.get(GIVEN)) for config in drawn] == [True, False, False, False, False]


def test_the_given_recipe_is_trained_to_its_end(tmp_path: Path) -> None:
    scheduler = RememberingASHA(_settings(tmp_path), evaluations=4)
    decisions = []
    for number, config in enumerate([{}, {}, {GIVEN: True}, {}]):
        trial = TuneTrial("rayrec", stub=True, trial_id=str(number), config=config)
        scheduler.on_trial_add(None, trial)
        decisions.append(scheduler.on_trial_result(None, trial, {EVALUATION: 1, OBJECTIVE: 0.5 + number / 10}))
    assert decisions == [TrialScheduler.CONTINUE, TrialScheduler.STOP, TrialScheduler.CONTINUE, TrialScheduler.STOP]


def test_a_grid_has_as_many_trials_as_points(tmp_path: Path) -> None:
    space = parse_space("s.yaml", SPACE)
    assert searchable_space(space, "grid", 30) == space
    # The given recipe's rate is none of the grid's.
    assert strategy(_settings(tmp_path, "grid"), 4).trials == GRID + 1
    assert strategy(_settings(tmp_path, "random"), 4).trials == 30
    with pytest.raises(ConfigError, match=f"--trials 17: the grid of s.yaml has {GRID} points"):
        searchable_space(space, "grid", 17)
    huge = parse_space("s.yaml", "".join(f"train.k{i}: {{choice: [1, 2, 3, 4]}}\n" for i in range(12)))
    with pytest.raises(ConfigError, match="has 10000 points or more"):
        searchable_space(huge, "grid", 17)


def test_population_based_training_searches_what_can_change_under_way() -> None:
    assert searchable_space(parse_space("s.yaml", SPACE), "pbt", 4).names == (
        "train.dense_optimizer.lr",
        "train.schedule.warmup_steps",
    )
    with pytest.raises(ConfigError, match=r"none of these can be \(model\.top_mlp\)"):
        searchable_space(parse_space("s.yaml", "model.top_mlp: {choice: [[32], [64]]}"), "pbt", 4)


@pytest.mark.parametrize(
    ("value", "decision"), [(0.45, TrialScheduler.CONTINUE), (0.55, TrialScheduler.STOP)], ids=["better", "worse"]
)
def test_trials_after_an_interruption_are_compared_with_those_before(
    value: float, decision: str, tmp_path: Path
) -> None:
    """A trial that ended told its log loss to Tune twice; what it wrote after that does not count."""
    settings = _settings(tmp_path)
    for trial, losses in {"a": (0.6, 0.5, 0.1), "b": (0.7, 0.5, 0.4)}.items():
        folder = settings.trials_folder / trial
        TrialRecord(trial, {}, state="stopped").save(folder)
        (folder / "run").mkdir()
        records = [{"event": "evaluate", "step": step, "log_loss": loss} for step, loss in enumerate(losses)]
        (folder / "run" / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    scheduler = RememberingASHA(settings, evaluations=4)
    for trial in ("a", "b"):
        ended = TuneTrial("rayrec", stub=True, trial_id=trial)
        ended.run_metadata.last_result = {EVALUATION: 2 if trial == "a" else 3}
        ended.set_status(TuneTrial.TERMINATED)
        scheduler.on_trial_add(None, ended)
    new = TuneTrial("rayrec", stub=True, trial_id="c")
    scheduler.on_trial_add(None, new)
    # The first rung holds 0.6 and 0.7, the third evaluation's 0.4 alone.
    assert scheduler.on_trial_result(None, new, {EVALUATION: 1, OBJECTIVE: 0.59}) == TrialScheduler.CONTINUE
    assert scheduler.on_trial_result(None, new, {EVALUATION: 3, OBJECTIVE: value - 0.1}) == decision
