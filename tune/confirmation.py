"""Trains a sweep's best trials and the recipe with other seeds, to tell whether the trials were better or lucky.

All trials of a sweep have one seed, and the best of many noisy values is too good (the winner's curse): the search says
which trials to train again, but not how good they are.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from tune.check import default_assignment
from tune.settings import SweepSettings
from tune.space import Parameter, Space
from tune.trial_folder import TrialOutcome

SEEDS = 3
"""How many other seeds each candidate is trained with."""
_CANDIDATE, _SEED = "candidate", "train.seed"
_RECIPE = "recipe"


@dataclass(frozen=True)
class Candidate:
    """A trial, or the recipe as it stands, and what it reached with other seeds."""

    trial: TrialOutcome | None
    """The trial; None for the recipe as it stands."""
    values: tuple[float, ...]
    """The metric with each seed; fewer than `SEEDS` if a training came to no evaluation."""

    @property
    def name(self) -> str:
        return _name(self.trial)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def variance(self) -> float:
        """Unbiased variance over seeds; not a number with fewer than two values."""
        return statistics.variance(self.values) if len(self.values) > 1 else math.nan


def confirm(
    settings: SweepSettings, outcomes: Sequence[TrialOutcome], count: int, *, concurrent: int | None, progress: Progress
) -> list[Candidate]:
    """Train the `count` best trials of a sweep, and the recipe as it stands, with other seeds; the best mean first.

    That is a sweep of its own in the folder `confirmed-<count>` in the sweep's folder, where it continues an earlier
    one. Needs a Ray session. Raises UserError if no training, or none of the recipe's own, came to an evaluation.
    """
    from tune.sweep import run_sweep

    again = best_trials(settings, outcomes, count)
    second = second_sweep(settings, again, count)
    runs = run_sweep(second, concurrent=concurrent, resume=True, progress=progress, what="trainings with other seeds")
    return candidates(settings, again, runs)


def best_trials(settings: SweepSettings, outcomes: Sequence[TrialOutcome], count: int) -> list[TrialOutcome]:
    """Return the best trials, without that of the recipe as it stands, which is trained again in any case."""
    own = default_assignment(settings.space, settings.recipe)
    return [outcome for outcome in outcomes if outcome.value is not None and outcome.assignment != own][:count]


def second_sweep(settings: SweepSettings, again: Sequence[TrialOutcome], count: int) -> SweepSettings:
    """Return the sweep over the grid of candidates and seeds."""
    seed = settings.recipe.resolve().train.seed
    values: dict[str, dict[str, Any]] = {_RECIPE: {}}
    values |= {_name(trial): settings.space.overrides(trial.assignment) for trial in again}
    parameters = {
        _CANDIDATE: Parameter(choice=values),
        _SEED: Parameter(choice=tuple(range(seed + 1, seed + 1 + SEEDS))),
    }
    return replace(
        settings,
        space=Space("--confirm", parameters),
        folder=settings.folder / f"confirmed-{count}",
        trials=len(values) * SEEDS,
        search="grid",
        scheduler="none",
    )


def candidates(settings: SweepSettings, again: Sequence[TrialOutcome], runs: Sequence[TrialOutcome]) -> list[Candidate]:
    """Return the candidates with the results of the second sweep, the best mean first.

    Candidates that cannot be trained with some seed come last, whatever their mean; those that never can are left out.
    Raises UserError if the recipe as it stands, to which the others are compared, came to no evaluation.
    """
    found = []
    for trial in (None, *again):
        own = [run for run in runs if run.assignment[_CANDIDATE] == _name(trial) and run.value is not None]
        own.sort(key=lambda run: run.assignment[_SEED])
        if own:
            found.append(Candidate(trial, tuple(run.value for run in own if run.value is not None)))
    if not any(candidate.trial is None for candidate in found):
        raise UserError(f"{settings.folder}: the unchanged recipe was not evaluated with other seeds")
    sign = -1 if settings.is_maximized else 1
    return sorted(found, key=lambda candidate: (len(candidate.values) < SEEDS, sign * candidate.mean))


def confirmation_table(settings: SweepSettings, found: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return a row for each candidate: mean and deviation of the metric, the gain over the recipe and its standard
    error.
    """
    recipe = next(candidate for candidate in found if candidate.trial is None)
    sign = 1 if settings.is_maximized else -1
    return [
        {
            "candidate": candidate.name,
            settings.metric: candidate.mean,
            "deviation": _or_none(math.sqrt(candidate.variance)),
            "seeds": len(candidate.values),
            "gain": None if candidate is recipe else sign * (candidate.mean - recipe.mean),
            "standard_error": None
            if candidate is recipe
            else _or_none(math.sqrt(sum(one.variance / len(one.values) for one in (candidate, recipe)))),
        }
        for candidate in found
    ]


def _name(trial: TrialOutcome | None) -> str:
    return f"trial {trial.number}" if trial is not None else _RECIPE


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
