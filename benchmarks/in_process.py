"""Training without Ray, in this process, as the only worker."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from jobs.train import initial_weights
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.loop.worker import train_worker
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.folder import METRICS_FILE, RunFolder
from rayrec.training.run.preflight import resolve_device


def train(recipe: Recipe, dataset: Dataset, path: Path) -> RunFolder:
    """Train as one worker of Ray Train does, on the recipe's device; a run that is there is continued."""
    on_gpu = resolve_device(recipe.train.device, gpus=torch.cuda.device_count()) == "cuda"
    here = RankContext(0, world_size=1, local_world_size=1, device=torch.device("cuda:0" if on_gpu else "cpu"))
    here.prepare_process()
    if path.exists():
        run = RunFolder.open(path)
    else:
        run = RunFolder.create(path, recipe, dataset, build_model(recipe.model, dataset.schema, "meta").schema)
    dist.init_process_group("nccl" if on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        train_worker(recipe, dataset, run, here, initial_weights(recipe, dataset))
    finally:
        dist.destroy_process_group()
    return run


def metrics(run: RunFolder, split: str) -> dict[str, float]:
    """Return the metrics of the weights that training ended with."""
    found: dict[str, Any] = json.loads((run.path / METRICS_FILE).read_text())
    return found[split]
