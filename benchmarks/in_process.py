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
from rayrec.training.placement.parallel_model import RankContext
from rayrec.training.run.folder import METRICS_FILE, RunFolder

_HERE = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))


def train(recipe: Recipe, dataset: Dataset, path: Path) -> RunFolder:
    """Train as one worker of Ray Train does; a run that is there is continued."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _HERE.prepare_process()
    if path.exists():
        run = RunFolder.open(path)
    else:
        run = RunFolder.create(path, recipe, dataset, build_model(recipe.model, dataset.schema, "meta").schema)
    train_worker(recipe, dataset, run, _HERE, initial_weights(recipe, dataset))
    return run


def metrics(run: RunFolder, split: str) -> dict[str, float]:
    """Of the weights that training ended with."""
    found: dict[str, Any] = json.loads((run.path / METRICS_FILE).read_text())
    return found[split]
