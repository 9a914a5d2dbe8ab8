"""The pages of a run and of a model."""

from collections.abc import Mapping
from typing import Any

from rayrec.common.units import format_bytes
from rayrec.pages.charts import lines, stacked
from rayrec.pages.held_out import held_out_sections
from rayrec.pages.page import Chart, Check, Code, Figures, Page, Section, Table, text_of

_TRAIN_CHARTS = {
    "samples_per_second": ("Samples a second", "samples a second"),
    "data_wait_share": ("Share of the time spent waiting for data", "share"),
}
_MOST_TABLES = 40


def run_page(figures: Figures) -> Page:
    """The page of what `rayrec report` found in a run folder."""
    sections = [_metrics(figures), Section("Training", training_charts({"": figures["curves"]}))]
    if figures["held_out"] is not None:
        sections += held_out_sections(figures["held_out"])
    sections += [_resources(figures["resources"]), *_plan(figures["plan"])]
    sections.append(Section("Recipe", [Code(figures["recipe"])]))
    return Page(
        title=f"Run {figures['subject']}",
        summary=figures["description"],
        facts=_facts(figures),
        checks=[Check(check["line"], check["is_met"]) for check in figures["expectations"]],
        sections=sections,
    )


def model_page(figures: Figures) -> Page:
    """The page of what `rayrec report` found in a model folder."""
    sections = [_metrics(figures)]
    if figures["held_out"] is not None:
        sections += held_out_sections(figures["held_out"])
    sections += [Section("Tables", [Table(figures["tables"])]), Section("Model card", [Code(figures["card"])])]
    return Page(
        title=f"Model {figures['subject']}",
        summary=figures["description"],
        facts=_facts(figures),
        checks=[Check(check["line"], check["is_met"]) for check in figures["expectations"]],
        sections=sections,
    )


def training_charts(runs: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """Charts of the curves of one run, or of several by name over each other (`rayrec.inspection.run_facts`)."""

    def series(column: str) -> dict[str, Any]:
        return {
            name or column: (curves["train"]["step"], curves["train"][column])
            for name, curves in runs.items()
            if column in curves["train"]
        }

    charts = [lines("Training loss", "step", "loss", series("loss"))] if series("loss") else []
    evaluated: dict[tuple[str, str], dict[str, Any]] = {}
    for name, curves in runs.items():
        for split, columns in curves["evaluations"].items():
            for metric in columns:
                if metric != "step":
                    charted = evaluated.setdefault((split, metric), {})
                    charted[name or metric] = (columns["step"], columns[metric])
    charts += [lines(f"{metric} of {split}", "step", metric, of) for (split, metric), of in evaluated.items()]
    rates = {
        f"{name} {column}".strip(): (curves["train"]["step"], curves["train"][column])
        for name, curves in runs.items()
        for column in curves["train"]
        if column.startswith("lr_")
    }
    if rates:
        charts.append(lines("Learning rates", "step", "rate", rates))
    for column, (title, y_title) in _TRAIN_CHARTS.items():
        if series(column):
            charts.append(lines(title, "step", y_title, series(column)))
    return charts


def metrics_rows(metrics: Mapping[str, Mapping[str, float | None]]) -> list[dict[str, Any]]:
    """A row of a table for each split."""
    return [{"split": split, **values} for split, values in metrics.items()]


def _metrics(figures: Figures) -> Section:
    rows = metrics_rows(figures["metrics"])
    text = "Of all rows of each split, measured by the training." if rows else "The training has not ended yet."
    return Section("Metrics", [Table(rows)] if rows else [], text)


def _facts(figures: Figures) -> dict[str, str]:
    main = figures["metrics"].get(figures["split"], {})
    facts = {f"{name} ({figures['split']})": text_of(value) for name, value in list(main.items())[:4]}
    for name, found in figures.get("resources", {}).items():
        if name in ("device", "workers", "precision") and found is not None:
            facts[name] = str(found)
    return facts


def _resources(found: Mapping[str, Any]) -> Section:
    seconds = found["seconds"]
    parts = {name: [value] for name, value in seconds.items()}
    memory = {"most memory of a process": found["peak_memory_bytes"], "tables, with their optimizer": found["table_bytes"]}
    rows = [
        *({"what": f"time: {name}", "amount": f"{value:,.1f} s"} for name, value in seconds.items()),
        *({"what": name, "amount": format_bytes(size)} for name, size in memory.items() if size is not None),
    ]
    chart = stacked("Time", ["seconds"], parts, x_title="seconds", is_wide=True)
    return Section("Where time and memory went", [chart, Table(rows)])


def _plan(plan: Mapping[str, Any] | None) -> list[Section]:
    """What each worker holds: the largest tables one by one, and the others together."""
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
    chart = stacked("Bytes by rank", [f"rank {rank}" for rank in ranks], shown, x_title="bytes", is_wide=True)
    return [Section("Sharding plan", [chart, Table(rows)], "Weights and optimizer state of the embedding tables.")]
