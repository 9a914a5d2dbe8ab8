"""Trials again with other seeds: which, with what values, and what is made of what comes out."""

from dataclasses import replace
from pathlib import Path

import pytest

from rayrec.common.errors import UserError
from rayrec.recipes import read_recipe
from tune.results import SEEDS, Candidate, best_trials, candidates, confirmation_table, second_sweep
from tune.space import Scalar, parse_space, trial_recipe
from tune.sweep_folder import SweepSettings, TrialOutcome

SPACE = """
train.dense_optimizer.lr: {loguniform: [1.0e-4, 0.1]}
size:
  choice:
    small: {model.embedding_dim: 8, model.bottom_mlp: [64, 8]}
    usual: {model.embedding_dim: 16, model.bottom_mlp: [64, 16]}
"""
OWN: dict[str, Scalar] = {"train.dense_optimizer.lr": 0.002, "size": "usual"}
"""The recipe's own values."""


def _settings(metric: str = "auc") -> SweepSettings:
    recipe, folder = read_recipe("dlrm-criteo-debug"), Path("sweep")
    return SweepSettings(recipe, parse_space("s.yaml", SPACE), folder, metric, 9, "optuna", "asha", folder, print)


def _outcome(number: int, assignment: dict[str, Scalar], value: float | None) -> TrialOutcome:
    folder = Path(f"trials/{number}")
    return TrialOutcome(str(number), number, "finished", None, assignment, value, (), 1.0, folder, folder / "run")


FIRST = _outcome(4, {"train.dense_optimizer.lr": 0.01, "size": "small"}, 0.8)
SECOND = _outcome(2, {"train.dense_optimizer.lr": 0.03, "size": "usual"}, 0.78)
OUTCOMES = [FIRST, _outcome(0, OWN, 0.79), SECOND, _outcome(1, {**OWN, "size": "small"}, None)]


def _runs(settings: SweepSettings, values: dict[str, tuple[float | None, ...]]) -> list[TrialOutcome]:
    """Outcomes of the second sweep, in the order of its grid."""
    points = second_sweep(settings, best_trials(settings, OUTCOMES, 2), 2).space.grid()
    seen = dict.fromkeys(values, 0)
    runs = []
    for number, point in enumerate(points):
        name = str(point["candidate"])
        runs.append(_outcome(number, point, values[name][seen[name]]))
        seen[name] += 1
    return runs


def test_the_best_trials_that_are_not_the_recipe_itself_are_trained_again() -> None:
    assert best_trials(_settings(), OUTCOMES, 1) == [FIRST]
    assert best_trials(_settings(), OUTCOMES, 9) == [FIRST, SECOND]


def test_the_second_sweep_has_every_candidate_with_every_other_seed() -> None:
    settings = _settings()
    second = second_sweep(settings, [FIRST, SECOND], 2)
    recipes = [trial_recipe(second.space, second.recipe, point) for point in second.space.grid()]
    assert (second.search, second.scheduler) == ("grid", "none")
    assert second.trials == len(recipes) == 3 * SEEDS
    assert second.folder == settings.folder / "confirmed-2"
    own = settings.recipe.resolve()
    values = {(r.train.dense_optimizer.lr, r.model.embedding_dim, r.train.seed) for r in recipes}
    seeds = range(own.train.seed + 1, own.train.seed + 1 + SEEDS)
    assert values == {(*pair, seed) for pair in ((0.002, 16), (0.01, 8), (0.03, 16)) for seed in seeds}


def test_the_best_mean_comes_first_and_is_compared_with_the_recipe() -> None:
    settings = _settings()
    values = {"recipe": (0.70, 0.72, 0.71), "trial 4": (0.70, 0.71, 0.69), "trial 2": (0.75, 0.73, 0.74)}
    found = candidates(settings, [FIRST, SECOND], _runs(settings, values))
    assert [(c.name, c.values) for c in found] == [(n, values[n]) for n in ("trial 2", "recipe", "trial 4")]
    best, recipe, worst = confirmation_table(settings, found)
    assert best["auc"] == pytest.approx(0.74) and best["gain"] == pytest.approx(0.03)
    # Deviations of 0.01 over three seeds each.
    assert best["deviation"] == pytest.approx(0.01)
    assert best["standard_error"] == pytest.approx((2 * 0.01**2 / 3) ** 0.5)
    assert (recipe["candidate"], recipe["gain"], recipe["standard_error"]) == ("recipe", None, None)
    assert worst["gain"] == pytest.approx(-0.01)


def test_less_is_better_for_a_loss() -> None:
    settings = _settings("log_loss")
    values = {"recipe": (0.5, 0.5, 0.5), "trial 4": (0.4, 0.4, 0.4), "trial 2": (0.6, 0.6, 0.6)}
    found = candidates(settings, [FIRST, SECOND], _runs(settings, values))
    assert [candidate.name for candidate in found] == ["trial 4", "recipe", "trial 2"]
    assert confirmation_table(settings, found)[0]["gain"] == pytest.approx(0.1)


def test_a_candidate_that_some_seed_cannot_train_is_never_the_best() -> None:
    settings = _settings()
    values = {"recipe": (0.7, 0.7, 0.7), "trial 4": (0.9, None, None), "trial 2": (None, None, None)}
    found = candidates(settings, [FIRST, SECOND], _runs(settings, values))
    assert [candidate.name for candidate in found] == ["recipe", "trial 4"]
    row = confirmation_table(settings, found)[1]
    assert (row["seeds"], row["deviation"], row["standard_error"]) == (1, None, None)


def test_without_the_recipe_there_is_nothing_to_compare_with() -> None:
    settings = _settings()
    values = {"recipe": (None, None, None), "trial 4": (0.7, 0.7, 0.7), "trial 2": (0.7, 0.7, 0.7)}
    with pytest.raises(UserError, match="sweep: the unchanged recipe was not evaluated with other seeds"):
        candidates(settings, [FIRST, SECOND], _runs(settings, values))


def test_names_tell_a_trial_from_the_recipe() -> None:
    assert Candidate(replace(FIRST, number=7), (0.5,)).name == "trial 7"
    assert Candidate(None, (0.5,)).name == "recipe"
