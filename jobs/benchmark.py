"""`rayrec benchmark`: measures training or inference on this machine."""

import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PositiveInt

from jobs.command import Command, Positional, Result, TrainingRecipeRequest, main, text_table
from rayrec.common.errors import UserError
from rayrec.common.machine import Machine, describe_machine
from rayrec.common.progress import Progress
from rayrec.store.paths import Folder

if TYPE_CHECKING:
    from rayrec.ingest.dataset import Dataset


class BenchmarkRequest(TrainingRecipeRequest):
    what: Annotated[Literal["train", "inference"], Positional()]
    """Work to measure."""
    data: Folder
    """Dataset folder."""
    warmup_steps: PositiveInt = 20
    """Steps or forward passes before the measurement."""
    steps: PositiveInt = 100
    """Steps or forward passes to measure."""
    batch_size: tuple[PositiveInt, ...] = (1, 16, 256, 1024, 4096, 16384)
    """Batch size of `inference`; repeatable."""


def run(request: BenchmarkRequest, progress: Progress) -> Result:
    """Measure; `details` has the rows of the table, and the machine."""
    from rayrec.ingest.dataset import Dataset

    machine, recipe = Machine(), request.load_recipe()
    if request.what == "inference" and recipe.model.scores_next_items:
        raise UserError(f"{request.recipe}: scores the next items of people, and no rows, which are measured here")
    dataset = Dataset.open(request.data)
    dataset.require_source(recipe)
    table = _inference(request, dataset) if request.what == "inference" else _training(request, dataset, progress)
    return Result(command="benchmark", details={"what": request.what, "machine": machine.described(), "table": table})


def _training(request: BenchmarkRequest, dataset: "Dataset", progress: Progress) -> list[dict[str, Any]]:
    """Return the samples/s after `warmup_steps`, as `rayrec train` runs them, streamed and from memory; medians over
    windows.
    """
    from jobs.command.placement import training_session
    from rayrec.training.driver import train
    from rayrec.training.run.folder import HISTORY_FILE
    from rayrec.training.run.history import read_history

    content = request.read_recipe()
    recipe = content.resolve()
    batch, steps = recipe.train.global_batch_size, request.warmup_steps + request.steps
    per_epoch = recipe.train.samples_per_epoch(dataset.split("train").rows) // batch
    if per_epoch == 0:
        raise UserError(
            f"{dataset.folder}: train has fewer samples than train.global_batch_size ({batch}); lower it, or give more "
            "rows"
        )
    changes = {
        "max_steps": steps,
        "epochs": -(-steps // per_epoch),
        "log_every_steps": request.warmup_steps,
        "evaluations_per_epoch": 0,
        "evaluate_every_steps": None,
        "early_stop": None,
        "initial_weights": None,
        "checkpoint.every_steps": None,
        "checkpoint.every_minutes": None,
    }
    table = []
    session = training_session("ray", recipe.train)
    with session as execution, tempfile.TemporaryDirectory(prefix="rayrec-benchmark-") as folder:
        for data in ("stream", "memory"):
            # The same steps with rows from disk and from memory: the difference is what reading costs.
            values = {**changes, "ingest.in_memory": data == "memory"}
            changed = content.with_values({f"train.{key}": value for key, value in values.items()}).resolve()
            train(changed, dataset, Path(folder) / data, execution, progress=progress)
            records = [r for r in read_history(Path(folder) / data / HISTORY_FILE) if r["event"] == "train"]
            measured = [r for r in records if r["step"] > request.warmup_steps]
            table.append({
                "data": data,
                "workers": recipe.train.workers,
                "global_batch_size": batch,
                "steps": request.steps,
                "samples_per_second": statistics.median(r["samples_per_second"] for r in measured),
                "data_wait_share": statistics.fmean(r["data_wait_share"] for r in measured),
                "peak_memory_bytes": max(r["peak_memory_bytes"] for r in measured),
            })  # fmt: skip
    table[0]["ratio_to_memory"] = table[0]["samples_per_second"] / table[1]["samples_per_second"]
    return table


def _inference(request: BenchmarkRequest, dataset: "Dataset") -> list[dict[str, Any]]:
    """Return the latency in milliseconds of one forward pass on random rows, host to host, in this process; and its
    rows/s.
    """
    import numpy as np
    import torch

    from rayrec.common.machine import keep_freed_memory
    from rayrec.models.common.precision import resolve_precision
    from rayrec.models.registry import build_model
    from rayrec.training.run.preflight import resolve_device

    recipe = request.load_recipe()
    device = torch.device(resolve_device(recipe.train.device, gpus=torch.cuda.device_count()))
    precision = resolve_precision(recipe.train.precision, "cuda" if device.type == "cuda" else "cpu")
    precision.apply_to_process()
    keep_freed_memory()  # as the processes that predict do
    logging.getLogger("torch.fx").setLevel(logging.ERROR)  # TorchRec's batches make it warn of a change within torch
    model = build_model(recipe.model, dataset.schema, device=device).eval()
    generator = torch.Generator().manual_seed(0)
    table = []
    for size in request.batch_size:
        batches = [_random_batch(model.schema, size, generator) for _ in range(4)]
        latencies = []
        with torch.inference_mode(), precision.autocast():
            for step in range(request.warmup_steps + request.steps):
                batch = batches[step % len(batches)]
                started = time.perf_counter()
                model(batch.to(device)).cpu()
                if step >= request.warmup_steps:
                    latencies.append(1000 * (time.perf_counter() - started))
        table.append({
            "batch_size": size,
            "device": str(device),
            "precision": precision.name,
            "samples_per_second": size * len(latencies) / (sum(latencies) / 1000),
            "mean_ms": float(np.mean(latencies)),
            **{f"p{q}_ms": float(np.percentile(latencies, q)) for q in (50, 90, 95, 99)},
        })  # fmt: skip
    return table


def _random_batch(schema: Any, rows: int, generator: Any) -> Any:
    """Return a batch of uniform ids, for which caches help least."""
    import torch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from rayrec.features.schema import MultiHotFeature
    from rayrec.models.common.batch import Batch

    hotness = [feature.hotness if isinstance(feature, MultiHotFeature) else 1 for feature in schema.categorical]
    ids = [
        torch.randint(feature.cardinality, (rows * hot,), generator=generator, dtype=torch.int32)
        for feature, hot in zip(schema.categorical, hotness, strict=True)
    ]
    lengths = torch.tensor(hotness, dtype=torch.int32).repeat_interleave(rows)
    weights = torch.ones(rows * sum(hotness)) if schema.weighted else None
    keys = [feature.name for feature in schema.categorical]
    return Batch(
        dense=torch.randn(rows, schema.dense_width, generator=generator),
        sparse=KeyedJaggedTensor(keys=keys, values=torch.cat(ids), weights=weights, lengths=lengths),
        label=torch.zeros(rows),
        weight=torch.ones(rows),
    )


def describe(result: Result) -> str:
    """Return the table as text, and below it the machine."""
    return f"{text_table(result.details['table'])}\n{describe_machine(result.details['machine'])}"


COMMAND = Command("benchmark", BenchmarkRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
