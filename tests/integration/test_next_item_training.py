"""Training of next items: neither the number of workers nor a resumption changes the losses."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe
from tests.builders import users_and_items, write_dataset
from tests.training_runs import Case, losses, recipe, require_same_training, run_cases

USERS, ITEMS, LENGTH = 60, 40, 5
STEPS = 2 * 6


def next_items(**train: Any) -> Recipe:
    model = {"kind": "sasrec", "embedding_dim": 8, "heads": 2, "length": LENGTH, "dropout": 0.0}
    adam = {"embedding_optimizer": {"kind": "adam", "lr": 0.01}, "dense_optimizer": {"kind": "adam", "lr": 0.01}}
    replicated = {"sharding": {"default": "data_parallel", "memory_per_worker": "1GB"}}
    content = {"epochs": 2, "global_batch_size": 64, **adam, **replicated, **train}
    return recipe(source="interactions", model=model, **content)


WITH_ALL_ITEMS = next_items(threads=3)
WITH_DRAWN_ITEMS = next_items(
    loss={"candidates": 12},
    gradient_accumulation=2,
    embedding_optimizer={"kind": "rowwise_adagrad", "lr": 0.1},
    sharding={"default": "row_wise", "memory_per_worker": "1GB"},
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """People with 1 to 20 events, most of which follow each other by their numbers."""
    rng = np.random.default_rng(3)
    numbers = rng.integers(1, 20, USERS - 1)
    users = np.repeat(np.arange(1, USERS), numbers)
    items = (rng.integers(1, ITEMS, len(users)) // 4 + np.arange(len(users))) % (ITEMS - 1) + 1
    columns = {"user": users.astype(np.int32), "item": items.astype(np.int32)}
    rows = pa.table({**columns, "label": np.ones(len(users), np.float32)})
    assert len(users) // 64 * 2 >= STEPS
    return write_dataset(
        tmp_path_factory.mktemp("next") / "data", users_and_items(USERS, ITEMS), {"train": rows}, rows_per_row_group=100
    )


def test_one_and_two_workers_and_a_resumed_run_have_the_same_losses(dataset: Dataset, tmp_path: Path) -> None:
    stopped = WITH_DRAWN_ITEMS.model_copy(
        update={"train": WITH_DRAWN_ITEMS.train.model_copy(update={"max_steps": STEPS // 2 + 1})}
    )
    one, two = (
        [Case(tmp_path / f"all-{n}", WITH_ALL_ITEMS), Case(tmp_path / f"drawn-{n}", WITH_DRAWN_ITEMS)] for n in (1, 2)
    )
    run_cases(1, dataset.folder, [*one, Case(tmp_path / "resumed", stopped)])
    run_cases(2, dataset.folder, [*two, Case(tmp_path / "resumed", WITH_DRAWN_ITEMS)])
    for name in ("all", "drawn"):
        found = losses(tmp_path / f"{name}-1")
        assert found[max(found)] < found[1]
        require_same_training(tmp_path / f"{name}-2", tmp_path / f"{name}-1", max(found))
    require_same_training(tmp_path / "resumed", tmp_path / "drawn-1", max(losses(tmp_path / "drawn-1")))
