"""Results of a sweep: the best trials trained again with other seeds, trials.csv, and the figures of the sweep's page.

All trials of a sweep have one seed, and the best of many noisy values is too good (the winner's curse): the search says
which trials to train again, but not how good they are.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.store.files import write_atomically
from tune.search import study_of
from tune.space import Parameter, Space, own_assignment
from tune.sweep_folder import Sweep, SweepSettings, TrialOutcome, outcome_rows
from tune.tuner import concurrent_trials, run_sweep

SEEDS = 3
"""How many other seeds each candidate is trained with."""
_CANDIDATE, _SEED = "candidate", "train.seed"
_RECIPE = "recipe"
_FEWEST_TRIALS = 4
"""Evaluated trials below which nothing is said about the importance of parameters."""


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
    again = best_trials(settings, outcomes, count)
    second = second_sweep(settings, again, count)
    at_once = concurrent_trials(second, concurrent)
    runs = run_sweep(second, at_once=at_once, resume=True, progress=progress, what="trainings with other seeds")
    return candidates(settings, again, runs)


def best_trials(settings: SweepSettings, outcomes: Sequence[TrialOutcome], count: int) -> list[TrialOutcome]:
    """Return the best trials, without that of the recipe as it stands, which is trained again in any case."""
    own = own_assignment(settings.space, settings.recipe)
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
        # Its first trial is of the grid: the recipe with the first of the other seeds.
        recipe=settings.recipe.with_values({_SEED: seed + 1}),
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


def write_csv(path: Path, outcomes: list[TrialOutcome], metric: str) -> None:
    """Write a row for each trial, with the reason why it was refused or failed, and its run folder."""
    import pandas as pd

    rows = [
        {**row, "message": outcome.message, "run": str(outcome.run)}
        for row, outcome in zip(outcome_rows(outcomes, metric), outcomes, strict=True)
    ]
    write_atomically(path, pd.DataFrame(rows, dtype=object).to_csv(index=False))


def sweep_figures(
    sweep: Sweep, outcomes: Sequence[TrialOutcome], confirmed: Sequence[dict[str, Any]], best_recipe: str | None
) -> dict[str, Any]:
    """Return what is known of a sweep, as JSON values.

    `outcomes`: all trials, the best first. `confirmed`: the rows of `confirmation_table`, empty without a confirmation.
    `best_recipe`: the best recipe as YAML, if the sweep has ended. Raises UserError if no trial was evaluated yet.
    """
    if not outcomes or outcomes[0].value is None:
        raise UserError(f"{sweep.folder}: no trial has been evaluated yet; wait for the first evaluation")
    return {
        "kind": "sweep",
        "recipe": sweep.recipe.resolve().name,
        "metric": sweep.metric,
        "is_maximized": sweep.is_maximized,
        "search": sweep.search,
        "scheduler": sweep.scheduler,
        "parameters": [
            {"name": name, "scale": "choice" if p.choice is not None else "log" if p.loguniform else "linear"}
            for name, p in sweep.space.parameters.items()
        ],
        "importance": _importance(sweep, outcomes),
        "verdict": verdict(sweep, outcomes, confirmed, has_ended=best_recipe is not None),
        "trials": [
            {
                "trial": outcome.number,
                "state": outcome.state,
                "message": outcome.message,
                "value": outcome.value,
                "curve": list(outcome.curve),
                "seconds": round(outcome.seconds, 1),
                "assignment": dict(outcome.assignment),
            }
            for outcome in outcomes
        ],
        "confirmed": list(confirmed),
        "best_recipe": best_recipe,
        "expectations": [],
    }


def verdict(
    sweep: Sweep, outcomes: Sequence[TrialOutcome], confirmed: Sequence[dict[str, Any]], *, has_ended: bool
) -> str:
    """Return whether a trial was better than the given recipe, with both values, in a line.

    `confirmed` and the errors as in `sweep_figures`.
    """
    given = next((outcome for outcome in outcomes if outcome.is_given), None)
    if confirmed:
        own = next(row[sweep.metric] for row in confirmed if row["candidate"] == _RECIPE)
        best, name, where = confirmed[0][sweep.metric], confirmed[0]["candidate"], f", means over {SEEDS} other seeds"
    else:
        own, where = given.value if given is not None else None, ""
        best, name = outcomes[0].value, _RECIPE if outcomes[0].is_given else _name(outcomes[0])
    if name == _RECIPE:
        its = "; best.yaml is it" if has_ended else " yet"
        return f"no trial was better than the given recipe ({sweep.metric} {own:.4f}{where}){its}"
    if own is None:
        reason = given.message if given is not None and given.message else "its trial came to no evaluation"
        return f"given recipe: not evaluated ({reason}); best {sweep.metric} {best:.4f} ({name})"
    return f"given recipe {sweep.metric} {own:.4f}, best {best:.4f} ({name}){where}"


def _importance(sweep: Sweep, outcomes: Sequence[TrialOutcome]) -> dict[str, float]:
    """Return the share of each parameter in what makes trials better, the largest first; empty where it cannot
    be told.
    """
    comparable = _comparable_parameters(sweep, outcomes)
    if not comparable:
        return {}
    import optuna

    return dict(optuna.importance.get_param_importances(study_of(sweep, outcomes), params=comparable))


def _comparable_parameters(sweep: Sweep, outcomes: Sequence[TrialOutcome]) -> list[str]:
    """Return the parameters whose importance can be told: they vary, and every evaluated trial has them."""
    evaluated = [
        outcome
        for outcome in outcomes
        if outcome.value is not None and (sweep.space.contains(outcome.assignment) or not outcome.is_given)
    ]
    if len(evaluated) < _FEWEST_TRIALS or len({outcome.value for outcome in evaluated}) == 1:
        return []
    return [
        name
        for name in sweep.space.names
        if all(name in outcome.assignment for outcome in evaluated)
        and len({outcome.assignment[name] for outcome in evaluated}) > 1
    ]
