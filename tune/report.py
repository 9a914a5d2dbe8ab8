"""What a finished sweep shows: trials.csv, and report.html, one page with charts that needs no network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common.files import write_atomically
from tune.search import suggest
from tune.settings import SweepSettings
from tune.trial_folder import TrialOutcome, outcome_rows

if TYPE_CHECKING:
    import optuna
    from plotly.graph_objects import Figure

_FEWEST_TRIALS = 4
"""Evaluated trials below which nothing is said about the importance of parameters."""
# Plotly's colours suit a light background, which the charts keep on a dark page.
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2rem auto; padding: 0 1rem;
  color: light-dark(#0f172a, #e2e8f0); background: light-dark(#ffffff, #0f172a); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.plotly-graph-div { background: #ffffff; border-radius: 8px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
td, th { padding: 3px 10px; border-bottom: 1px solid #94a3b844; text-align: left; }
tbody tr:first-child td { background: light-dark(#ffedd5, #7c2d12); }
pre { background: light-dark(#f1f5f9, #1e293b); padding: 1rem; overflow-x: auto; }
"""
_CONFIRMED = (
    "The best trials and the recipe as it stands, trained again: means over seeds that the search did not have, and "
    "how much better they are than the recipe's. A gain of less than two or three standard errors may be chance."
)


def write_csv(path: Path, outcomes: list[TrialOutcome], metric: str) -> None:
    """Write a row for each trial, with the reason why it was refused or failed, and its run folder."""
    import pandas as pd

    rows = [
        {**row, "message": outcome.message, "run": str(outcome.run)}
        for row, outcome in zip(outcome_rows(outcomes, metric), outcomes, strict=True)
    ]
    write_atomically(path, pd.DataFrame(rows, dtype=object).to_csv(index=False))


def report(
    settings: SweepSettings, outcomes: list[TrialOutcome], confirmed: Sequence[dict[str, Any]], best_recipe: str
) -> str:
    """The page as HTML.

    `outcomes`: all trials, the best first, which has a value. `confirmed`: the rows of `confirmation_table`, empty
    without a confirmation. `best_recipe`: the best recipe as YAML.
    """
    best = outcomes[0]
    assert best.value is not None, "a sweep without an evaluated trial is an error"
    metric, name = settings.metric, settings.recipe.resolve().name
    rows = outcome_rows(outcomes, metric)
    trials = [{**row, "message": outcome.message} for row, outcome in zip(rows, outcomes, strict=True)]
    sections = [
        *_charts(settings, outcomes),
        ("Trials", "", _table(trials)),
        *([("With other seeds", _CONFIRMED, _table(confirmed))] if confirmed else []),
        ("The best recipe", "best.yaml, ready for <code>rayrec train</code>.", f"<pre>{escape(best_recipe)}</pre>"),
    ]
    body = "".join(f"<h2>{title}</h2><p>{text}</p>{content}" for title, text, content in sections)
    summary = (
        f"{len(outcomes)} trials, search {settings.search}, scheduler {settings.scheduler}. "
        f"Trial {best.number} is the best: {metric} {best.value:.4f}."
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Search: {escape(name)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>Search: {escape(name)}</h1><p>{escape(summary)}</p>"
        f"{body}</body></html>\n"
    )


def _comparable_parameters(settings: SweepSettings, outcomes: Sequence[TrialOutcome]) -> list[str]:
    """The parameters whose importance can be told: they vary, and every evaluated trial has them."""
    evaluated = [outcome for outcome in outcomes if outcome.value is not None]
    if len(evaluated) < _FEWEST_TRIALS or len({outcome.value for outcome in evaluated}) == 1:
        return []
    return [
        name
        for name in settings.space.names
        if all(name in outcome.assignment for outcome in evaluated)
        and len({outcome.assignment[name] for outcome in evaluated}) > 1
    ]


def _study(settings: SweepSettings, outcomes: Sequence[TrialOutcome]) -> "optuna.Study":
    """The trials as Optuna's own, whichever search drew them; one without a value counts as pruned."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if settings.is_maximized else "minimize")
    for outcome in sorted(outcomes, key=lambda outcome: outcome.number):
        drawn = optuna.trial.FixedTrial(outcome.assignment)
        for name in outcome.assignment:
            suggest(drawn, name, settings.space.parameters[name])
        study.add_trial(
            optuna.trial.create_trial(
                state=optuna.trial.TrialState.PRUNED if outcome.value is None else optuna.trial.TrialState.COMPLETE,
                value=outcome.value,
                params=drawn.params,
                distributions=drawn.distributions,
                intermediate_values=dict(enumerate(outcome.curve, start=1)),
            )
        )
    return study


def _charts(settings: SweepSettings, outcomes: Sequence[TrialOutcome]) -> list[tuple[str, str, str]]:
    """Title, text and HTML of each chart; the first one brings the script that draws all of them."""
    from optuna import visualization

    study, metric = _study(settings, outcomes), settings.metric
    comparable = _comparable_parameters(settings, outcomes)
    curves = visualization.plot_intermediate_values(study)
    most_evaluations = max(len(outcome.curve) for outcome in outcomes)
    curves.update_layout(xaxis_title="Evaluation", yaxis_title=metric, xaxis_dtick=1 + most_evaluations // 10)
    coordinates = visualization.plot_parallel_coordinate(study, target_name=metric)
    searched = sorted({name for outcome in outcomes if outcome.value is not None for name in outcome.assignment})
    # Optuna cuts long keys off where they still look alike.
    coordinates.update_xaxes(ticktext=[metric, *("<br>".join(name.split(".")[-2:]) for name in searched)])
    charts = [
        (
            "History",
            "The best value of each trial, and the best so far.",
            visualization.plot_optimization_history(study, target_name=metric),
        ),
        ("Learning curves", "Trials that were stopped early end early.", curves),
        ("Parallel coordinates", "Each line is a trial. Hover over it for its values.", coordinates),
        (
            "Importance of parameters",
            "How far the values of the better trials differ from those of all (PED-ANOVA, arXiv:2304.10255). With few "
            "trials it says little; parameters that not every trial has are left out.",
            visualization.plot_param_importances(study, params=comparable, target_name=metric) if comparable else None,
        ),
    ]
    return [
        (title, text, _chart(figure, index) if figure is not None else "<p>Too few trials to tell.</p>")
        for index, (title, text, figure) in enumerate(charts)
    ]


def _chart(figure: "Figure", index: int) -> str:
    figure.update_layout(template="plotly_white", title=None, height=380, margin={"t": 40, "b": 60})
    return figure.to_html(
        full_html=False, include_plotlyjs=index == 0, div_id=f"chart-{index}", config={"displaylogo": False}
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """An HTML table of rows that have the same keys."""
    import pandas as pd

    # Texts are shown whole, and integers beside None stay integers.
    with pd.option_context("display.max_colwidth", None):
        frame = pd.DataFrame(rows, dtype=object).fillna("")
        return f'<div class="wide">{frame.to_html(index=False, border=0, float_format="{:.4g}".format)}</div>'
