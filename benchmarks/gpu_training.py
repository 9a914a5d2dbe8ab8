"""Training as rayrec trains, by `train_worker` in a process a device: what it computes, and how fast it is.

With NCCL on GPUs, and the same program with gloo on CPUs (tests/integration/test_gpu_check.py).
"""

import importlib.util
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist

import rayrec
from benchmarks.operator_calls import profiled, published_schema
from rayrec.features.schema import CategoricalFeature, InteractionColumns, Schema
from rayrec.ingest.dataset import Dataset
from rayrec.internals.torchrec import set_output_dtype
from rayrec.models.common.precision import PrecisionName, resolve_precision
from rayrec.recipes import Recipe
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.splits import SplitReader
from rayrec.training.loop.step import TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from tests.builders import CRITEO, make_dataset, make_rows, write_dataset
from tests.ranks import run_ranks
from tests.training_runs import Case, join_ranks, losses, recipe, run_cases

Row = dict[str, Any]
STEPS = 24
RESUMED_AT = 12
PAIRS = Schema(
    label="label",
    group="list",
    features=(CategoricalFeature(name="user", cardinality=80), CategoricalFeature(name="item", cardinality=60)),
    interactions=InteractionColumns(user="user", item="item"),
)
ADAM = {"kind": "adam", "lr": 0.01}
COPIES = {"default": "data_parallel", "memory_per_worker": "1GB"}
DCNV2 = {"kind": "dcnv2", "embedding_dim": 8, "bottom_mlp": [8], "cross_layers": 2, "cross_rank": 4, "top_mlp": [8]}
WIDE_DEEP = {"kind": "wide_deep", "embedding_dim": 8, "mlp": [16, 8]}
FTRL = {"kind": "ftrl", "lr": 0.1, "initial_accumulator": 0.1}
NEUMF = {"kind": "neumf", "factors": 4, "mlp": [8, 4], "dropout": 0.0}
RANKING = {"global_batch_size": 256, "ranking": {"k": [1, 5], "metrics": ["hr", "ndcg"]}}
TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "fp16": 1e-2, "bf16": 4e-2}
"""Of losses, relative to those of float32 on a CPU."""


@dataclass(frozen=True)
class Kind:
    """A way to train; `changes` are those of the recipe's section `train`, or of `model`, `evaluate` and `source`."""

    name: str
    changes: Mapping[str, Any]
    data: str = "rows"
    devices: tuple[str, ...] = ("cpu", "cuda")
    """Where it can be run."""
    reference: Mapping[str, Any] | None = field(default_factory=dict)
    """What is changed further for the same losses in float32 on one CPU; None where it has no way to them."""

    @property
    def precision(self) -> str:
        return str(self.changes.get("precision", "fp32"))


def kinds() -> list[Kind]:
    """Return every optimizer, number format and model, and what else is trained in another way on a GPU."""
    on_gpu, anywhere = ("cuda",), ("cpu", "cuda")
    dense = {"kind": "adam", "lr": 0.01}
    fused = {
        "sgd": {"kind": "sgd", "lr": 0.5},
        "adagrad": {"kind": "adagrad", "lr": 0.05},
        "rowwise_adagrad": {"kind": "rowwise_adagrad", "lr": 0.05},
        "rmsprop": {"kind": "rmsprop", "lr": 0.01},
        "ftrl": FTRL,
    }
    optimizers = [
        Kind(f"tables by {name}", {"embedding_optimizer": settings, "dense_optimizer": dense})
        for name, settings in fused.items()
    ]
    optimizers.append(Kind("tables by adam", {"embedding_optimizer": ADAM}, devices=on_gpu, reference=None))
    optimizers.append(Kind("copies by dense adam", {"embedding_optimizer": ADAM, "sharding": COPIES}))
    networks = [
        Kind(f"network by {name}", {"dense_optimizer": {"kind": name, "lr": 0.01, **more}})
        for name, more in {
            "sgd": {"momentum": 0.9}, "adagrad": {}, "rmsprop": {}, "adamw": {"weight_decay": 0.01}, "ftrl": {},
        }.items()
    ]  # fmt: skip
    formats = [
        Kind(f"{model['kind']} in {precision}", {"model": model, "precision": precision}, devices=devices)
        for model in (rayrec.load_recipe("dlrm-criteo-debug").model.model_dump(mode="json"), DCNV2)
        for precision, devices in (("tf32", on_gpu), ("bf16", anywhere), ("fp16", anywhere))
    ]
    wide = {"wide": {"embedding_optimizer": FTRL, "dense_optimizer": FTRL}}
    drawn = {"model": NEUMF, "source": "interactions", "embedding_optimizer": ADAM, "sharding": COPIES}
    drawn |= {"dense_optimizer": ADAM, "evaluate": RANKING}
    others = [
        Kind("micro-batches", {"gradient_accumulation": 3, "precision": "bf16"}),
        Kind("penalty in fp16", {"embedding_l2": 0.1, "precision": "fp16"}),
        Kind("weights of rows", {"precision": "bf16"}, data="weighted"),
        Kind("two parts, lists", {"model": WIDE_DEEP, "parts": wide, "loss": {"listwise": 0.5}}, data="displays"),
        Kind("drawn negatives", {**drawn, "negatives": {"per_positive": 3}}, data="pairs"),
        Kind("drawn by popularity", {**drawn, "negatives": {"popularity_exponent": 0.5}}, data="pairs"),
        Kind("dropout", {**drawn, "model": {**NEUMF, "dropout": 0.2}, "negatives": {}}, data="pairs", reference=None),
        Kind("compiled", {"compile": True, "precision": "bf16"}, devices=on_gpu, reference={"compile": False}),
        Kind(
            "tables in host memory",
            {"sharding": {"memory_per_worker": "40KB"}},
            devices=on_gpu,
            reference={"sharding": {"memory_per_worker": "1GB"}},
        ),
    ]
    return [*optimizers, *networks, *formats, *others]


def check_training(folder: Path, device: str, workers: int) -> list[Row]:
    """Train in every way that the device has: losses beside those of one CPU, and of the run continued in its middle.

    Each run evaluates and saves checkpoints. `ok` is False where losses do not fall, or differ.
    """
    datasets = _datasets(folder)
    rows = []
    chosen = [kind for kind in kinds() if device in kind.devices]
    for data in dict.fromkeys(kind.data for kind in chosen):
        of_data = [kind for kind in chosen if kind.data == data]
        whole = {k.name: Case(folder / "whole" / k.name, _recipe(k, device)) for k in of_data}
        first = {k.name: Case(folder / "parts" / k.name, _recipe(k, device, max_steps=RESUMED_AT)) for k in of_data}
        rest = {name: Case(first[name].folder, case.recipe) for name, case in whole.items()}
        float32 = {"precision": "fp32"}
        reference = {
            k.name: Case(folder / "one-cpu" / k.name, _recipe(k, "cpu", **{**float32, **k.reference}))
            for k in of_data
            if k.reference is not None
        }
        for cases in (whole, first, reference):
            for case in cases.values():
                case.folder.parent.mkdir(parents=True, exist_ok=True)
        errors = train_each(workers, datasets[data], device, [whole, first, rest])
        errors |= train_each(1, datasets[data], "cpu", [reference])
        rows += [_compare(k, folder, errors.get(k.name)) for k in of_data]
    return rows


def _recipe(kind: Kind, device: str, **train: Any) -> Recipe:
    common = {
        "device": device,
        "compile": False,  # but in the kind that is there for it: it takes half a minute each time
        "max_steps": STEPS,
        "checkpoint": {"every_steps": RESUMED_AT, "every_minutes": None},
        "evaluations_per_epoch": 2,
    }
    return recipe(**{**common, **kind.changes, **train})


def train_each(workers: int, dataset: Path, device: str, passes: Sequence[Mapping[str, Case]]) -> dict[str, str]:
    """Train every case of the passes, in order; the errors by name. Cases run by themselves if one of them fails."""
    names = list(dict.fromkeys(name for cases in passes for name in cases))
    try:
        run_cases(workers, dataset, [case for cases in passes for case in cases.values()], device=device)
        return {}
    except Exception as error:
        if len(names) == 1:
            return {names[0]: str(error).strip().rsplit("\n", 1)[-1]}
    # Beginning anew: what one rank did before another one failed is unfinished.
    errors: dict[str, str] = {}
    for name in names:
        alone = [
            {name: Case(case.folder.with_name(f"{name}-alone"), case.recipe)}
            for cases in passes
            if (case := cases.get(name)) is not None
        ]
        errors |= train_each(workers, dataset, device, alone)
    return errors


def _compare(kind: Kind, folder: Path, error: str | None) -> Row:
    row: Row = {"kind": kind.name, "data": kind.data, "precision": kind.precision}
    if error is not None:
        return {**row, "ok": False, "error": error}
    found, resumed = losses_of(folder / "whole" / kind.name), losses_of(folder / "parts" / kind.name)
    begin, end = fmean(list(found.values())[:4]), fmean(list(found.values())[-4:])
    row |= {"first loss": round(begin, 4), "last loss": round(end, 4)}
    row["resumed differs by"] = f"{_difference(found, resumed):.0e}"
    ok = len(found) == STEPS and all(map(math.isfinite, found.values())) and end < begin
    ok &= _difference(found, resumed) <= 1e-3
    if kind.reference is not None:
        difference = _difference(found, losses_of(folder / "one-cpu" / kind.name))
        row["one CPU differs by"] = f"{difference:.0e}"
        ok &= difference <= TOLERANCE[kind.precision]
    return {**row, "ok": ok}


def losses_of(run: Path) -> dict[int, float]:
    """Return the losses by step of a run, or of the one that replaced it."""
    alone = run.with_name(f"{run.name}-alone")
    return losses(alone if alone.exists() else run)


def _difference(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    """Return the largest difference of two losses of the same step, relative to the second."""
    if one.keys() != other.keys():
        return math.inf
    return max(abs(one[step] - other[step]) / abs(other[step]) for step in one)


def _datasets(folder: Path) -> dict[str, Path]:
    rows = {"train": 2_000, "validation": 300, "test": 300}
    make_dataset(folder / "rows", rows, categorical=4, multi_hot=2, weighted=("M2",), seed=1)
    make_dataset(folder / "weighted", rows, categorical=4, weight=True, seed=2)
    make_dataset(folder / "displays", rows, categorical=4, group_sizes=(7, 2, 5, 12), seed=3)
    tables = {}
    for seed, (split, count) in enumerate({"train": 700, "validation": 240, "test": 240}.items()):
        rng = np.random.default_rng(seed)
        user = np.repeat(np.arange(count // 8) % 79 + 1, 8).astype(np.int32)[:count]
        item = ((user * 7 + 3 * rng.integers(0, 19, len(user))) % 59 + 1).astype(np.int32)
        label = np.ones(len(user)) if split == "train" else (np.arange(len(user)) % 8 == 0)
        lists = np.arange(len(user), dtype=np.int64) // 8
        tables[split] = pa.table({"user": user, "item": item, "label": label.astype(np.float32), "list": lists})
    write_dataset(folder / "pairs", PAIRS, tables)
    return {name: folder / name for name in ("rows", "weighted", "displays", "pairs")}


def train_with_ray(folder: Path, device: str, workers: int) -> list[Row]:
    """Run `rayrec train` on the device, on Ray Train; without Ray the row says why it was skipped."""
    row: Row = {"recipe": "dlrm-criteo-debug", "workers": workers}
    if importlib.util.find_spec("ray") is None:
        return [{**row, "skipped": "Ray is not installed"}]
    rows = {"train": 3_000, "validation": 500, "test": 500}
    tables = {split: make_rows(CRITEO, count, seed) for seed, (split, count) in enumerate(rows.items())}
    write_dataset(folder / "data", CRITEO, tables)
    settings = {"train.global_batch_size": 128, "train.max_steps": 20, "train.device": device, "train.workers": workers}
    sets = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "jobs.train", "dlrm-criteo-debug", "--data", str(folder / "data"), "--on", "ray"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--output", str(folder / "run"), *sets], capture_output=True, text=True, check=False
    )
    row["seconds"] = round(time.perf_counter() - began, 1)
    if done.returncode:
        return [{**row, "ok": False, "error": done.stderr.strip().rsplit("\n", 1)[-1]}]
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    return [{**row, "auc": round(metrics["test"]["auc"], 4), "ok": math.isfinite(metrics["test"]["log_loss"])}]


@dataclass(frozen=True)
class Speed:
    """A published recipe, and NVIDIA's samples/s on one A100 by number format (the models' READMEs)."""

    recipe: str
    published: Mapping[PrecisionName, float]
    batch: int


SPEEDS = (
    Speed("dlrm-criteo", {"tf32": 2.88e6, "bf16": 4.02e6}, 65_536),
    Speed("dcnv2-criteo", {"tf32": 0.689e6, "bf16": 1.37e6}, 65_536),
    Speed("wide-deep-outbrain-lean", {"tf32": 1.64e6, "bf16": 2.31e6}, 131_072),
    Speed("neumf-ml-20m", {"tf32": 22.6e6, "bf16": 34.1e6}, 2**20),
)
"""Of AMP, which is fp16 there, where rayrec's `auto` is bf16."""


@dataclass(frozen=True)
class Variant:
    """How the steps of a recipe are computed."""

    precision: PrecisionName
    compiled: bool
    pooled: PrecisionName
    """The format of pooled embeddings: fp32 or bf16."""


VARIANTS = (
    Variant("bf16", True, "bf16"),
    Variant("bf16", False, "fp32"),
    Variant("bf16", False, "bf16"),
    Variant("bf16", True, "fp32"),
    Variant("tf32", True, "fp32"),
)
"""The first is what `auto` is on a GPU; the second what there was before it."""
ON_CPU = (Variant("bf16", False, "fp32"), Variant("fp32", False, "fp32"))


def measure_steps(
    folder: Path, device: str, workers: int, speed: Speed, *, largest: int = 2**31, steps: int = 40
) -> list[Row]:
    """Return M samples/s of steps, and of scoring, on batches that lie on the device, beside NVIDIA's; and ten steps'
    profile.

    A row a variant; several workers have the first alone. `largest`: the most rows of a table.
    """
    write_rows(folder / "data", published_schema(speed.recipe, largest), 8 * speed.batch)
    case = rayrec.load_recipe(speed.recipe, _settings(speed, device, workers, steps))
    run_ranks(_measure_steps, workers, device, str(folder), case.model_dump(mode="json"), steps, ranks=workers)
    rows = []
    for found in json.loads((folder / "steps.json").read_text()):
        row: Row = {"recipe": speed.recipe, "workers": workers, **found, "ok": True}
        if (published := speed.published.get(found["precision"])) is not None:
            faster = found["steps alone, M/s"] * 1e6 / workers / published
            row |= {"one A100, M/s": published / 1e6, "times A100": round(faster, 3)}
        rows.append(row)
    return rows


def measure_runs(
    folder: Path,
    device: str,
    workers: int,
    speeds: Sequence[Speed],
    *,
    in_memory: bool,
    largest: int = 100_000,
    steps: int = 40,
) -> list[Row]:
    """Return M samples/s of whole runs from Parquet, by the loop of `rayrec train`: rows in memory, or streamed.

    Tables have 100,000 rows at most, as a run ends with a checkpoint. The figures are of the second half of the steps.
    """
    rows = []
    for speed in speeds:
        place = folder / speed.recipe
        row: Row = {"recipe": speed.recipe, "workers": workers, "rows": "in memory" if in_memory else "streamed"}
        write_rows(place / "data", published_schema(speed.recipe, min(largest, 100_000)), 8 * speed.batch)
        settings = {**_settings(speed, device, workers, steps), "train.ingest.in_memory": in_memory}
        case = rayrec.load_recipe(speed.recipe, settings)
        began = time.perf_counter()
        try:
            run_cases(workers, place / "data", [Case(place / "run", case)], device=device)
        except Exception as error:  # the other recipes are still worth their time
            rows.append({**row, "ok": False, "error": str(error).strip().rsplit("\n", 1)[-1]})
            continue
        records = [json.loads(line) for line in (place / "run" / "history.jsonl").read_text().splitlines()]
        measured = [r for r in records if r["event"] == "train" and r["step"] > steps]
        row["whole run, M/s"] = float(f"{fmean(r['samples_per_second'] for r in measured) / 1e6:.4g}")
        row["waiting for data"] = round(fmean(r["data_wait_share"] for r in measured), 2)
        rows.append({**row, "seconds": round(time.perf_counter() - began, 1), "ok": True})
    return rows


def _settings(speed: Speed, device: str, workers: int, steps: int) -> dict[str, Any]:
    return {
        "train.global_batch_size": speed.batch,
        "train.workers": workers,
        "train.device": device,
        "train.precision": "bf16",
        "train.ingest.in_memory": True,
        "train.max_steps": 2 * steps,
        "train.epochs": 2 * steps,
        "train.log_every_steps": max(1, steps // 4),
        "train.evaluations_per_epoch": 0,
        "train.checkpoint.every_minutes": None,
        "train.checkpoint.keep_best": None,
        "train.tracking.tensorboard": False,
        "evaluate.ranking": None,
        # A CPU has Adam for copies of tables alone.
        **({"train.sharding.default": "data_parallel"} if device == "cpu" and "dcnv2" in speed.recipe else {}),
    }


def write_rows(folder: Path, schema: Schema, samples: int) -> None:
    """Write a dataset of random rows that give `samples` samples, with a few rows of `test`."""
    # A positive comes with four drawn negatives.
    count = samples if schema.interactions is None else samples // 5
    tables = {split: make_rows(schema, n, seed=0) for split, n in (("train", count), ("test", 64))}
    if schema.interactions is not None:
        tables["train"] = tables["train"].sort_by(schema.interactions.user)  # as preprocessing writes them
    write_dataset(folder, schema, tables, rows_per_part=2**20, rows_per_row_group=2**15)


def _measure_steps(rank: int, workers: int, device: str, place: str, content: dict[str, Any], steps: int) -> None:
    context = join_ranks(rank, workers, workers, device, f"{place}/rendezvous")
    config, dataset = Recipe.model_validate(content), Dataset.open(Path(place) / "data")
    first = resolve_precision("bf16", "cuda" if device == "cuda" else "cpu")
    wire = first.on_the_wire("auto")
    model = ParallelModel(config, dataset.schema, context, wire, first.pooled(wire))
    reader = SplitReader(dataset, config.train.ingest, context, negatives=config.train.negatives)
    size = config.train.global_batch_size
    with reader.open("train", global_batch_size=size, drop_last=True, seed=1) as loader:
        batches = list(islice(loader, 6))
    totals = BatchTotals(size, None)
    networks = {True: model.dense, False: model.dense_network}
    found: list[Row] = []
    variants = VARIANTS if device == "cuda" else ON_CPU
    for number, variant in enumerate(variants if workers == 1 else variants[:1]):
        if number:
            model.dense = networks[variant.compiled]
            set_output_dtype(model.tables, torch.bfloat16 if variant.pooled == "bf16" else torch.float32)
        precision = resolve_precision(variant.precision, first.device)
        precision.apply_to_process()
        train = TrainStep(model, config.train, precision, steps_per_epoch=1_000)
        pairs = enumerate(model.with_next(cycle(batches)), 1)
        results = (train(batch, totals, step, following) for step, (batch, following) in pairs)
        began = time.perf_counter()
        next(results)
        row: Row = {**asdict(variant), "first step, s": round(time.perf_counter() - began, 1)}
        row["steps alone, M/s"] = float(f"{steps * size / _seconds(results, steps, context) / 1e6:.4g}")
        row |= profiled(partial(next, results), min(steps, 10), context.device)
        if number == 0:
            with precision.autocast():
                scoring = _seconds((model.logits(batch) for batch in cycle(batches)), steps, context)
            row["scoring, M/s"] = float(f"{steps * size / scoring / 1e6:.4g}")
        found.append(row)
        if rank == 0:
            (Path(place) / "steps.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _seconds(run: Iterator[Any], steps: int, context: RankContext) -> float:
    """Return what `steps` steps take on the slowest rank, after some that warm up."""
    for _ in islice(run, max(2, steps // 4)):
        pass
    _finish(context)
    began = time.perf_counter()
    for _ in islice(run, steps):
        pass
    _finish(context)
    return time.perf_counter() - began


def _finish(context: RankContext) -> None:
    """Wait until the device and all ranks are done."""
    if context.device.type == "cuda":
        torch.cuda.synchronize()
    dist.barrier()
