"""What Ray Tune is given: points of a grid, and a scheduler that remembers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Experiment
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import TrialScheduler

from rayrec.common.errors import ConfigError
from rayrec.recipes import read_recipe
from tune.search import RememberingASHA, strategy
from tune.space import Scalar, own_assignment, parse_space, searchable_space
from tune.sweep_folder import Search, State, SweepSettings, TrialRecord, read_outcomes
from tune.trial import EVALUATION, FOLDER, GIVEN, OBJECTIVE, Trial, trial_name

SPACE = """
train.dense_optimizer.lr: {loguniform: [1.0e-4, 0.1]}
train.schedule.warmup_steps: {integer: [0, 4]}
model.top_mlp: {choice: [[32], [64, 32]]}
"""
GRID = 3 * 3 * 2


def _tune_trial(name: str, config: dict[str, Any] | None = None) -> TuneTrial:
    return TuneTrial("rayrec", stub=True, trial_id=name, config=config, trial_name_creator=trial_name)


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
    settings = _settings(tmp_path)
    scheduler = RememberingASHA(settings, 4, [])
    decisions = []
    for number, config in enumerate([{}, {}, {GIVEN: True}, {}]):
        trial = _tune_trial(str(number), config)
        TrialRecord(str(number), {}).save(settings.trials_folder / str(number))
        scheduler.on_trial_add(None, trial)
        decisions.append(scheduler.on_trial_result(None, trial, {EVALUATION: 1, OBJECTIVE: 0.5 + number / 10}))
    assert decisions == [TrialScheduler.CONTINUE, TrialScheduler.STOP, TrialScheduler.CONTINUE, TrialScheduler.STOP]
    states = {outcome.trial: outcome.state for outcome in read_outcomes(settings)}
    assert states == {"0": "running", "1": "stopped", "2": "running", "3": "stopped"}


def test_a_grid_has_as_many_trials_as_points(tmp_path: Path) -> None:
    space = parse_space("s.yaml", SPACE)
    assert searchable_space(space, "grid", 30) == space
    # The given recipe's rate is none of the grid's.
    assert _settings(tmp_path, "grid").size == GRID + 1
    assert _settings(tmp_path, "random").size == 30
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


def _leave(
    settings: SweepSettings,
    trial: str,
    losses: tuple[float, ...],
    state: State = "stopped",
    assignment: dict[str, Scalar] | None = None,
    *,
    is_given: bool = False,
) -> None:
    """Write what an attempt left of a trial."""
    folder = settings.trials_folder / trial
    TrialRecord(trial, assignment or {}, state, started=ord(trial), is_given=is_given).save(folder)
    (folder / "run").mkdir()
    records = [
        {"event": "evaluate", "step": step, "seconds": 1.0, "log_loss": loss} for step, loss in enumerate(losses, 1)
    ]
    (folder / "run" / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("value", "decision"), [(0.45, TrialScheduler.CONTINUE), (0.55, TrialScheduler.STOP)], ids=["better", "worse"]
)
def test_trials_after_an_interruption_are_compared_with_those_before(
    value: float, decision: str, tmp_path: Path
) -> None:
    settings = _settings(tmp_path)
    _leave(settings, "a", (0.6, 0.5))
    _leave(settings, "b", (0.7, 0.5, 0.4))
    scheduler = RememberingASHA(settings, 4, read_outcomes(settings))
    new = _tune_trial("c")
    scheduler.on_trial_add(None, new)
    # The first rung holds 0.6 and 0.7, the third evaluation's 0.4 alone.
    assert scheduler.on_trial_result(None, new, {EVALUATION: 1, OBJECTIVE: 0.59}) == TrialScheduler.CONTINUE
    assert scheduler.on_trial_result(None, new, {EVALUATION: 3, OBJECTIVE: value - 0.1}) == decision


@pytest.mark.parametrize("search", ["optuna", "random", "grid", "pbt"])
def test_an_interrupted_sweep_continues_from_its_folders(search: Search, tmp_path: Path) -> None:
    """Trials that have not ended come first, each in its folder, and no assignment comes twice."""
    settings = replace(_settings(tmp_path, search), scheduler="none")
    own = own_assignment(settings.space, settings.recipe)
    tried = list(settings.space.grid())[:3]
    _leave(settings, "a", (0.5,), "finished", own, is_given=True)
    _leave(settings, "b", (0.4,), "finished", tried[0])
    _leave(settings, "c", (), "refused", tried[1])
    _leave(settings, "d", (0.6,), "running", tried[2])
    searcher = strategy(settings, 4, read_outcomes(settings)).searcher
    left = settings.size - 3
    if search == "pbt":
        experiment = Experiment("x", Trial, config=strategy(settings, 4).param_space, num_samples=left)
        searcher.add_configurations(experiment)
        drawn = [searcher.next_trial().config for _ in range(left)]
    else:
        drawn = [searcher.suggest(str(number)) for number in range(left)]
    again = drawn.pop(0)
    assert {name: again[name] for name in tried[2]} == tried[2]
    assert trial_name(_tune_trial("new", again)) == "d"
    assert trial_name(_tune_trial("new", drawn[0])) == "new"
    assert not any(config.get(GIVEN) or config.get(FOLDER) for config in drawn)
    assignments = [tuple(config[name] for name in own) for config in drawn]
    assert not {tuple(point[name] for name in own) for point in (own, *tried)} & set(assignments)
    assert search == "pbt" or len(set(assignments)) == left - 1
