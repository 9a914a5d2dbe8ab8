"""The page of an explanation: which features a model's scores rest on."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.config.evaluate import metric_title
from rayrec.pages.charts import distinct_labels, intervals, lines, plain
from rayrec.pages.page import Chart, Figures, HtmlTable, NumberText, Page, Section, plus_minus, text_of

_MOST_SHOWN = 40
_TICKS = 3
_IMPORTANCE = (
    "How much worse a metric becomes when a feature's values are dealt to other rows: means over {permutations} "
    "permutations with 95 % intervals for other rows. If two features carry the same information, permuting one leaves "
    "the other, so both look unimportant: permute them together (--group). A cross follows the features that it is "
    "made of."
)
_DEPENDENCE = (
    "The mean score of the rows if all of them had this value and everything else stayed as it is. Where features are "
    "correlated, some of these rows are unlike any real one."
)
_LISTS = (
    "Values in their order, such as hours, or else the most frequent ones, the most frequent first; every list is "
    "replaced by this one value. Dotted: the mean score of the rows as they are."
)


def explanation_page(figures: Figures) -> Page:
    """Return the page of `rayrec explain`."""
    rows, all_rows, split = figures["rows"], figures["rows_of_split"], figures["split"]
    which = f"all {rows:,} rows" if rows == all_rows else f"{rows:,} of the {all_rows:,} rows"
    metrics = figures["metrics"]
    return Page(
        title=f"Explanation: {figures['recipe']}",
        summary=f"Which features the scores of {figures['subject']} rest on: {which} of {split} in {figures['data']}.",
        facts={**{metric_title(metric): text_of(value) for metric, value in metrics.items()}, "rows": f"{rows:,}"},
        sections=[
            Section("Importance", _importance(figures), _IMPORTANCE.format(permutations=figures["permutations"])),
            *_dependence_sections(figures["partial_dependence"]),
        ],
    )


def _importance(figures: Figures) -> list[Chart | HtmlTable]:
    metric = figures["most_important_by"]
    alone = [one for one in figures["importance"] if _is_alone(one)]
    groups = [one for one in figures["importance"] if not _is_alone(one)]
    title = f"{metric_title(metric)} worse by, when permuted"
    charts: list[Chart | HtmlTable] = [_worse(title, alone[:_MOST_SHOWN], metric)]
    if groups:
        charts.append(_worse(f"{title} together", groups[:_MOST_SHOWN], metric))
    rows = []
    for one in figures["importance"]:
        row = {"permuted": one["name"] if _is_alone(one) else f"{one['name']}: {', '.join(one['features'])}"}
        rows.append(row | {metric_title(key): _with_interval(found) for key, found in one["worse_by"].items()})
    return [*charts, HtmlTable(rows, title="Worse by", note="With 95 % intervals. Below 0 is better.")]


def _is_alone(one: Mapping[str, Any]) -> bool:
    """Return whether a feature was permuted alone; a group has another name."""
    return bool(one["features"] == [one["name"]])


def _worse(title: str, found: Sequence[Mapping[str, Any]], metric: str) -> Chart:
    changes = [one["worse_by"][metric] for one in found]
    columns = ([change[key] for change in changes] for key in ("value", "lower", "upper"))
    return intervals(
        title, [one["name"] for one in found], *columns, reference=0.0, is_wide=len(found) > _MOST_SHOWN / 2
    )


def _with_interval(found: Mapping[str, Any]) -> str:
    if found["lower"] is None:
        return NumberText(text_of(found["value"]))
    return plus_minus(found["value"], found["upper"] - found["value"])


def _dependence_sections(dependence: Sequence[Mapping[str, Any]]) -> list[Section]:
    numbers = [_of_number(found) for found in dependence if found["is_number"]]
    categories = [_of_category(found) for found in dependence if not found["is_number"]]
    sections = [
        Section("Dependence on numbers", numbers, _DEPENDENCE),
        Section("Dependence on categories", categories, _LISTS if numbers else f"{_DEPENDENCE} {_LISTS}"),
    ]
    return [section for section in sections if section.blocks]


def _of_category(found: Mapping[str, Any]) -> Chart:
    labels = [point["name"] for point in found["points"]]
    return intervals(found["feature"], labels, *_scores(found), reference=found["mean_score"], x_title="mean score")


def _of_number(found: Mapping[str, Any]) -> Chart:
    points, name = found["points"], found["feature"]
    means, low, high = _scores(found)
    series = {name: ([point["share"] for point in points], means)}
    chart = lines(name, "value, by the share of rows up to it", "mean score", series, bands={name: (low, high)})
    *bands, line = chart.traces
    shown = {"customdata": [plain(point["name"]) for point in points],
             "hovertemplate": "%{customdata}: %{y:,.3~r}<extra></extra>"}  # fmt: skip
    axis = {**chart.layout["xaxis"], **_ticks(points)}
    return Chart(name, [*bands, {**line, **shown}], {**chart.layout, "xaxis": axis})


def _scores(found: Mapping[str, Any]) -> list[list[float | None]]:
    """Return the mean score of each point, and both ends of its interval."""
    return [[point["score"][key] for point in found["points"]] for key in ("value", "lower", "upper")]


def _ticks(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return an axis of shares that shows the values at some of them, the first and the last among these."""
    last = len(points) - 1
    shown = [points[place] for place in sorted({round(tick * last / _TICKS) for tick in range(_TICKS + 1)})]
    texts = distinct_labels([point["name"] for point in shown])
    return {"tickvals": [point["share"] for point in shown], "ticktext": texts, "tickangle": 0}
