"""The page that compares runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.config.evaluate import MAIN_METRICS, higher_is_better, metric_title
from rayrec.pages.charts import intervals
from rayrec.pages.page import Chart, Figures, HtmlTable, Page, Section, signed, text_of
from rayrec.pages.training import metrics_rows, training_charts
from rayrec.recipes import value_texts

_CHANCE = (
    "Chance acts twice. The held-out rows are a sample: the same resamples of them are drawn for all runs (a paired "
    "bootstrap). And another seed trains another model: how much that changes is measured between runs of one recipe. "
    "The intervals are 95 % intervals of the difference, for other rows and, where it is known, for other seeds."
)


def comparison_page(figures: Figures) -> Page:
    """Return the page of `rayrec compare`."""
    runs = figures["runs"]
    recipes = list(dict.fromkeys(run["recipe"] for run in runs))
    return Page(
        title=f"Comparison of {', '.join(recipes)}" if len(recipes) > 1 else f"Runs of one recipe: {recipes[0]}",
        summary=summary(figures),
        sections=[
            _verdicts(figures),
            _seeds(figures),
            _config(figures, recipes),
            Section("Metrics", [_metrics(runs)], "All rows of each split, measured by the trainings."),
            Section("Training", _curves(runs, recipes), "Runs of one recipe have one colour."),
        ],
    )


def _curves(runs: Sequence[Mapping[str, Any]], recipes: Sequence[str]) -> list[Chart]:
    colours = {run["name"]: recipes.index(run["recipe"]) for run in runs} if len(recipes) > 1 else None
    return training_charts({run["name"]: run["curves"] for run in runs}, colours)


def summary(figures: Figures) -> str:
    """Return what came of the comparison, in a sentence for each pair of recipes."""
    found = [d for d in figures["differences"] if d["metric"] == "auc"]
    if not found:
        return "The runs differ only in their seeds. Whatever one does better is luck."
    return " ".join(verdict_line(difference) for difference in found)


def verdict_line(found: Mapping[str, Any]) -> str:
    """Return a difference and its verdict in a sentence."""
    name = metric_title(found["metric"])
    if found["verdict"] == "no difference shown":
        said = f"no difference between {found['first']} and {found['second']} is shown"
    else:
        said = f"{found['second']} is {found['verdict']} than {found['first']}"
    difference, low, high = (signed(found[end]) for end in ("value", "low", "high"))
    return f"{name}: {said} ({difference}, from {low} to {high}): {found['why']}."


def _verdicts(figures: Figures) -> Section:
    split, rows, scored = figures["split"], figures["rows"], figures["rows_scored"]
    text = f"{scored:,} of {rows:,} rows of {split}, scored by each run's best checkpoint. {_CHANCE}"
    blocks: list[Chart | HtmlTable] = []
    for metric in MAIN_METRICS:
        found = [d for d in figures["differences"] if d["metric"] == metric]
        if found:
            labels = [f"{d['second']} - {d['first']}" for d in found]
            better = "right" if higher_is_better(metric) else "left"
            values, low, high = ([d[name] for d in found] for name in ("value", "low", "high"))
            title = f"Difference in {metric_title(metric)}"
            blocks.append(
                intervals(title, labels, values, low, high, reference=0.0, note=f"Further {better} is better.")
            )
    table = [
        {
            "recipe": d["second"],
            "than": d["first"],
            "metric": metric_title(d["metric"]),
            "verdict": d["verdict"],
            "difference": signed(d["value"]),
            "from": signed(d["low"]),
            "to": signed(d["high"]),
            "error by rows": d["row_error"],
            "error by seeds": "not known" if d["seed_error"] is None else d["seed_error"],
            "because": d["why"],
        }
        for d in figures["differences"]
    ]
    marked = [number for number, row in enumerate(table) if row["verdict"] != "no difference shown"]
    return Section("Better, or lucky?", [*blocks, HtmlTable(table, marked=marked)] if table else [], text)


def _seeds(figures: Figures) -> Section:
    runs = figures["runs"]
    rows = []
    for run in runs:
        row = {"run": run["name"], "recipe": run["recipe"], "seed": run["seed"]}
        for metric, value in run["scored"].items():
            mean = sum(other["scored"][metric] for other in runs) / len(runs)
            # Runs often differ by less than the last digit that is shown of the value.
            row |= {metric_title(metric): value, f"{metric_title(metric)} against the mean": signed(value - mean)}
        rows.append(row)
    known = [
        f"{metric_title(metric)} {text_of(found['deviation'])} ({found['degrees_of_freedom']} degrees of freedom)"
        for metric, found in figures["seed_deviation"].items()
        if found is not None
    ]
    text = (
        f"Standard deviation between seeds of one recipe: {', '.join(known)}."
        if known
        else "Each recipe has one run, so it is not known what another seed would change."
    )
    return Section("Runs", [HtmlTable(rows)], text)


def _config(figures: Figures, recipes: list[str]) -> Section:
    rows = [
        {"key": key, **dict(zip(recipes, value_texts([values[name] for name in recipes]), strict=True))}
        for key, values in figures["config"].items()
    ]
    text = "" if rows else "There are none, apart from the seed."
    return Section("Differences of the recipes", [HtmlTable(rows)] if rows else [], text)


def _metrics(runs: list[Mapping[str, Any]]) -> HtmlTable:
    return HtmlTable([{"run": run["name"], **row} for run in runs for row in metrics_rows(run["metrics"])])
