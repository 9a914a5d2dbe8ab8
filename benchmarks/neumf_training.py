"""Training throughput of NeuMF beside the same model written by hand in plain PyTorch, in one run.

    python -m benchmarks.neumf_training --data DATASET      a dataset folder of interactions, such as MovieLens-1M's

Three models: `paper`, NeuMF as the NCF paper's code has it by default on this data (8 factors, layers 64, 32, 16, 8)
with four negatives of each positive; `published`, NVIDIA's for MovieLens-20M, forty times the arithmetic; and `recipe`,
`neumf-ml-1m` as it is, whose L2 penalty and weight decay the loops by hand have, too.

Three ways take turns, `--repeats` times, in one process, so that rayrec's settings of it serve all, on the same
interactions, model, batch size, optimizer and threads:

- `rayrec`: an epoch of `rayrec train`'s loop on one worker: negatives drawn on the device and checked against the
  positives, evaluation left out.
- `tensors`: by hand, everything in tensors: the epoch's negatives by one `torch.randint`, one `torch.randperm`, slices.
  Its negatives are not checked.
- `dataloader`: by hand, as most public code does it: a `Dataset` that draws a negative in `__getitem__` until it is
  none of the user's items, a `DataLoader` that collates. It is slow, so only its first batches are timed.

Results go to benchmarks/results/neumf_training.json.
"""

import argparse
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
from jobs.command.result import text_table
from rayrec.common.machine import Machine
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import Positives
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.store.files import write_json
from rayrec.training.loop.worker import train_worker
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.folder import RunFolder
from rayrec.training.run.history import read_history

RESULTS = Path(__file__).parent / "results"
_LOADED_SAMPLES = 100_000
RECIPE = "neumf-ml-1m"
# An epoch without anything but training.
BARE: dict[str, Any] = {
    "train.epochs": 1,
    "train.log_every_steps": 1_000_000_000,
    "train.evaluations_per_epoch": 0,
    "train.checkpoint.keep_best": None,
    "train.tracking.tensorboard": False,
    "evaluate.ranking": None,
}
PLAIN: dict[str, Any] = {
    "train.global_batch_size": 8192,
    "train.negatives.per_positive": 4,
    "train.embedding_l2": 0.0,
    "train.embedding_optimizer.lr": 0.001,
    "train.dense_optimizer.lr": 0.001,
    "train.dense_optimizer.weight_decay": 0.0,
}
MODELS: dict[str, dict[str, Any]] = {
    "paper": {**PLAIN, "model": NeuMFConfig(factors=8, mlp=(64, 32, 16, 8), dropout=0.0).model_dump(mode="json")},
    "published": {**PLAIN, "model": NeuMFConfig().model_dump(mode="json")},
    "recipe": {},
}


class PlainNeuMF(nn.Module):
    """NeuMF as one writes it by hand: four embedding tables."""

    def __init__(self, config: NeuMFConfig, users: int, items: int) -> None:
        super().__init__()
        self._adds_up_gmf = config.gmf_output == "dot"
        self.gmf_user, self.gmf_item = nn.Embedding(users, config.factors), nn.Embedding(items, config.factors)
        half = config.mlp[0] // 2
        self.mlp_user, self.mlp_item = nn.Embedding(users, half), nn.Embedding(items, half)
        self.tables = [self.gmf_user, self.gmf_item, self.mlp_user, self.mlp_item]
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.01)
        layers: list[nn.Module] = []
        for width, next_width in zip(config.mlp, config.mlp[1:], strict=False):
            layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(config.dropout)]
        self.mlp = nn.Sequential(*layers)
        self.output = nn.Linear((0 if self._adds_up_gmf else config.factors) + config.mlp[-1], 1)

    def forward(self, user: Tensor, item: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the ids (B,) -> logits (B,), and the looked-up embeddings (B, width of a table)."""
        embeddings = [table(ids) for table, ids in zip(self.tables, (user, item, user, item), strict=True)]
        product = embeddings[0] * embeddings[1]
        hidden = self.mlp(torch.cat(embeddings[2:], dim=1))
        if self._adds_up_gmf:
            return (self.output(hidden) + product.sum(1, keepdim=True)).squeeze(1), embeddings
        return self.output(torch.cat([product, hidden], dim=1)).squeeze(1), embeddings


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
    """Return the samples per second of each way: every repeat, and the ratios of their medians."""
    dataset = Dataset.open(data)
    positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=True)
    loaded = -(-_LOADED_SAMPLES // recipe.train.global_batch_size)
    ways = {
        "rayrec": lambda: _rayrec(dataset, recipe),
        "tensors": lambda: _by_hand(dataset, recipe, _tensor_batches(positives, dataset, recipe)),
        "dataloader": lambda: _by_hand(dataset, recipe, _loaded_batches(positives, dataset, recipe), loaded),
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
        "negatives": recipe.train.negatives.per_positive if recipe.train.negatives else 0,
        "embedding_l2": recipe.train.embedding_l2,
        "model": recipe.model.model_dump(mode="json"),
        "threads": torch.get_num_threads(),
    }


def _rayrec(dataset: Dataset, recipe: Recipe) -> float:
    folder = Path(tempfile.mkdtemp())
    try:
        schema = build_model(recipe.model, dataset.schema, "meta").schema
        run = RunFolder.create(folder / "run", recipe, dataset, schema)
        context = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
        context.prepare_process()
        train_worker(recipe, dataset, run, context)
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
    options, penalty = recipe.train.dense_optimizer, recipe.train.embedding_l2
    tables = [table.weight for table in model.tables]
    others = [*model.mlp.parameters(), *model.output.parameters()]
    optimizer = torch.optim.AdamW(
        [{"params": tables, "weight_decay": 0.0}, {"params": others, "weight_decay": options.weight_decay}],
        lr=options.lr,
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )
    loss_of = nn.BCEWithLogitsLoss()
    samples, started = 0, time.perf_counter()
    for step, (user, item, label) in enumerate(batches, start=1):
        optimizer.zero_grad()
        logits, embeddings = model(user, item)
        loss = loss_of(logits, label)
        if penalty:
            loss = loss + penalty / 2 * sum(values.square().sum() for values in embeddings) / len(user)
        loss.backward()
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
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    machine = Machine()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    results = {}
    for name in arguments.models:
        print(f"{name}:", flush=True)
        recipe = rayrec.load_recipe(RECIPE, {**BARE, **MODELS[name]})
        results[name] = measure(arguments.data, recipe, arguments.repeats)
    write_json(RESULTS / "neumf_training.json", {"machine": machine.described(), **results})
    rows = [
        {"model": name, **{way: f"{value:,.0f}" for way, value in result["median"].items()}}
        | {key: f"{value:.2f}" for key, value in result.items() if key.startswith("rayrec_to")}
        for name, result in results.items()
    ]
    print(text_table(rows))


if __name__ == "__main__":
    main()
