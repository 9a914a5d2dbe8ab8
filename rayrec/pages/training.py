"""The pages of a run and of a model folder, with what its model says of held-out rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayrec.common.text import format_bytes
from rayrec.config.evaluate import metric_title, shown_metrics
from rayrec.metrics.estimates import Estimate
from rayrec.metrics.scored_rows import SLICE_METRICS
from rayrec.pages.charts import histograms, intervals, lines, stacked
from rayrec.pages.page import Chart, Code, Figures, HtmlTable, Page, Section, percent, plus_minus, text_of

# Held-out rows.


def held_out_sections(held_out: Mapping[str, Any]) -> list[Section]:
    """Return the sections on what `rayrec.inspection.runs.held_out_figures` or `next_item_figures` found."""
    if "events" in held_out:
        parts = [_measured(held_out), _events(held_out), _penalties(held_out)]
        return [Section("Held-out events", parts, _scope_of_events(held_out))]
    sections = [Section("Held-out scores", [_measured(held_out), *_curves(held_out)], _scope(held_out))]
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


def _scope_of_events(held_out: Mapping[str, Any]) -> str:
    text = (
        f"All {held_out['events']:,} events of {held_out['split']} whose item is known: where the item that was chosen "
        "stands among all that its person did not have before. Errors (95 %) are those of a sample of people."
    )
    # How alike the lists are.
    lists = held_out["lists"]
    for k in (name.removeprefix("top_share@") for name, share in lists.items() if name.startswith("top_share@")):
        top, covered = (percent(lists[f"{name}@{k}"]) for name in ("top_share", "coverage"))
        text += f" One item is among the best {k} of {top} of them, and {covered} of the catalogue of any."
    return text


def _events(held_out: Mapping[str, Any]) -> HtmlTable:
    rows = []
    for one in held_out["slices"]:
        errors = {k: plus_minus(v["value"], v["error"]) for k, v in one["metrics"].items() if v is not None}
        rows.append({"events of": one["events of"], "events": one["events"], **errors})
    return HtmlTable(rows, title="By what is known of people")


def _penalties(held_out: Mapping[str, Any]) -> HtmlTable:
    return HtmlTable(
        held_out["penalties"], title="If popular items are shown less (serve.recommend.popularity_penalty)"
    )


def _measured(held_out: Mapping[str, Any]) -> HtmlTable:
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
    keys = [one for one in every if one["by"] in held_out["of_keys"]]
    of_keys = [_table("By what is known of keys", keys)] if keys else []
    return [*charts, *of_keys, _table("By the score", tenths), _table("By features, those above", others)]


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


# Runs and models.

_TRAIN_CHARTS = {
    "samples_per_second": "Samples per second",
    "data_wait_share": "Share of the time spent waiting for data",
}
_MOST_TABLES = 7
"""Tables that have a colour of their own; the others share one."""


def run_page(figures: Figures) -> Page:
    """Return the page of `rayrec report` for a run folder."""
    curves = {**figures["curves"], "evaluations": _shown(figures, figures["curves"]["evaluations"])}
    sections = [_metrics(figures), Section("Training", training_charts({"run": curves}))]
    if figures["held_out"] is not None:
        sections += held_out_sections(figures["held_out"])
    sections += [_resources(figures["resources"]), *_plan(figures["plan"])]
    sections.append(Section("Recipe", [Code(figures["recipe"])]))
    return Page(
        title=f"Run {figures['subject']}",
        summary=figures["description"],
        facts=_facts(figures),
        expectations=figures["expectations"],
        sections=sections,
    )


def model_page(figures: Figures) -> Page:
    """Return the page of `rayrec report` for a model folder."""
    sections = [_metrics(figures)]
    if figures["held_out"] is not None:
        sections += held_out_sections(figures["held_out"])
    sections += [Section("Tables", [HtmlTable(figures["tables"])]), Section("Model card", [Code(figures["card"])])]
    return Page(
        title=f"Model {figures['subject']}",
        summary=figures["description"],
        facts=_facts(figures),
        expectations=figures["expectations"],
        sections=sections,
    )


def training_charts(runs: Mapping[str, Mapping[str, Any]], colours: Mapping[str, int] | None = None) -> list[Chart]:
    """Return the charts of the curves (`rayrec.inspection.runs.training_curves`) of some runs by name, over each other.

    A single run has its learning rates in one chart. `colours`: numbers of the runs' colours.
    """

    def chart(title: str, column: str, split: str | None = None) -> Chart:
        """Return a column of the training, or of a split's evaluations, of all runs that have it."""
        series = {}
        for name, curves in runs.items():
            columns = curves["train"] if split is None else curves["evaluations"].get(split, {})
            if column in columns:
                series[name] = (columns["step"], columns[column])
        return lines(title, "step", "", series, colours=colours)

    trained = dict.fromkeys(column for curves in runs.values() for column in curves["train"])
    charts = [chart("Training loss", "loss")] if "loss" in trained else []
    evaluated = dict.fromkeys(
        (split, metric)
        for curves in runs.values()
        for split, columns in curves["evaluations"].items()
        for metric in columns
        if metric != "step"
    )
    charts += [chart(f"{metric_title(metric)} of {split}", metric, split) for split, metric in evaluated]
    rates = [column for column in trained if column.startswith("lr_")]
    if len(runs) == 1:
        (train,) = (curves["train"] for curves in runs.values())
        charts.append(lines("Learning rates", "step", "", {rate: (train["step"], train[rate]) for rate in rates}))
    else:
        charts += [chart(f"Learning rate {rate.removeprefix('lr_')}", rate) for rate in rates]
    return charts + [chart(title, column) for column, title in _TRAIN_CHARTS.items() if column in trained]


def metrics_rows(
    metrics: Mapping[str, Mapping[str, float | None]],
    baselines: Mapping[str, Mapping[str, Mapping[str, float]]] | None = None,
) -> list[dict[str, Any]]:
    """Return a row of a table for each split, and below it one for each simpler model, if any."""
    rows = []
    for split, values in metrics.items():
        simpler = (baselines or {}).get(split, {})
        for model, found in {"this model" if simpler else "": values, **simpler}.items():
            named = {metric_title(name): value for name, value in found.items()}
            rows.append({"split": split, "predicted by": model, **named})
    return rows


def _shown(figures: Figures, by_split: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the metrics of each split that the page shows."""
    drawn = figures.get("drawn_negatives", False)
    return {split: shown_metrics(values, drawn_negatives=drawn) for split, values in by_split.items()}


def _metrics(figures: Figures) -> Section:
    rows = metrics_rows(_shown(figures, figures["metrics"]), figures.get("baselines"))
    text = "All rows of each split, measured by the training." if rows else "The training has not ended yet."
    text = " ".join([*(f"Note: {warning}." for warning in figures["warnings"]), text])
    return Section("Metrics", [HtmlTable(rows)] if rows else [], text)


def _facts(figures: Figures) -> dict[str, str]:
    main = _shown(figures, figures["metrics"]).get(figures["split"], {})
    facts = {f"{metric_title(name)} ({figures['split']})": text_of(value) for name, value in list(main.items())[:4]}
    for name, found in figures.get("resources", {}).items():
        if name in ("device", "workers", "precision") and found is not None:
            facts[name] = str(found)
    return facts


def _resources(found: Mapping[str, Any]) -> Section:
    seconds = found["seconds"]
    parts = {name: [value] for name, value in seconds.items()}
    memory = {
        "most memory of a process": found["peak_memory_bytes"],
        "tables, with their optimizer": found["table_bytes"],
    }
    rows = [
        *({"what": f"time: {name}", "amount": f"{text_of(value)} s"} for name, value in seconds.items()),
        *({"what": name, "amount": format_bytes(size)} for name, size in memory.items() if size is not None),
    ]
    chart = stacked("Time", ["run"], parts, x_title="seconds", is_wide=False)
    return Section("Time and memory", [chart, HtmlTable(rows)])


def _plan(plan: Mapping[str, Any] | None) -> list[Section]:
    """Return what each worker holds: the largest tables one by one, and the others together."""
    if plan is None:
        return []
    ranks = range(plan["world_size"])
    sizes: dict[str, list[float]] = {}
    for shard in plan["shards"]:
        by_rank = sizes.setdefault(shard["table"], [0.0] * len(ranks))
        by_rank[shard["rank"]] += shard["bytes"] + shard["host_bytes"]
    largest = sorted(sizes, key=lambda name: -sum(sizes[name]))
    shown: dict[str, list[float]] = {name: sizes[name] for name in largest[:_MOST_TABLES]}
    if others := largest[_MOST_TABLES:]:
        shown[f"{len(others)} smaller tables"] = [sum(sizes[name][rank] for name in others) for rank in ranks]
    rows = []
    for name in largest:
        shards = [shard for shard in plan["shards"] if shard["table"] == name]
        rows.append({
            "table": name,
            "sharding": shards[0]["sharding"],
            "kernel": shards[0]["kernel"],
            "ranks": ", ".join(str(rank) for rank in sorted({shard["rank"] for shard in shards})),
            "rows": max(shard["row"] + shard["rows"] for shard in shards),
            "columns": max(shard["column"] + shard["columns"] for shard in shards),
            "size": format_bytes(sum(sizes[name])),
        })  # fmt: skip
    chart = stacked("Bytes by rank", [f"rank {rank}" for rank in ranks], shown, x_title="bytes")
    return [Section("Sharding plan", [chart, HtmlTable(rows)], "Weights and optimizer state of the embedding tables.")]
