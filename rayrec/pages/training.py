"""The pages of a run and of a model."""

from collections.abc import Mapping
from typing import Any

from rayrec.common.text import format_bytes
from rayrec.config.evaluate import metric_title, shown_metrics
from rayrec.pages.charts import lines, stacked
from rayrec.pages.held_out import held_out_sections
from rayrec.pages.page import Chart, Code, Figures, HtmlTable, Page, Section, text_of

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
