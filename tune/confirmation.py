"""Are a sweep's best trials better than the recipe, or were they lucky? They and the recipe, trained with other seeds.

All trials of a sweep have one seed, and the best of many values that scatter is too good (the winner's curse): what a
trial had in the search says which ones to try again, never how good they are.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from tune.check import default_assignment
from tune.outcome import TrialOutcome
from tune.settings import SweepSettings
from tune.space import Parameter, Space

SEEDS = 3
"""Other seeds that each candidate is trained with."""
_CANDIDATE, _SEED = "candidate", "train.seed"
_RECIPE = "recipe"


@dataclass(frozen=True)
class Candidate:
    """A trial's values, or the recipe's own, under other seeds."""

    trial: TrialOutcome | None
    """None: the recipe as it stands."""
    values: tuple[float, ...]
    """The metric by seed; fewer than `SEEDS` where a training came to nothing."""

    @property
    def name(self) -> str:
        return _name(self.trial)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def variance(self) -> float:
        """Over seeds, unbiased; not a number with fewer than two values."""
        return statistics.variance(self.values) if len(self.values) > 1 else math.nan


def confirm(
    settings: SweepSettings, outcomes: Sequence[TrialOutcome], count: int, *, concurrent: int | None, progress: Progress
) -> list[Candidate]:
    """Train the `count` best trials of a sweep, and the recipe as it stands, with other seeds; the best mean first.

    A sweep of its own in the sweep's folder, `confirmed-<count>`, which continues what it finds there. Needs a Ray
    session. Raises UserError where no training came to an evaluation, or none of the recipe's own.
    """
    from tune.sweep import run_sweep

    again = best_trials(settings, outcomes, count)
    second = second_sweep(settings, again, count)
    runs = run_sweep(second, concurrent=concurrent, resume=True, progress=progress, what="trainings with other seeds")
    return candidates(settings, again, runs)


def best_trials(settings: SweepSettings, outcomes: Sequence[TrialOutcome], count: int) -> list[TrialOutcome]:
    """The best trials but for that of the recipe as it stands, which is trained again in any case."""
    own = default_assignment(settings.space, settings.recipe)
    return [outcome for outcome in outcomes if outcome.value is not None and outcome.assignment != own][:count]


def second_sweep(settings: SweepSettings, again: Sequence[TrialOutcome], count: int) -> SweepSettings:
    """The grid of candidates and seeds."""
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
    """What came of the second sweep, the best mean first.

    Candidates that cannot be trained with some seed come last, whatever their mean; those that never can are left out.
    Raises UserError where the recipe's own values came to nothing, to which the others are compared.
    """
    found = []
    for trial in (None, *again):
        own = [run for run in runs if run.assignment[_CANDIDATE] == _name(trial) and run.value is not None]
        own.sort(key=lambda run: run.assignment[_SEED])
        if own:
            found.append(Candidate(trial, tuple(run.value for run in own if run.value is not None)))
    if not any(candidate.trial is None for candidate in found):
        raise UserError(f"{settings.folder}: the recipe as it stands came to no evaluation with other seeds")
    sign = -1 if settings.is_maximized else 1
    return sorted(found, key=lambda candidate: (len(candidate.values) < SEEDS, sign * candidate.mean))


def confirmation_table(settings: SweepSettings, found: Sequence[Candidate]) -> list[dict[str, Any]]:
    """A row a candidate: mean and deviation of the metric, the gain over the recipe and its standard error."""
    recipe = next(candidate for candidate in found if candidate.trial is None)
    sign = 1 if settings.is_maximized else -1
    rows = []
    for candidate in found:
        spread = sum(of.variance / len(of.values) for of in (candidate, recipe))
        is_recipe = candidate is recipe
        rows.append(
            {
                "candidate": candidate.name,
                settings.metric: candidate.mean,
                "deviation": _or_none(math.sqrt(candidate.variance)),
                "seeds": len(candidate.values),
                "gain": None if is_recipe else sign * (candidate.mean - recipe.mean),
                "standard_error": None if is_recipe else _or_none(math.sqrt(spread)),
            }
        )
    return rows


def _name(trial: TrialOutcome | None) -> str:
    return f"trial {trial.number}" if trial is not None else _RECIPE


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value
