"""report.html: a sweep on one page that needs no network."""

from collections.abc import Sequence
from html import escape
from typing import Any

from tune.charts import bars, history, learning_curves, parallel_coordinates
from tune.importance import importances
from tune.outcome import TrialOutcome, table
from tune.settings import SweepSettings

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #0f172a; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #0f172a; }
svg .tick { fill: #475569; font-size: 11px; } svg .grid { stroke: #e2e8f0; }
svg polyline:hover { stroke-width: 4; stroke-opacity: 1; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; white-space: nowrap; }
td, th { padding: 3px 10px; border-bottom: 1px solid #e2e8f0; text-align: left; }
tr.best td { background: #ffedd5; } pre { background: #f1f5f9; padding: 1rem; overflow-x: auto; }
"""


def report(
    settings: SweepSettings, outcomes: Sequence[TrialOutcome], confirmed: Sequence[dict[str, Any]], best_recipe: str
) -> str:
    """The page; `outcomes` the best first, which has a value; `confirmed` the rows of `confirmation_table`, if any;
    `best_recipe` as YAML."""
    best = outcomes[0]
    assert best.value is not None, "a sweep without an evaluated trial is an error"
    metric, name = settings.metric, settings.recipe.resolve().name
    shares = importances(settings.space, outcomes, is_maximized=settings.is_maximized)
    sections = [
        ("History", "The best value of each trial, and the best so far.", history(outcomes, metric, settings.best)),
        ("Learning curves", "Trials that were stopped early end early.", learning_curves(outcomes, metric)),
        (
            "Parallel coordinates",
            "A line a trial; the stronger, the better. Hover for its values.",
            parallel_coordinates(settings.space, outcomes, metric),
        ),
        (
            "Importance of parameters",
            "How far the values of the better trials differ from those of all (PED-ANOVA, arXiv:2304.10255). With few "
            "trials it says little; parameters that not every trial has are left out.",
            bars(shares) if shares else "<p>Too few trials to tell.</p>",
        ),
        ("Trials", "", _trials(outcomes, metric)),
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


_CONFIRMED = (
    "The best trials and the recipe as it stands, trained again: means over seeds that the search did not have, and "
    "how much better they are than the recipe's. A gain of less than two or three standard errors may be chance."
)


def _trials(outcomes: Sequence[TrialOutcome], metric: str) -> str:
    rows = table(list(outcomes), metric)
    return _table([{**row, "message": outcome.message} for row, outcome in zip(rows, outcomes, strict=True)])


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """The first row is the best."""
    head = "".join(f"<th>{escape(column)}</th>" for column in rows[0])
    lines = []
    for index, row in enumerate(rows):
        cells = "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values())
        lines.append(f"<tr{' class=best' if index == 0 else ''}>{cells}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
