"""The page of a raw table, before it is preprocessed."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.pages.charts import bars, heat_map, intervals, lines
from rayrec.pages.dataset import CELLS, along, distribution
from rayrec.pages.page import Chart, Code, Figures, HtmlTable, Page, Section, percent, text_of

_MOST_CHARTS, _MOST_PAIRS, _MOST_BARS = 60, 20, 30
_WITH_LABEL = (
    "How well each column alone ranks the rows by their label, out of fold: 0.5 is chance, 1 is perfect. Points are "
    "the AUC of the best reading of the column, lines its 95 % interval. A column near 1 may contain the label."
)
_ASSOCIATIONS = (
    "Two columns of numbers or times: Spearman's rank correlation, from -1 to 1. Others: Cramér's V of their values, "
    "corrected for bias (Bergsma 2013), from 0 to 1; numbers are cut into ranges, rare values are one. Strongly "
    "associated columns carry the same information, so their importance is shared between them."
)
_DRIFT = (
    "The second half of the rows against the first, in the order of the files. A stability index below 0.1 is usually "
    "read as no change; a column has drifted from 0.25 beyond what samples of this size differ by chance."
)


def inspection_page(figures: Figures) -> Page:
    """Return the page of what `rayrec inspect` found in raw files."""
    rows, total, label = figures["rows"], figures["total_rows"], figures["label"]
    columns, alerts = figures["columns"], figures["alerts"]
    which = (
        f"all {rows:,} rows show"
        if rows == total
        else f"a sample of {rows:,} of {'' if figures['is_whole'] else 'about '}{total:,} rows shows"
    )
    facts = {
        "rows": text_of(total),
        "columns": text_of(len(columns)),
        "missing cells": percent(sum(column["missing_share"] for column in columns) / max(len(columns), 1)),
        "alerts": text_of(len(alerts)),
    }
    if label is not None:
        facts = {f"label rate of {label['name']}": percent(label["rate"]), **facts}
    if figures["logistic_regression_auc"] is not None:
        facts["AUC of a logistic regression"] = text_of(figures["logistic_regression_auc"])
    if figures["duplicates"] is not None:
        facts["duplicate rows"] = text_of(figures["duplicates"])
    sections = [
        Section("Alerts", [HtmlTable(alerts)] if alerts else [], "" if alerts else "Nothing to look at was found."),
        _columns(columns),
        _interactions(figures["interactions"]),
        Section("Columns and the label", _with_label(figures["with_label"]), _WITH_LABEL),
        _drift(figures),
        _missing(figures["missing"]),
        _associations(figures["associations"]),
        _distributions(figures),
        _rejected(figures["rejected"]),
        Section("Recipe", [Code(figures["recipe"])]),
    ]
    return Page(
        title=f"Table {figures['subject']}",
        summary=f"Before training: what {which}.",
        facts=facts,
        sections=[section for section in sections if section.blocks or section.title == "Alerts"],
    )


def _columns(columns: Sequence[Mapping[str, Any]]) -> Section:
    is_text = all(column["type"] == "text" for column in columns)
    rows = [
        {
            "column": column["name"],
            "type": "" if is_text else column["type"],
            "becomes": column["kind"],
            "missing": percent(column["missing_share"]),
            "distinct values": column["distinct_estimate"],
            "range": " to ".join(map(text_of, column["range"] or [])),
            "AUC alone": max(column["auc"].values(), default=None),
            "most frequent": ", ".join(text[:16] for text in column["examples"][:2]),
            "why": column["reason"],
        }
        for column in columns
    ]
    text = "Distinct values are estimated for all rows where the sample is a part of them."
    return Section("Columns", [HtmlTable(rows)], text)


def _with_label(found: Sequence[Mapping[str, Any]]) -> list[Chart | HtmlTable]:
    if not found:
        return []
    shown = found[:_MOST_BARS]
    values, low, high = ([one[name] for one in shown] for name in ("auc", "low", "high"))
    names = [one["name"] for one in shown]
    chart = intervals("AUC of each column alone", names, values, low, high, reference=0.5, is_wide=len(found) > 12)
    return [chart]


def _drift(figures: Figures) -> Section:
    label, found = figures["label"], sorted(figures["drift"], key=lambda one: -one["index"])
    blocks: list[Chart | HtmlTable] = []
    if figures["along"] and label is not None:
        blocks.append(along(f"Label rate of {label['name']} along the file", figures["along"]))
    if found:
        shown = found[:_MOST_BARS]
        names, indices = [one["name"] for one in shown], [one["index"] for one in shown]
        drifted = ", ".join(one["name"] for one in found if one["has_drifted"])
        blocks.append(
            bars(
                "Drift along the file", names, indices, x_title="stability index", note=f"Drifted: {drifted or 'none'}."
            )
        )
    return Section("Along the file", blocks, _DRIFT)


def _missing(missing: Mapping[str, Any]) -> Section:
    lacking = missing["columns"]
    if not lacking:
        return Section("Missing values")
    names, shares = [one["name"] for one in lacking[:_MOST_BARS]], [100 * one["share"] for one in lacking[:_MOST_BARS]]
    patterns = [
        {
            "missing together": ", ".join(pattern["columns"]) or "none",
            "rows": pattern["rows"],
            "share": percent(pattern["share"]),
            "label rate": percent(pattern["label_rate"]),
        }
        for pattern in missing["patterns"]
    ]
    blocks: list[Chart | HtmlTable] = [
        bars("Rows without a value", names, shares, x_title="percent"),
        HtmlTable(patterns, title="Patterns"),
    ]
    text = "Where the label rate differs between patterns, the gap itself predicts the label."
    return Section("Missing values", blocks, text)


def _associations(found: Mapping[str, Any]) -> Section:
    names, pairs = found["columns"], found["pairs"]
    if not pairs:
        return Section("Associations")
    note = f"{found['rows']:,} rows."
    if found["left_out"]:
        note += f" {found['left_out']} columns with the lowest AUC, or with one value, are left out."
    chart = heat_map("Between columns", names, found["values"], note=note)
    shown = pairs[:_MOST_PAIRS]
    labels, values = [f"{pair['first']}, {pair['second']}" for pair in shown], [abs(pair["value"]) for pair in shown]
    strongest = bars("Strongest pairs", labels, values, x_title="strength, without the sign")
    return Section("Associations", [chart, strongest], _ASSOCIATIONS)


def _distributions(figures: Figures) -> Section:
    label, columns = figures["label"], [column for column in figures["columns"] if column["cells"]]
    by_auc = sorted(columns, key=lambda column: -max(column["auc"].values(), default=0.0))[:_MOST_CHARTS]
    rate = None if label is None else label["rate"]
    charts = [
        distribution(
            column["name"], column["cells"], rate if column["role"] != "label" else None, column["role"] != "label"
        )
        for column in columns
        if column in by_auc
    ]
    text = "Bars: the share of the rows." if label is None else CELLS
    if len(by_auc) < len(columns):
        text += f" The {len(by_auc)} columns with the highest AUC of {len(columns)}."
    return Section("Distributions", charts, text)


def _interactions(found: Mapping[str, Any] | None) -> Section:
    if found is None:
        return Section("Activity and popularity")
    users, items = found["user"], found["item"]
    blocks: list[Chart | HtmlTable] = []
    for title, one in (("Rows of a user", users), ("Rows of an item", items)):
        names, shares = ([row[name] for row in one["rows"]] for name in ("rows", "share"))
        note = f"Median {text_of(one['median'])}, at most {one['most']:,}."
        blocks.append(
            bars(
                title, names, [100 * share for share in shares], x_title="percent of them, by number of rows", note=note
            )
        )
    curves = {
        name: (
            [100 * share for share in one["cumulated"]["share"]],
            [100 * share for share in one["cumulated"]["of_rows"]],
        )
        for name, one in (("items", items), ("users", users))
    }
    title = "Percent of the rows that the most frequent have"
    blocks.append(lines(title, "percent of items or users", "", curves, diagonal=(0, 100)))
    text = f"{users['count']:,} users and {items['count']:,} items in the sample. Dotted: all would have as many rows."
    return Section("Activity and popularity", blocks, text)


def _rejected(rejected: Mapping[str, Any]) -> Section:
    reasons = [{"reason": reason, "rows": rows} for reason, rows in rejected["reasons"].items()]
    text = "Rows of the sample's places that preprocessing by this recipe leaves out."
    return Section("Rows left out", [HtmlTable(reasons)] if reasons else [], text)
