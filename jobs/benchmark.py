"""`rayrec benchmark`: measures one part on this machine."""

import itertools
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PositiveInt

from jobs.command import Command, Positional, Result, TrainingRecipeRequest, main, text_table
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe
from rayrec.storage.location import Folder

if TYPE_CHECKING:
    from rayrec.ingest.dataset import Dataset


class BenchmarkRequest(TrainingRecipeRequest):
    """Measure one part on this machine."""

    what: Annotated[Literal["train", "inference", "ingest", "preprocess"], Positional()]
    """The part to measure."""
    data: Folder | None = None
    """Dataset folder, by default made from generated rows."""
    rows: PositiveInt = 200_000
    """Rows to generate if no dataset is given."""
    warmup_steps: PositiveInt = 20
    """Steps, or forward passes, that are not counted."""
    steps: PositiveInt = 100
    """Steps, or forward passes, that are counted."""
    batch_size: tuple[PositiveInt, ...] = (1, 16, 256, 1024, 4096, 16384)
    """Batch size of `inference`; repeatable."""


def run(request: BenchmarkRequest, progress: Progress) -> Result:
    """Measure in one Ray session; `details` has the rows of the table."""
    from cluster.ray_session import ray_session
    from rayrec.ingest.dataset import Dataset

    measure = {"train": _measure_training, "inference": _measure_inference, "ingest": _measure_ingest}
    recipe = request.load_recipe()
    with ExitStack() as stack:
        stack.enter_context(ray_session())
        folder, seconds = request.data, 0.0
        if folder is None or request.what == "preprocess":
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="rayrec-benchmark-"))
            folder, seconds = _make_dataset(request, recipe, Path(made), progress)
        if request.what == "preprocess":
            table = [{"rows": request.rows, "seconds": seconds, "rows_per_second": request.rows / seconds}]
        else:
            table = measure[request.what](request, recipe, Dataset.open(folder), progress)
    return Result(command="benchmark", details={"what": request.what, "table": table})


def _make_dataset(request: BenchmarkRequest, recipe: Recipe, folder: Path, progress: Progress) -> tuple[Path, float]:
    """Make a dataset from generated rows in `folder`; returns it, and the seconds that preprocessing took."""
    from jobs.generate import GenerateRequest
    from jobs.generate import run as generate
    from jobs.preprocess import PreprocessRequest
    from jobs.preprocess import run as preprocess
    from rayrec.sources.registry import source_of

    kind, raw, dataset = recipe.source.kind, folder / "raw", folder / "dataset"
    generate(GenerateRequest(source=kind, rows=request.rows, output=raw), progress)
    data = source_of(kind).generated
    assert data is not None, "the source has just generated data"
    split = f"preprocess.split={{kind: {data.split}}}"
    overrides = (*request.set, split) if request.data is None else request.set
    started = time.perf_counter()
    preprocess(
        PreprocessRequest(recipe=request.recipe, set=overrides, input=(str(raw / data.path),), output=dataset), progress
    )
    return dataset, time.perf_counter() - started


def _measure_training(
    request: BenchmarkRequest, recipe: Recipe, dataset: "Dataset", progress: Progress
) -> list[dict[str, Any]]:
    """Samples/s over `steps` after `warmup_steps`, as `rayrec train` runs them, streamed and from memory."""
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
    steps = request.warmup_steps + request.steps
    table = []
    for in_memory in (False, True):
        content = recipe.train.model_dump()
        content |= {
            "max_steps": steps,
            "epochs": -(-steps // per_epoch),
            "log_every_steps": request.warmup_steps,
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
        measured = [r for r in records if r["step"] > request.warmup_steps]
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


def _measure_inference(
    request: BenchmarkRequest, recipe: Recipe, dataset: "Dataset", progress: Progress
) -> list[dict[str, Any]]:
    """Latency in milliseconds of one forward pass on random rows, host to host, in this process; and its rows/s."""
    import numpy as np
    import torch

    from rayrec.common.allocator import keep_freed_memory
    from rayrec.models.registry import build_model
    from rayrec.training.loop.precision import resolve_precision
    from rayrec.training.run.preflight import resolve_device

    device = torch.device(resolve_device(recipe.train.device, gpus=torch.cuda.device_count()))
    precision = resolve_precision(recipe.train.precision, "cuda" if device.type == "cuda" else "cpu")
    precision.apply_to_process()
    keep_freed_memory()  # as the processes that predict do
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
        row: dict[str, Any] = {"batch_size": size, "device": str(device), "precision": precision.name}
        row["samples_per_second"] = size * len(latencies) / (sum(latencies) / 1000)
        row["mean_ms"] = float(np.mean(latencies))
        row |= {f"p{q}_ms": float(np.percentile(latencies, q)) for q in (50, 90, 95, 99)}
        table.append(row)
    return table


def _random_batch(schema: Any, rows: int, generator: Any) -> Any:
    """A batch of uniform ids, for which caches help least."""
    import torch
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    from rayrec.features.schema import MultiHotFeature
    from rayrec.models.common.batch import Batch

    ids, lengths = [], []
    for feature in schema.categorical:
        hotness = feature.hotness if isinstance(feature, MultiHotFeature) else 1
        ids.append(torch.randint(feature.cardinality, (rows * hotness,), generator=generator, dtype=torch.int32))
        lengths.append(torch.full((rows,), hotness, dtype=torch.int32))
    return Batch(
        dense=torch.randn(rows, len(schema.numeric), generator=generator),
        sparse=KeyedJaggedTensor(
            keys=[f.name for f in schema.categorical], values=torch.cat(ids), lengths=torch.cat(lengths)
        ),
        label=torch.zeros(rows),
        weight=torch.ones(rows),
    )


def _measure_ingest(
    request: BenchmarkRequest, recipe: Recipe, dataset: "Dataset", progress: Progress
) -> list[dict[str, Any]]:
    """Rows/s of one worker's batches over an epoch, after a warm-up epoch, streamed and from memory."""
    from rayrec.ingest.loader import open_batches
    from rayrec.ingest.reads import InMemorySplit

    table = []
    store = InMemorySplit.read(dataset, "train")
    for name, kept in (("stream", None), ("memory", store)):
        for epoch in (0, 1):
            started = time.perf_counter()
            first = None
            with open_batches(
                dataset,
                "train",
                recipe.train.ingest.model_copy(update={"in_memory": False}),
                global_batch_size=recipe.train.global_batch_size,
                seed=recipe.train.seed,
                epoch=epoch,
                drop_last=True,
                store=kept,
            ) as batches:
                for _ in batches:
                    first = first or time.perf_counter() - started
                rows = batches.num_batches * recipe.train.global_batch_size
            seconds = time.perf_counter() - started
        table.append({"data": name, "rows": rows, "rows_per_second": rows / seconds, "first_batch_seconds": first})
    return table


def describe(result: Result) -> str:
    """The table as text."""
    return text_table(result.details["table"])


COMMAND = Command("benchmark", BenchmarkRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
