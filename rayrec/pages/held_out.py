"""The sections of pages that show how a model scores held-out rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.config.evaluate import metric_title
from rayrec.metrics.estimates import Estimate
from rayrec.metrics.scored_rows import SLICE_METRICS
from rayrec.pages.charts import histograms, intervals, lines
from rayrec.pages.page import Chart, HtmlTable, Section, percent, plus_minus, text_of


def held_out_sections(held_out: Mapping[str, Any]) -> list[Section]:
    """Return the sections on what `rayrec.inspection.runs.held_out_figures` found."""
    sections = [Section("Held-out scores", [_metrics(held_out), *_curves(held_out)], _scope(held_out))]
    sections.append(Section("Slices", _slices(held_out), _slices_text(held_out)))
    return sections


def _scope(held_out: Mapping[str, Any]) -> str:
    split, rows, scored = held_out["split"], held_out["rows"], held_out["rows_scored"]
    which = f"All {rows:,} rows" if rows == scored else f"{scored:,} of {rows:,} rows (the first, of weight above 0)"
    unit = "groups" if held_out["has_groups"] else "rows"
    return (
        f"{which} of {split}, scored by the exported model. Errors and bands (95 %) are those of a sample of {unit}. "
        "They do not include what another seed of the training would change."
    )


def _metrics(held_out: Mapping[str, Any]) -> HtmlTable:
    rows = []
    for name, found in held_out["metrics"].items():
        if found is not None:
            low, high = Estimate(**found).interval
            rows.append({"metric": metric_title(name), "value": found["value"], "standard error": found["error"],
                         "95 % from": low, "to": high})  # fmt: skip
    return HtmlTable(rows)


def _curves(held_out: Mapping[str, Any]) -> list[Chart]:
    # Where all rows have one label there is nothing to rank.
    curves = held_out["curves"]
    if curves is None:
        return []
    rate = held_out["label_rate"]["value"]
    return [
        _curve(
            f"ROC (AUC {text_of(held_out['metrics']['auc']['value'])})", "share of the negatives above the threshold",
            "share of the positives", curves["roc"], diagonal=(0, 1),
        ),
        _curve(
            f"Precision and recall (average precision {text_of(curves['average_precision'])})", "recall", "precision",
            curves["precision_recall"], note=f"Without a model precision is the label rate, {percent(rate)}.",
        ),
        _reliability(curves),
        histograms(
            "Scores by label", "score", curves["histogram"]["edges"],
            {"label 0": curves["histogram"]["negatives"], "label 1": curves["histogram"]["positives"]},
            note="Shares of the rows of each label. The last bin takes in the highest scores.",
        ),
        _curve("Lift", "share of the rows, the highest scores first", "label rate over that of all", curves["lift"]),
    ]  # fmt: skip


def _curve(title: str, x_title: str, y_title: str, curve: Mapping[str, Any], **options: Any) -> Chart:
    series, bands = {title: (curve["x"], curve["y"])}, {title: (curve["low"], curve["high"])}
    return lines(title, x_title, y_title, series, bands=bands, **options)


def _reliability(curves: Mapping[str, Any]) -> Chart:
    bins = curves["reliability"]
    scores, rates, low, high = ([of_bin[name] for of_bin in bins] for name in ("score", "rate", "low", "high"))
    error = curves["expected_calibration_error"]
    return lines(
        "Reliability", "mean score", "label rate", {"bins": (scores, rates)}, bands={"bins": (low, high)},
        diagonal=(0.0, max(*scores, *rates)),
        note=f"{len(bins)} bins of as many rows. Mean distance from the diagonal: {text_of(error)}.",
    )  # fmt: skip


def _slices_text(held_out: Mapping[str, Any]) -> str:
    return (
        f"{len(held_out['slices']):,} slices: by tenths of the score, by the values of each feature, and by how often "
        "a value occurred in train; report.json has all. The worst come first, by the better end of their interval, so "
        "that a slice of few rows is not the worst for that alone. Among many slices a few stand apart by chance."
    )


def _slices(held_out: Mapping[str, Any]) -> list[Chart | HtmlTable]:
    every, worst = held_out["slices"], held_out["worst"]
    charts = [
        _worst(metric, [every[place] for place in places], held_out["metrics"][metric]["value"])
        for metric, places in worst.items()
        if places
    ]
    listed = sorted({place for places in worst.values() for place in places})
    tenths = [one for one in every if one["by"] == "score"]
    others = [every[place] for place in listed if every[place]["by"] != "score"]
    return [*charts, _table("By the score", tenths), _table("By features, those above", others)]


def _worst(metric: str, worst: Sequence[Mapping[str, Any]], overall: float) -> Chart:
    labels = [f"{one['by']}: {one['value']}" for one in worst]
    found = [Estimate(**one["metrics"][metric]) for one in worst]
    is_calibration = metric == "calibration"
    # The axis is logarithmic: predicting twice the label rate is as wrong as predicting half of it.
    low = [max(e.interval[0], e.value / 100) if is_calibration else e.interval[0] for e in found]
    return intervals(
        f"Worst by {metric_title(metric)}",
        labels,
        [estimate.value for estimate in found],
        low,
        [estimate.interval[1] for estimate in found],
        reference=1.0 if is_calibration else overall,
        ratio=is_calibration,
        note="Above 1 the model predicts more than happens." if is_calibration else "Dotted: all rows.",
    )


def _table(title: str, slices: Sequence[Mapping[str, Any]]) -> HtmlTable:
    rows = []
    for one in slices:
        row: dict[str, Any] = {"by": one["by"], "value": one["value"], "rows": one["rows"]}
        row["label rate"] = one["positives"] / one["rows"]
        for metric in SLICE_METRICS:
            found = one["metrics"][metric]
            row[metric_title(metric)] = None if found is None else plus_minus(found["value"], found["error"])
        rows.append(row)
    return HtmlTable(rows, title=title)
