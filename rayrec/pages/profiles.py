"""The pages of data: of a raw table, before it is preprocessed, and of a dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.pages.charts import bars, intervals, lines, shares_and_rates
from rayrec.pages.page import Chart, Code, Figures, HtmlTable, Page, Section, percent, text_of

_MOST_CHARTS, _MOST_BARS = 60, 30
_KNOWN = 0.5
"""The width of an interval of the label rate from which on it says nothing."""
_CELLS = (
    "Bars: the share of the values. Points: the label rate with its 95 % interval, where that is narrower than a half; "
    "dotted: the label rate of all rows."
)
_WITH_LABEL = (
    "How well each column alone ranks the rows by their label, out of fold: 0.5 is chance, 1 is perfect. Points are "
    "the AUC of the best reading of the column, lines its 95 % interval. A column near 1 may contain the label."
)
_DRIFT_ALONG = (
    "The second half of the rows against the first, in the order of the files. A stability index below 0.1 is usually "
    "read as no change; a column has drifted from 0.25 beyond what samples of this size differ by chance."
)
_DRIFT = (
    "The stability index compares the shares of a feature's values. Below 0.1 it is usually read as no change. A "
    "feature has drifted from 0.25 beyond what samples of this size differ by chance."
)
_NO_TIMES = (
    "Encoded rows have no times, so the label rate cannot be shown by day. It is shown along the rows of splits that "
    "keep the order of the input, which is often that of time, and by parts of the time that are features."
)
_HISTORIES = "What is known of the events before a row, and up to when events are known."
_FOUND_HISTORIES = (
    "What happened before a row, which the recipe takes as columns. The AUC is that of a logistic regression on all "
    "columns on the rows that the recipe holds out, with each history beside those above it."
)
_ENCODED = (
    "Rows of train, encoded. Numbers were filled before they were written, so what was missing among them cannot be "
    "told. Label rates: from the lowest to the highest of a feature's cells, if known to a fifth. In the other splits "
    "all values that train does not have are not listed, so features of many rare values differ there."
)


def inspection_page(figures: Figures) -> Page:
    """Return the page of `rayrec inspect` for raw files (`rayrec.inspection.profiles`)."""
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
        facts["AUC of a logistic regression, out of fold on the sample"] = text_of(figures["logistic_regression_auc"])
    if figures["new_values"] is not None:
        facts["new people and items"] = figures["new_values"]
    if figures["duplicates"] is not None:
        facts["duplicate rows"] = text_of(figures["duplicates"])
    reasons = [{"reason": reason, "rows": rows} for reason, rows in figures["rejected"]["reasons"].items()]
    left_out = "Rows of the sample's places that preprocessing by this recipe leaves out."
    sections = [
        Section("Alerts", [HtmlTable(alerts)] if alerts else [], "" if alerts else "Nothing to look at was found."),
        _raw_columns(columns),
        _activity(figures["interactions"]),
        Section("Columns and the label", _with_label(figures["with_label"]), _WITH_LABEL),
        _found_histories(figures["histories"]),
        Section("Along the file", _along_the_file(figures), _DRIFT_ALONG),
        _raw_distributions(columns, label),
        Section("Rows left out", [HtmlTable(reasons)] if reasons else [], left_out),
        Section("Recipe", [Code(figures["recipe"])]),
    ]
    return Page(
        title=f"Table {figures['subject']}",
        summary=f"Before training: what {which}.",
        facts=facts,
        sections=[section for section in sections if section.blocks or section.title == "Alerts"],
    )


def dataset_page(figures: Figures) -> Page:
    """Return the page of `rayrec report` for a dataset (`rayrec.inspection.profiles`)."""
    splits, features = figures["splits"], figures["features"]
    rows = sum(split["rows"] for split in splits.values())
    rate = splits["train"]["label_rate"] if "train" in splits else None
    facts = {
        "rows": f"{rows:,}",
        "features": f"{len(features)}",
        "label rate of train": percent(rate),
        "rejected rows": f"{sum(reason['rows'] for reason in figures['rejected']):,}",
        **{f"look-up {name}": text for name, text in figures["found_keys"].items()},
    }
    text = f"{_CELLS} Numbers are in the terms of the raw data; ranges are even as the model sees them."
    charts = [_distribution(feature["name"], feature["cells"], rate) for feature in features]
    sections = [
        _splits(figures),
        *([_drift(figures["against"])] if figures["against"] is not None else []),
        _encoded_columns(features),
        *([Section("Histories", [HtmlTable(figures["histories"])], _HISTORIES)] if figures["histories"] else []),
        Section("Distributions and label rates", charts, text),
        _rejected(figures["rejected"], rows),
    ]
    return Page(
        title=f"Dataset {figures['subject']}",
        summary=f"Made by the recipe {figures['recipe']} from source {figures['source']}.",
        facts={name: value for name, value in facts.items() if value},
        expectations=figures["expectations"],
        sections=sections,
    )


# What both pages show.


def _along(title: str, parts: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the label rate of parts of the rows, one after the other."""
    middles = [100 * (n + 0.5) / len(parts) for n in range(len(parts))]
    rates, low, high = ([part[name] for part in parts] for name in ("label_rate", "low", "high"))
    return lines(
        title, "percent of the rows", "label rate", {"label rate": (middles, rates)}, bands={"label rate": (low, high)}
    )


def _distribution(name: str, cells: Sequence[Mapping[str, Any]], rate: float | None, has_rates: bool = True) -> Chart:
    """Return the shares and label rates of the cells of a feature or column; `rate` is that of all rows."""
    known = [has_rates and cell["low"] is not None and cell["high"] - cell["low"] < _KNOWN for cell in cells]
    rates, low, high = (
        [cell[key] if is_known else None for cell, is_known in zip(cells, known, strict=True)]
        for key in ("label_rate", "low", "high")
    )
    labels, shares = ([cell[key] for cell in cells] for key in ("value", "share"))
    return shares_and_rates(name, labels, shares, rates, low, high, reference=rate)


# Sections of a raw table.


def _raw_columns(columns: Sequence[Mapping[str, Any]]) -> Section:
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


def _found_histories(histories: Sequence[Mapping[str, Any]]) -> Section:
    rows = [
        {
            "history": history["name"],
            "by": ", ".join(history["by"]),
            "takes": ", ".join(history["take"]),
            "AUC with it": history["auc"],
            "AUC without it": history["without"],
        }
        for history in histories
    ]
    return Section("Histories", [HtmlTable(rows)] if rows else [], _FOUND_HISTORIES)


def _activity(found: Mapping[str, Any] | None) -> Section:
    if found is None:
        return Section("Activity and popularity")
    users, items = found["user"], found["item"]
    blocks, curves = [], {}
    for title, one in (("Rows of a user", users), ("Rows of an item", items)):
        names, shares = [row["rows"] for row in one["rows"]], [100 * row["share"] for row in one["rows"]]
        note = f"By number of rows. Median {text_of(one['median'])}, at most {one['most']:,}."
        blocks.append(bars(title, names, shares, x_title="percent of them", note=note))
    for name, one in (("items", items), ("users", users)):
        share, of_rows = ([100 * value for value in one["cumulated"][key]] for key in ("share", "of_rows"))
        curves[name] = (share, of_rows)
    title = "Percent of the rows that the most frequent have"
    blocks.append(lines(title, "percent of items or users", "", curves, diagonal=(0, 100)))
    text = f"{users['count']:,} users and {items['count']:,} items in the sample. Dotted: all would have as many rows."
    return Section("Activity and popularity", blocks, text)


def _with_label(found: Sequence[Mapping[str, Any]]) -> list[Chart]:
    if not found:
        return []
    names, *ends = ([one[key] for one in found[:_MOST_BARS]] for key in ("name", "auc", "low", "high"))
    return [intervals("AUC of each column alone", names, *ends, reference=0.5, is_wide=len(found) > 12)]


def _along_the_file(figures: Figures) -> list[Chart]:
    label, found = figures["label"], sorted(figures["drift"], key=lambda one: -one["index"])
    charts = []
    if figures["along"] and label is not None:
        charts.append(_along(f"Label rate of {label['name']} along the file", figures["along"]))
    if found:
        names, indices = ([one[key] for one in found[:_MOST_BARS]] for key in ("name", "index"))
        drifted = ", ".join(one["name"] for one in found if one["has_drifted"])
        note = f"Drifted: {drifted or 'none'}."
        charts.append(bars("Drift along the file", names, indices, x_title="stability index", note=note))
    return charts


def _raw_distributions(columns: Sequence[Mapping[str, Any]], label: Mapping[str, Any] | None) -> Section:
    columns = [column for column in columns if column["cells"]]
    by_auc = sorted(columns, key=lambda column: -max(column["auc"].values(), default=0.0))[:_MOST_CHARTS]
    charts = []
    for column in columns:
        if column in by_auc:
            # Of the label itself there is no label rate.
            has_rates = column["role"] != "label"
            rate = label["rate"] if label is not None and has_rates else None
            charts.append(_distribution(column["name"], column["cells"], rate, has_rates))
    text = "Bars: the share of the rows." if label is None else _CELLS
    if len(by_auc) < len(columns):
        text += f" The {len(by_auc)} columns with the highest AUC of {len(columns)}."
    return Section("Distributions", charts, text)


# Sections of a dataset.


def _splits(figures: Figures) -> Section:
    rows, charts = [], []
    for name, split in figures["splits"].items():
        drifted = [one["name"] for one in figures["features"] if one["drift"].get(name, {}).get("has_drifted")]
        rows.append({
            "split": name,
            "rows": split["rows"],
            "label rate": percent(split["label_rate"]) or "not known",
            "read for this page": split["rows_read"],
            "drifted from train": "" if name == "train" else ", ".join(drifted) or "nothing",
        })  # fmt: skip
        charts += [_along(f"Label rate along {name}", split["along"])] if split["along"] else []
    times = figures["times"]
    text = f"Rows from {times['first']} to {times['last']}. {_NO_TIMES}" if times else _NO_TIMES
    text = " ".join([*(f"Note: {warning}." for warning in figures["warnings"]), text])
    return Section("Splits", [HtmlTable(rows), *charts], text)


def _encoded_columns(features: Sequence[Mapping[str, Any]]) -> Section:
    rows = []
    for feature in features:
        # Only label rates that are known well enough.
        sure = [c["label_rate"] for c in feature["cells"] if c["high"] - c["low"] <= 0.4 * c["label_rate"]]
        rows.append({
            "feature": feature["name"],
            "kind": feature["kind"],
            "missing": percent(feature["missing_share"]),
            "not listed": percent(feature["unlisted_share"]),
            "values seen": feature["distinct"],
            "table rows": feature["table_rows"],
            "values a row": feature["mean_length"],
            **{name: feature["range"].get(name) for name in ("min", "median", "mean", "max")},
            "label rates": f"{percent(min(sure))} to {percent(max(sure))}" if sure else "",
            **{f"stability of {split}": drift["index"] for split, drift in feature["drift"].items()},
        })  # fmt: skip
    drifted = [n for n, f in enumerate(features) if any(d["has_drifted"] for d in f["drift"].values())]
    return Section("Columns", [HtmlTable(rows, marked=drifted)], _ENCODED)


def drift_rows(features: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table on how features differ (`FeatureDrift.as_json`), those that differ most first."""
    return [
        {
            "feature": feature["name"],
            "kind": feature["kind"],
            "stability index": feature["index"],
            "drifted from": feature["limit"],
            "unknown now": percent(feature["unknown_share"]),
            "unknown before": percent(feature["unknown_share_before"]),
            "verdict": "drifted" if feature["has_drifted"] else "",
        }
        for feature in sorted(features, key=lambda feature: -feature["index"])
    ]


def _drift(against: Mapping[str, Any]) -> Section:
    rows = drift_rows(against["features"])
    blocks = [HtmlTable(rows, marked=[number for number, row in enumerate(rows) if row["verdict"]])]
    if against["not_compared"]:
        unlike = [{"feature": name, "why": reason} for name, reason in against["not_compared"].items()]
        blocks.append(HtmlTable(unlike, title="Not compared"))
    return Section("Drift", blocks, f"Rows of train against those of {against['dataset']}. {_DRIFT}")


def _rejected(rejected: Sequence[Mapping[str, Any]], rows: int) -> Section:
    if not rejected:
        return Section("Rejected rows", text="No row was set aside.")
    total = rows + sum(one["rows"] for one in rejected)
    reasons = [
        {"reason": one["reason"], "rows": one["rows"], "share": percent(one["rows"] / total)} for one in rejected
    ]
    examples = [{"reason": one["reason"], **example} for one in rejected for example in one["examples"]]
    return Section("Rejected rows", [HtmlTable(reasons), HtmlTable(examples, title="Examples")])
