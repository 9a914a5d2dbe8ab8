"""The page of a dataset."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.pages.charts import lines, shares_and_rates
from rayrec.pages.page import Chart, Figures, HtmlTable, Page, Section, percent

_NO_TIMES = (
    "Encoded rows have no times, so the label rate cannot be shown by day. It is shown along the rows of splits that "
    "keep the order of the input, which is often that of time, and by parts of the time that are features."
)
_DRIFT = (
    "The stability index compares the shares of a feature's values. Below 0.1 it is usually read as no change. A "
    "feature has drifted from 0.25 beyond what samples of this size differ by chance."
)
CELLS = (
    "Bars: the share of the values. Points: the label rate with its 95 % interval, where that is narrower than a half; "
    "dotted: the label rate of all rows."
)
_KNOWN = 0.5
"""The width of an interval of the label rate from which on it says nothing."""


def dataset_page(figures: Figures) -> Page:
    """Return the page of what `rayrec report` found in a dataset."""
    splits, features = figures["splits"], figures["features"]
    rows = sum(split["rows"] for split in splits.values())
    rejected = sum(reason["rows"] for reason in figures["rejected"])
    facts = {
        "rows": f"{rows:,}",
        "features": f"{len(features)}",
        "label rate of train": percent(splits["train"]["label_rate"]) if "train" in splits else "",
        "rejected rows": f"{rejected:,}",
    }
    rate = splits["train"]["label_rate"] if "train" in splits else None
    sections = [_overview(figures), _columns(features), _distributions(features, rate), _rejected(figures, rows)]
    if figures["against"] is not None:
        sections.insert(1, _drift(figures["against"]))
    return Page(
        title=f"Dataset {figures['subject']}",
        summary=f"Made by the recipe {figures['recipe']} from source {figures['source']}.",
        facts={name: value for name, value in facts.items() if value},
        expectations=figures["expectations"],
        sections=sections,
    )


def _overview(figures: Figures) -> Section:
    features = figures["features"]
    rows = [
        {
            "split": name,
            "rows": split["rows"],
            "label rate": percent(split["label_rate"]) or "not known",
            "read for this page": split["rows_read"],
            "drifted from train": "" if name == "train" else ", ".join(_drifted(features, name)) or "nothing",
        }
        for name, split in figures["splits"].items()
    ]
    times = figures["times"]
    text = f"Rows from {times['first']} to {times['last']}. {_NO_TIMES}" if times else _NO_TIMES
    text = " ".join([*(f"Note: {warning}." for warning in figures["warnings"]), text])
    charts = [
        along(f"Label rate along {name}", split["along"]) for name, split in figures["splits"].items() if split["along"]
    ]
    return Section("Splits", [HtmlTable(rows), *charts], text)


def along(title: str, parts: Sequence[Mapping[str, Any]]) -> Chart:
    """Return the label rate of parts of a split, one after the other."""
    middles = [100 * (n + 0.5) / len(parts) for n in range(len(parts))]
    rates, low, high = ([part[name] for part in parts] for name in ("label_rate", "low", "high"))
    return lines(
        title, "percent of the rows", "label rate", {"label rate": (middles, rates)}, bands={"label rate": (low, high)}
    )


def _drifted(features: Sequence[Mapping[str, Any]], split: str) -> list[str]:
    return [feature["name"] for feature in features if feature["drift"].get(split, {}).get("has_drifted")]


def _columns(features: Sequence[Mapping[str, Any]]) -> Section:
    rows = []
    for feature in features:
        low, high = _rates(feature)
        rows.append({
            "feature": feature["name"],
            "kind": feature["kind"],
            "missing": percent(feature["missing_share"]),
            "not listed": percent(feature["unlisted_share"]),
            "values seen": feature["distinct"],
            "table rows": feature["table_rows"],
            "values a row": feature["mean_length"],
            **{name: feature["range"].get(name) for name in ("min", "median", "mean", "max")},
            "label rates": f"{percent(low)} to {percent(high)}" if low is not None else "",
            **{f"stability of {split}": drift["index"] for split, drift in feature["drift"].items()},
        })  # fmt: skip
    text = (
        "Rows of train, encoded. Numbers were filled before they were written, so what was missing among them cannot "
        "be told. Label rates: from the lowest to the highest of a feature's cells, if known to a fifth. In the other "
        "splits all values that train does not have are not listed, so features of many rare values differ there."
    )
    drifted = [n for n, f in enumerate(features) if any(d["has_drifted"] for d in f["drift"].values())]
    return Section("Columns", [HtmlTable(rows, marked=drifted)], text)


def _rates(feature: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the range of the label rates that are known well enough."""
    sure = [c["label_rate"] for c in feature["cells"] if c["high"] - c["low"] <= 0.4 * c["label_rate"]]
    return (min(sure), max(sure)) if sure else (None, None)


def _distributions(features: Sequence[Mapping[str, Any]], rate: float | None) -> Section:
    text = f"{CELLS} Numbers are in the terms of the raw data; ranges are even as the model sees them."
    charts = [distribution(feature["name"], feature["cells"], rate) for feature in features]
    return Section("Distributions and label rates", charts, text)


def distribution(name: str, cells: Sequence[Mapping[str, Any]], rate: float | None, has_rates: bool = True) -> Chart:
    """Return the shares and label rates of the cells of a feature or column; `rate` is that of all rows."""
    labels, shares = ([cell[name] for cell in cells] for name in ("value", "share"))
    rates, low, high = (
        [cell[name] if has_rates and _is_known(cell) else None for cell in cells]
        for name in ("label_rate", "low", "high")
    )
    return shares_and_rates(name, labels, shares, rates, low, high, reference=rate)


def _is_known(cell: Mapping[str, Any]) -> bool:
    return cell["low"] is not None and cell["high"] - cell["low"] < _KNOWN


def _drift(against: Mapping[str, Any]) -> Section:
    features = sorted(against["features"], key=lambda feature: -feature["index"])
    rows = [
        {
            "feature": feature["name"],
            "kind": feature["kind"],
            "stability index": feature["index"],
            "drifted from": feature["limit"],
            "unknown now": percent(feature["unknown_share"]),
            "unknown before": percent(feature["unknown_share_before"]),
            "verdict": "drifted" if feature["has_drifted"] else "",
        }
        for feature in features
    ]
    marked = [number for number, feature in enumerate(features) if feature["has_drifted"]]
    blocks = [HtmlTable(rows, marked=marked)]
    if against["not_compared"]:
        unlike = [{"feature": name, "why": reason} for name, reason in against["not_compared"].items()]
        blocks.append(HtmlTable(unlike, title="Not compared"))
    return Section("Drift", blocks, f"Rows of train against those of {against['dataset']}. {_DRIFT}")


def _rejected(figures: Figures, rows: int) -> Section:
    if not figures["rejected"]:
        return Section("Rejected rows", text="No row was set aside.")
    total = rows + sum(reason["rows"] for reason in figures["rejected"])
    reasons = [
        {"reason": reason["reason"], "rows": reason["rows"], "share": percent(reason["rows"] / total)}
        for reason in figures["rejected"]
    ]
    examples = [
        {"reason": reason["reason"], **example} for reason in figures["rejected"] for example in reason["examples"]
    ]
    return Section("Rejected rows", [HtmlTable(reasons), HtmlTable(examples, title="Examples")])
