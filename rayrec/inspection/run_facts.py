"""Facts of a run folder: curves, time, memory and the places of tables."""

import json
from itertools import pairwise
from typing import Any

from rayrec.training.run.folder import METRICS_FILE, PLAN_FILE, RunFolder
from rayrec.training.run.history import read_history

_NO_METRICS = {
    "step", "epoch", "event", "split", "seconds", "rows", "rows_per_second", "positives", "auc_error_bound", "groups",
    "sums",
}  # fmt: skip


def run_metrics(run: RunFolder) -> dict[str, dict[str, float | None]]:
    """Return the metrics of the finished run by split; empty while it trains."""
    path = run.path / METRICS_FILE
    return json.loads(path.read_text()) if path.is_file() else {}


def training_curves(run: RunFolder) -> dict[str, Any]:
    """Return the numbers of a run by step, as JSON values.

    `train`: steps, and loss, learning rates, samples a second, share of time waiting for data, memory. `evaluations`:
    by split, or `progressive` for rows that were measured before they were trained on, steps and metrics.
    """
    records = list(read_history(run.history))
    measured: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["event"] in ("evaluate", "progressive"):
            measured.setdefault(record.get("split", record["event"]), []).append(record)
    return {
        "train": _columns([record for record in records if record["event"] == "train"]),
        "evaluations": {name: _columns(of_split) for name, of_split in measured.items()},
    }


def _columns(records: list[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for record in records for name in record if name not in _NO_METRICS)
    return {"step": [r["step"] for r in records], **{name: [r.get(name) for r in records] for name in names}}


def resources(run: RunFolder, command_seconds: float | None) -> dict[str, Any]:
    """Return where time (seconds) and memory (bytes) went, as JSON values.

    `command_seconds`: how long the command took, if that is known and it trained the whole run.
    """
    records = list(read_history(run.history))
    batch = run.recipe.train.global_batch_size
    computing = waiting = 0.0
    windows = [record for record in records if record["event"] in ("epoch", "train")]
    for before, record in pairwise(windows):
        if record["event"] == "epoch":
            continue
        # What lies between two records of training is not in their windows, but takes no step.
        seconds = (record["step"] - before["step"]) * batch / record["samples_per_second"]
        waiting += seconds * record["data_wait_share"]
        computing += seconds * (1 - record["data_wait_share"])
    progress = run.progress()
    trained = progress.seconds if progress is not None else 0.0
    parts = {"steps": computing, "waiting for data": waiting}
    parts["evaluations, checkpoints"] = max(0.0, trained - computing - waiting)
    if command_seconds is not None and command_seconds > trained:
        parts["start, evaluation at the end"] = command_seconds - trained
    plan = sharding_plan(run)
    begun = next((r for r in records if r["event"] == "epoch"), {})
    return {
        "seconds": parts,
        "peak_memory_bytes": max((r["peak_memory_bytes"] for r in records if r["event"] == "train"), default=None),
        "table_bytes": sum(plan["bytes_by_rank"]) + sum(plan["host_bytes_by_rank"]) if plan is not None else None,
        "device": begun.get("device"),
        "workers": begun.get("workers"),
        "precision": begun.get("precision"),
    }


def sharding_plan(run: RunFolder) -> dict[str, Any] | None:
    """Return the content of plan.json; None before the first step."""
    path = run.path / PLAN_FILE
    return json.loads(path.read_text()) if path.is_file() else None
