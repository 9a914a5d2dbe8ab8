"""Training without Ray, by processes that this module starts, for tests of what the loop computes; and on Ray."""

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from jobs.command.placement import ray_training
from jobs.train import initial_weights
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.driver import Metrics, train
from rayrec.training.loop.records import load_state
from rayrec.training.loop.splits import SplitReader, evaluate_split
from rayrec.training.loop.worker import train_worker
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.folder import RunFolder, checkpoint_name
from rayrec.training.warm_start import WarmStart
from tests.ranks import run_ranks

BASE: dict[str, Any] = {
    "name": "test",
    "model": {"kind": "dlrm", "embedding_dim": 8, "bottom_mlp": [16, 8], "top_mlp": [16]},
    "train": {
        "global_batch_size": 64,
        "seed": 5,
        "device": "cpu",
        "precision": "fp32",
        "embedding_optimizer": {"kind": "sgd", "lr": 0.5},
        "dense_optimizer": {"kind": "sgd", "lr": 0.1},
        "ingest": {"in_memory": True, "read_streams": 4},
        "checkpoint": {"every_minutes": None},
        "evaluations_per_epoch": 0,
        "log_every_steps": 1,
        "tracking": {"tensorboard": False},
        "sharding": {"memory_per_worker": "1GB"},
    },
}


@dataclass(frozen=True)
class Case:
    """One run, or one more attempt at it where the folder holds a run."""

    folder: Path
    recipe: Recipe
    warm_start: Path | None = None
    """The run folder that the run goes on from, with a recipe as `TrainConfig.warm_started` makes it."""
    reset: tuple[str, ...] = ()


def recipe(
    *, model: dict[str, Any] | None = None, evaluate: dict[str, Any] | None = None, source: str = "criteo", **train: Any
) -> Recipe:
    """Return the base recipe with keys of its `train` section and, on request, its other sections replaced.

    `source`: the kind of its source.
    """
    content = {**BASE, "source": {"kind": source}, "train": {**BASE["train"], **train}}
    if model is not None:
        content["model"] = model
    if evaluate is not None:
        content["evaluate"] = evaluate
    return Recipe.model_validate(content)


def run_cases(
    workers: int, dataset: Path, cases: Sequence[Case], *, workers_per_node: int | None = None, device: str = "cpu"
) -> None:
    """Run the cases one after the other on `workers` processes, on one node or as if on nodes of some of them.

    `device`: cpu, or cuda for a GPU a process.
    """
    # Not as they are: their classes would be pickled by reference to this module under pytest's name.
    described = [(str(c.folder), c.recipe.model_dump(mode="json"), c.warm_start, c.reset) for c in cases]
    arguments = pickle.dumps((str(dataset), described))
    rendezvous = cases[0].folder.parent / f".rendezvous-{workers}-{cases[0].folder.name}"
    rendezvous.unlink(missing_ok=True)
    run_ranks(_worker, workers, workers_per_node or workers, device, str(rendezvous), arguments, ranks=workers)


def train_on_ray(recipe: Recipe, dataset: Dataset, output: Path, *, resume: bool = False) -> Metrics:
    """Train by workers of Ray Train, in the Ray session of this process."""
    return train(recipe, dataset, output, ray_training(recipe.train), resume=resume)


def losses(folder: Path) -> dict[int, float]:
    """Loss by step of a run."""
    records = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return {r["step"]: r["loss"] for r in records if r["event"] == "train"}


def weights_of(folder: Path, step: int) -> dict[str, Tensor]:
    """Return the undistributed weights of a run's checkpoint."""
    run = RunFolder.open(folder)
    model = build_model(run.recipe.model, run.schema).state_dict()
    dcp.load({"model": model}, checkpoint_id=run.checkpoints / checkpoint_name(step))
    return model


def require_same_training(run: Path, reference: Path, step: int) -> None:
    """The losses of all steps and the weights at the last one, but for the order in which workers add numbers up."""
    found, wanted = losses(run), losses(reference)
    assert found.keys() == wanted.keys()
    np.testing.assert_allclose([*found.values()], [*wanted.values()], rtol=1e-5, atol=1e-6, err_msg=run.name)
    expected = weights_of(reference, step)
    for name, value in weights_of(run, step).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=2e-5, err_msg=f"{run.name}: {name}")


def require_same_bits(run: Path, reference: Path, step: int) -> None:
    """The losses of all steps and the weights at the last one, to the bit."""
    assert losses(run) == losses(reference), run.name
    expected = weights_of(reference, step)
    for name, value in weights_of(run, step).items():
        assert value.equal(expected[name]), (run.name, name)


def join_ranks(rank: int, workers: int, workers_per_node: int, device: str, rendezvous: str) -> RankContext:
    """Make this process one of the ranks; `rendezvous` is a file that is not there yet."""
    torch.set_num_threads(1)
    own = torch.device("cpu")
    if device == "cuda":
        own = torch.device("cuda", rank)
        torch.cuda.set_device(own)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{rendezvous}", rank=rank, world_size=workers)
    return RankContext(rank=rank, world_size=workers, local_world_size=workers_per_node, device=own)


def _worker(rank: int, workers: int, workers_per_node: int, device: str, rendezvous: str, arguments: bytes) -> None:
    context = join_ranks(rank, workers, workers_per_node, device, rendezvous)
    data, cases = pickle.loads(arguments)
    dataset = Dataset.open(data)
    for folder, content, warm_start, reset in cases:
        case = Recipe.model_validate(content)
        begun = (Path(folder) / "run.json").exists()
        origin, weights = None, initial_weights(case, dataset)
        if warm_start is not None:
            origin = RunFolder.open(warm_start).as_origin(reset)
            weights = WarmStart.open(origin, Path(folder), case, dataset).fill
        dist.barrier()
        if rank == 0:
            if begun:
                RunFolder.resume(folder, case, dataset, origin)
            else:
                schema = build_model(case.model, dataset.schema, "meta").schema
                RunFolder.create(folder, case, dataset, schema, origin)
        dist.barrier()
        train_worker(case, dataset, RunFolder.open(folder), context, weights)
    dist.destroy_process_group()


def logits_under(plans: Sequence[Recipe], workers: int, dataset: Path, checkpoint: Path, output: Path) -> list[Tensor]:
    """Logits of the test split, in order, with the weights of `checkpoint` under each recipe's sharding plan."""
    contents = [plan.model_dump(mode="json") for plan in plans]
    run_ranks(_logits_worker, workers, str(dataset), contents, str(checkpoint), str(output), ranks=workers)
    return [torch.load(output / f"{index}.pt", weights_only=True) for index in range(len(plans))]


def _logits_worker(
    rank: int, workers: int, data: str, contents: list[dict[str, Any]], checkpoint: str, output: str
) -> None:
    for index, _, model, reader in _models_under(rank, workers, data, contents, checkpoint, output):
        # One global batch: the ranks' rows follow each other.
        rows = reader.dataset.split("test").rows
        with reader.open("test", global_batch_size=rows, drop_last=False, shuffle="none") as batches:
            (logits,) = [model.logits(batch)[batch.weight > 0] for batch in batches]
        parts: list[Tensor | None] = [None] * workers
        dist.all_gather_object(parts, logits)
        if rank == 0:
            torch.save(torch.cat([part for part in parts if part is not None]), Path(output) / f"{index}.pt")


def metrics_under(
    plans: Sequence[Recipe], workers: int, dataset: Path, checkpoint: Path, output: Path
) -> list[dict[str, float]]:
    """Metrics of the test split with the weights of `checkpoint` under each recipe's sharding plan."""
    contents = [plan.model_dump(mode="json") for plan in plans]
    run_ranks(_metrics_worker, workers, str(dataset), contents, str(checkpoint), str(output), ranks=workers)
    return [json.loads((output / f"{index}.json").read_text()) for index in range(len(plans))]


def _metrics_worker(
    rank: int, workers: int, data: str, contents: list[dict[str, Any]], checkpoint: str, output: str
) -> None:
    for index, config, model, reader in _models_under(rank, workers, data, contents, checkpoint, output):
        metrics = evaluate_split(model, reader, "test", config.evaluate)
        if rank == 0:
            (Path(output) / f"{index}.json").write_text(json.dumps(metrics))


def _models_under(
    rank: int, workers: int, data: str, contents: list[dict[str, Any]], checkpoint: str, output: str
) -> Iterator[tuple[int, Recipe, ParallelModel, SplitReader]]:
    """Of each recipe: its number, itself, the model of `checkpoint` under its plan, and what reads its splits."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{output}/rendezvous", rank=rank, world_size=workers)
    dataset = Dataset.open(data)
    context = RankContext(rank=rank, world_size=workers, local_world_size=workers, device=torch.device("cpu"))
    for index, content in enumerate(contents):
        config = Recipe.model_validate(content)
        model = ParallelModel(config, dataset.schema, context)
        load_state({"model": model.state_dict()}, Path(checkpoint))
        yield index, config, model, SplitReader(dataset, config.train.ingest, context)
    dist.destroy_process_group()
