"""Training throughput of NeuMF beside the same model written by hand in plain PyTorch, in one run.

    python -m benchmarks.neumf_training --data DATASET      a dataset folder of interactions, such as MovieLens-1M's

Three ways take turns, `--repeats` times, on the same interactions, model, batch size, optimizer and threads:

- `rayrec`: an epoch of `rayrec train`'s loop on one worker: negatives drawn on the device and checked against the
  positives, evaluation left out.
- `tensors`: by hand, everything in tensors: the epoch's negatives by one `torch.randint`, one `torch.randperm`, slices.
  Its negatives are not checked.
- `dataloader`: by hand, as most public code does it: a `Dataset` that draws a negative in `__getitem__` until it is
  none of the user's items, a `DataLoader` that collates. It is slow, so only its first batches are timed.

Results go to benchmarks/results/neumf_training.json.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

import rayrec
from jobs.text_table import text_table
from rayrec.common.files import write_json
from rayrec.config import NeuMFConfig, Recipe
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions.positives import Positives
from rayrec.training.history import read_history
from rayrec.training.loop import train_worker
from rayrec.training.place import Place
from rayrec.training.run_folder import RunFolder

RESULTS = Path(__file__).parent / "results"
_LOADED_BATCHES = 12


class PlainNeuMF(nn.Module):
    """NeuMF as one writes it by hand: four embedding tables."""

    def __init__(self, config: NeuMFConfig, users: int, items: int) -> None:
        super().__init__()
        self.gmf_user, self.gmf_item = nn.Embedding(users, config.factors), nn.Embedding(items, config.factors)
        half = config.mlp[0] // 2
        self.mlp_user, self.mlp_item = nn.Embedding(users, half), nn.Embedding(items, half)
        for table in (self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item):
            nn.init.normal_(table.weight, std=0.01)
        layers: list[nn.Module] = []
        for width, next_width in zip(config.mlp, config.mlp[1:], strict=False):
            layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(config.dropout)]
        self.mlp = nn.Sequential(*layers)
        self.output = nn.Linear(config.factors + config.mlp[-1], 1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Ids (B,) -> logits (B,)."""
        product = self.gmf_user(user) * self.gmf_item(item)
        hidden = self.mlp(torch.cat([self.mlp_user(user), self.mlp_item(item)], dim=1))
        logits: Tensor = self.output(torch.cat([product, hidden], dim=1))
        return logits.squeeze(1)


class PairsWithNegatives(TorchDataset[tuple[int, int, float]]):
    """Each positive, and after it `per_positive` items that its user does not have."""

    def __init__(self, users: list[int], items: list[int], num_items: int, per_positive: int) -> None:
        self._users, self._items, self._num_items, self._per_positive = users, items, num_items, per_positive
        self._known = set(zip(users, items, strict=True))

    def __len__(self) -> int:
        return len(self._users) * (1 + self._per_positive)

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        positive, place = divmod(index, 1 + self._per_positive)
        user = self._users[positive]
        if place == 0:
            return user, self._items[positive], 1.0
        item = np.random.randint(1, self._num_items)
        while (user, item) in self._known:
            item = np.random.randint(1, self._num_items)
        return user, item, 0.0


def measure(data: Path, recipe: Recipe, repeats: int) -> dict[str, Any]:
    """Samples per second of each way: every repeat, and the ratios of their medians."""
    dataset = Dataset.open(data)
    positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=True)
    ways = {
        "rayrec": lambda: _rayrec(dataset, recipe),
        "tensors": lambda: _by_hand(dataset, recipe, _tensor_batches(positives, dataset, recipe)),
        "dataloader": lambda: _by_hand(dataset, recipe, _loaded_batches(positives, dataset, recipe), _LOADED_BATCHES),
    }
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seen[name].append(way())
            print(f"{name}: {seen[name][-1]:,.0f} samples/s", flush=True)
    median = {name: statistics.median(values) for name, values in seen.items()}
    return {
        "samples_per_second": seen,
        "median": median,
        "rayrec_to_dataloader": median["rayrec"] / median["dataloader"],
        "rayrec_to_tensors": median["rayrec"] / median["tensors"],
        "positives": len(positives),
        "global_batch_size": recipe.train.global_batch_size,
        "model": recipe.model.model_dump(mode="json"),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def _rayrec(dataset: Dataset, recipe: Recipe) -> float:
    folder = Path(tempfile.mkdtemp())
    try:
        run = RunFolder.create(folder / "run", recipe, dataset)
        train_worker(recipe, dataset, run, Place(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu")))
        # Without evaluations the one record is of all steps; the first batch's drawing is in it.
        (record,) = (r for r in read_history(run.history) if r["event"] == "train")
        speed: float = record["samples_per_second"]
        return speed
    finally:
        shutil.rmtree(folder)


def _by_hand(
    dataset: Dataset, recipe: Recipe, batches: Iterator[tuple[Tensor, ...]], steps: int | None = None
) -> float:
    assert isinstance(recipe.model, NeuMFConfig)
    users, items = _cardinalities(dataset)
    model = PlainNeuMF(recipe.model, users, items)
    options = recipe.train.dense_optimizer
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=0.0, fused=True
    )
    loss_of = nn.BCEWithLogitsLoss()
    samples, started = 0, time.perf_counter()
    for step, (user, item, label) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss_of(model(user, item), label).backward()
        optimizer.step()
        samples += len(user)
        if step == steps:
            break
    return samples / (time.perf_counter() - started)


def _tensor_batches(positives: Positives, dataset: Dataset, recipe: Recipe) -> Iterator[tuple[Tensor, ...]]:
    assert recipe.train.negatives is not None
    drawn = recipe.train.negatives.per_positive
    _, items = _cardinalities(dataset)
    user = positives.users.long().repeat_interleave(1 + drawn)
    item = torch.randint(1, items, (len(positives), 1 + drawn))
    item[:, 0] = positives.items
    label = torch.zeros(len(positives), 1 + drawn)
    label[:, 0] = 1
    order = torch.randperm(len(user))
    for place in order.split(recipe.train.global_batch_size):
        if len(place) == recipe.train.global_batch_size:
            yield user[place], item.view(-1)[place], label.view(-1)[place]


def _loaded_batches(positives: Positives, dataset: Dataset, recipe: Recipe) -> Iterator[tuple[Tensor, ...]]:
    assert recipe.train.negatives is not None
    _, items = _cardinalities(dataset)
    pairs = PairsWithNegatives(
        positives.users.tolist(), positives.items.tolist(), items, recipe.train.negatives.per_positive
    )
    loader = DataLoader(pairs, recipe.train.global_batch_size, shuffle=True, drop_last=True, num_workers=2)
    for user, item, label in loader:
        yield user, item, label.float()


def _cardinalities(dataset: Dataset) -> tuple[int, int]:
    columns = dataset.schema.interactions
    assert columns is not None
    sizes = {feature.name: feature.cardinality for feature in dataset.schema.categorical}
    return sizes[columns.user], sizes[columns.item]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipe", default="neumf-ml-1m")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    recipe = rayrec.load_recipe(
        arguments.recipe,
        {
            "train.epochs": 1,
            "train.log_every_steps": 1_000_000_000,
            "train.evaluations_per_epoch": 0,
            "train.checkpoint.keep_best": None,
            "train.tracking.tensorboard": False,
            "evaluate.ranking": None,
        },
    )
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    result = measure(arguments.data, recipe, arguments.repeats)
    write_json(RESULTS / "neumf_training.json", result)
    print(text_table([{"way": name, "samples/s": f"{value:,.0f}"} for name, value in result["median"].items()]))
    print(json.dumps({name: round(value, 2) for name, value in result.items() if name.startswith("rayrec_to")}))


if __name__ == "__main__":
    main()
