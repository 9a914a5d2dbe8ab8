"""The pages of several runs: a comparison of recipes, and a search."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rayrec.common.text import distinct_ends, natural_order
from rayrec.config.evaluate import MAIN_METRICS, higher_is_better, metric_title
from rayrec.pages.charts import Dimension, distinct_labels, intervals, lines, parallel, stacked
from rayrec.pages.page import Chart, Code, Figures, HtmlTable, Page, Section, signed, text_of
from rayrec.pages.training import metrics_rows, training_charts
from rayrec.recipes import value_texts

# A comparison.

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


# A search.

_CONFIRMED = (
    "The best trials and the unchanged recipe, trained again with seeds that the search did not use: means over these "
    "seeds, and the gain over the recipe. A gain below two or three standard errors may be chance."
)
_IMPORTANCE = (
    "How far the values of the better trials differ from those of all (PED-ANOVA, arXiv:2304.10255). With few trials "
    "it says little; parameters that not every trial has are left out."
)
_MOST_CURVES = 30
_LONGEST_CHOICE = 16
"""Characters of a label that does not reach the next axis."""


def sweep_page(figures: Figures) -> Page:
    """Return the page of a search (`tune.results.sweep_figures`)."""
    metric, trials = figures["metric"], figures["trials"]
    importance = figures["importance"]
    charts: list[Chart | HtmlTable] = [
        _history(metric, trials, figures["is_maximized"]),
        _learning_curves(metric, trials),
        _parallel(figures),
    ]
    if importance:
        names = list(_short_names(importance).values())
        parts = {"importance": [100 * share for share in importance.values()]}
        charts.append(stacked("Importance of parameters", names, parts, x_title="percent", note=_IMPORTANCE))
    sections = [Section("Search", charts, "" if importance else "Too few trials to tell which parameters matter.")]
    rows = [
        {"trial": t["trial"], "state": t["state"], metric: t["value"], "evaluations": len(t["curve"]),
         "seconds": t["seconds"], **t["assignment"], "message": t["message"]}
        for t in trials
    ]  # fmt: skip
    sections.append(Section("Trials", [HtmlTable(rows, marked=[0])]))
    if figures["confirmed"]:
        sections.append(_confirmed(metric, figures["confirmed"]))
    if figures["best_recipe"] is not None:
        sections.append(Section("The best recipe", [Code(figures["best_recipe"])], "best.yaml, for `rayrec train`."))
    return Page(
        title=f"Search: {figures['recipe']}",
        summary=(
            f"{len(trials)} trials, search {figures['search']}, scheduler {figures['scheduler']}. "
            f"{figures['verdict'][0].upper()}{figures['verdict'][1:]}."
        ),
        expectations=figures["expectations"],
        sections=sections,
    )


def _history(metric: str, trials: Sequence[Mapping[str, Any]], is_maximized: bool) -> Chart:
    """Return the value of each trial, and the best so far, in the order in which trials began."""
    begun = sorted((t for t in trials if t["value"] is not None), key=lambda t: t["trial"])
    so_far: list[float] = []
    for trial in begun:
        so_far.append((max if is_maximized else min)([*so_far[-1:], trial["value"]]))
    numbers = [trial["trial"] for trial in begun]
    series = {"trial": (numbers, [t["value"] for t in begun]), "best so far": (numbers, so_far)}
    chart = lines("History", "trial", metric, series)
    points = {**chart.traces[0], "mode": "markers"}
    steps = {**chart.traces[1], "mode": "lines", "line": {**chart.traces[1]["line"], "shape": "hv"}}
    return Chart(chart.title, [points, steps], chart.layout, note="The best value of each trial.")


def _learning_curves(metric: str, trials: Sequence[Mapping[str, Any]]) -> Chart:
    shown = [trial for trial in trials if trial["curve"]][:_MOST_CURVES]
    series = {f"trial {t['trial']}": (list(range(1, len(t["curve"]) + 1)), t["curve"]) for t in shown}
    note = "Trials that were stopped early end early."
    if len(shown) < len(trials):
        note += f" The best {len(shown)} trials."
    chart = lines("Learning curves", "evaluation", metric, series, note=note)
    return Chart(chart.title, chart.traces, {**chart.layout, "showlegend": len(series) <= 8}, note=chart.note)


def _parallel(figures: Figures) -> Chart:
    evaluated = [trial for trial in figures["trials"] if trial["value"] is not None]
    dimensions = [_numbers(figures["metric"], [trial["value"] for trial in evaluated], is_log=False)]
    for parameter in figures["parameters"]:
        values = [trial["assignment"].get(parameter["name"]) for trial in evaluated]
        if parameter["scale"] == "log":  # the given recipe's own value may be a rate of 0
            values = [value or None for value in values]
        if all(value is None for value in values):
            continue
        if parameter["scale"] == "choice":
            dimensions.append(_choices(parameter["name"], values))
        else:
            dimensions.append(_numbers(parameter["name"], values, is_log=parameter["scale"] == "log"))
    short = _short_names([parameter["name"] for parameter in figures["parameters"]])
    names = [
        f"trial {trial['trial']}: {figures['metric']} {text_of(trial['value'])}, "
        + ", ".join(f"{short[name]} {text_of(value)}" for name, value in trial["assignment"].items())
        for trial in evaluated
    ]
    note = "Each line is a trial, the darker the better; orange is the best. Hover over one for its values."
    return parallel("Parallel coordinates", dimensions, names, note=note)


def _short_names(names: Collection[str]) -> dict[str, str]:
    """Return the shortest end of each key that no other key has, of two parts at least."""
    ends = distinct_ends([tuple(name.split(".")) for name in names])
    return {name: ".".join(name.split(".")[-max(len(end), 2) :]) for name, end in zip(names, ends, strict=True)}


def _numbers(name: str, values: Sequence[float | None], is_log: bool) -> Dimension:
    """Return an axis from the lowest of the values to the highest."""
    scaled = [None if v is None else math.log(v) if is_log else float(v) for v in values]
    known = [v for v in scaled if v is not None]
    low, high = min(known), max(known)

    def height(value: float) -> float:
        return (value - low) / (high - low) if high > low else 0.5

    ticks = {text_of(math.exp(end) if is_log else end): height(end) for end in (low, high)}
    return Dimension(name, [None if value is None else height(value) for value in scaled], ticks)


def _choices(name: str, values: Sequence[Any]) -> Dimension:
    """Return an axis with a place for each choice that a trial has."""
    choices = sorted({text_of(value) for value in values if value is not None})
    choices = [choices[place] for place in natural_order(choices) or range(len(choices))]
    heights = [place / max(len(choices) - 1, 1) for place in range(len(choices))]
    places = dict(zip(choices, heights, strict=True))
    labels = dict(zip(distinct_labels(choices, _LONGEST_CHOICE), heights, strict=True))
    return Dimension(name, [None if value is None else places[text_of(value)] for value in values], labels)


def _confirmed(metric: str, confirmed: Sequence[Mapping[str, Any]]) -> Section:
    gains = [row for row in confirmed if row["gain"] is not None and row["standard_error"] is not None]
    blocks: list[Chart | HtmlTable] = [HtmlTable(confirmed)]
    if gains:
        ends = [(row["gain"] - 2 * row["standard_error"], row["gain"] + 2 * row["standard_error"]) for row in gains]
        blocks.append(
            intervals(
                f"Gain in {metric} over the recipe", [row["candidate"] for row in gains],
                [row["gain"] for row in gains], [low for low, _ in ends], [high for _, high in ends],
                reference=0.0, note="Two standard errors to each side.",
            )
        )  # fmt: skip
    return Section("With other seeds", blocks, _CONFIRMED)
