"""Results of a sweep: trials.csv, and the figures of its page (`rayrec.pages.sweep`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common.errors import UserError
from rayrec.store.files import write_atomically
from tune.search import suggest
from tune.settings import Sweep
from tune.trial_folder import TrialOutcome, outcome_rows

if TYPE_CHECKING:
    import optuna

_FEWEST_TRIALS = 4
"""Evaluated trials below which nothing is said about the importance of parameters."""


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


def _importance(sweep: Sweep, outcomes: Sequence[TrialOutcome]) -> dict[str, float]:
    """Return the share of each parameter in what makes trials better, the largest first; empty where it cannot
    be told.
    """
    comparable = _comparable_parameters(sweep, outcomes)
    if not comparable:
        return {}
    import optuna

    return dict(optuna.importance.get_param_importances(_study(sweep, outcomes), params=comparable))


def _comparable_parameters(sweep: Sweep, outcomes: Sequence[TrialOutcome]) -> list[str]:
    """Return the parameters whose importance can be told: they vary, and every evaluated trial has them."""
    evaluated = [outcome for outcome in outcomes if outcome.value is not None]
    if len(evaluated) < _FEWEST_TRIALS or len({outcome.value for outcome in evaluated}) == 1:
        return []
    return [
        name
        for name in sweep.space.names
        if all(name in outcome.assignment for outcome in evaluated)
        and len({outcome.assignment[name] for outcome in evaluated}) > 1
    ]


def _study(sweep: Sweep, outcomes: Sequence[TrialOutcome]) -> "optuna.Study":
    """Return the trials as Optuna's own, whichever search drew them; one without a value counts as pruned."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if sweep.is_maximized else "minimize")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
        drawn = optuna.trial.FixedTrial(outcome.assignment)
        for name in outcome.assignment:
            suggest(drawn, name, sweep.space.parameters[name])
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED if outcome.value is None else optuna.trial.TrialState.COMPLETE,
                value=outcome.value,
                params=drawn.params,
                distributions=drawn.distributions,
            )
        )
    return study
