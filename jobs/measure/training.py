"""Throughput of training, streamed from Parquet and from memory, one after the other in one Ray session."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe


def measure_training(
    recipe: Recipe, dataset: Dataset, *, warmup_steps: int, steps: int, progress: Progress
) -> list[dict[str, Any]]:
    """Samples/s over `steps` steps after `warmup_steps`, as `rayrec train` runs them; needs a Ray session."""
    from rayrec.training.driver import train
    from rayrec.training.run.folder import HISTORY_FILE
    from rayrec.training.run.history import read_history

    samples = recipe.train.samples_per_epoch(dataset.split("train").rows)
    per_epoch = samples // recipe.train.global_batch_size
    if per_epoch == 0:
        raise UserError(
            f"{dataset.folder}: train has fewer samples than train.global_batch_size "
            f"({recipe.train.global_batch_size}); lower it, or give more rows"
        )
    table = []
    for in_memory in (False, True):
        content = recipe.train.model_dump()
        content |= {
            "max_steps": warmup_steps + steps,
            "epochs": -(-(warmup_steps + steps) // per_epoch),
            "log_every_steps": warmup_steps,
            "evaluations_per_epoch": 0,
            "early_stop": None,
            "initial_weights": None,
            "ingest": {**content["ingest"], "in_memory": in_memory},
            "checkpoint": {**content["checkpoint"], "every_steps": None, "every_minutes": None},
        }
        config = recipe.model_copy(update={"train": recipe.train.model_validate(content)})
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            train(config, dataset, run, progress=progress)
            records = [r for r in read_history(run / HISTORY_FILE) if r["event"] == "train"]
        measured = [r for r in records if r["step"] > warmup_steps]
        batch = config.train.global_batch_size
        steps_of = [after["step"] - before["step"] for before, after in itertools.pairwise(records)]
        seconds = [n * batch / r["samples_per_second"] for n, r in zip(steps_of, measured, strict=True)]
        waited = sum(r["data_wait_share"] * s for r, s in zip(measured, seconds, strict=True))
        table.append({
            "data": "memory" if in_memory else "stream",
            "workers": config.train.workers,
            "global_batch_size": batch,
            "steps": sum(steps_of),
            "samples_per_second": sum(steps_of) * batch / sum(seconds),
            "data_wait_share": waited / sum(seconds),
            "peak_memory_bytes": max(r["peak_memory_bytes"] for r in measured),
        })  # fmt: skip
    table[0]["ratio_to_memory"] = table[0]["samples_per_second"] / table[1]["samples_per_second"]
    return table
