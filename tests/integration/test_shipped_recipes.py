"""Every shipped recipe trains: network, losses, optimizers and schedule as they are, on small batches and tables.

On a GPU where there is one, with NCCL as the only rank and in the number format that the recipe picks there.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rayrec
from benchmarks.in_process import train
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, shipped_recipes
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from tests.builders import CRITEO, make_rows, users_and_items, write_dataset
from tests.display_models import display_schema
from tests.outbrain_statistics import make_constants
from tests.training_runs import losses, weights_of

STEPS = 10
INTERACTIONS = users_and_items(80, 60, group="group")
# What makes a recipe run here in a second, and nothing that the model learns by.
SMALL: dict[str, Any] = {
    "train.global_batch_size": 126,  # of users and items: samples of a positive and its negatives
    "train.max_steps": STEPS,
    "train.workers": 1,
    "train.device": "auto",
    "train.ingest.in_memory": True,
    "train.checkpoint.every_steps": STEPS // 2,
    "train.checkpoint.keep_last": 2,
    "train.log_every_steps": 1,
    "train.tracking.tensorboard": False,
    "train.sharding.memory_per_worker": "1GB",
    "evaluate.global_batch_size": 512,
}


def schema_of(recipe: Recipe) -> Schema:
    """The columns of the recipe's source, with small tables."""
    if recipe.source.kind == "criteo":
        return CRITEO
    if recipe.source.kind == "interactions":
        return INTERACTIONS
    assert isinstance(recipe.preprocess, DisplayPreprocessConfig), recipe.source.kind
    return display_schema(make_constants(feature_set=recipe.preprocess.feature_set))


@pytest.fixture(scope="module")
def dataset_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recipe], Dataset]:
    """Made once for each set of columns."""
    made: dict[str, Dataset] = {}
    folder = tmp_path_factory.mktemp("datasets")

    def make(recipe: Recipe) -> Dataset:
        schema = schema_of(recipe)
        name = schema.model_dump_json()
        if name not in made:
            rows = {"train": 1_500, "validation": 400, "test": 400}
            tables = {split: make_rows(schema, count, seed) for seed, (split, count) in enumerate(rows.items())}
            if schema.interactions is not None:
                tables["train"] = tables["train"].sort_by(schema.interactions.user)  # as preprocessing writes them
            made[name] = write_dataset(folder / str(len(made)), schema, tables)
        return made[name]

    return make


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_recipe_trains_ten_steps(name: str, dataset_of: Callable[[Recipe], Dataset], tmp_path: Path) -> None:
    recipe = rayrec.load_recipe(name, SMALL)
    if recipe.train.embedding_optimizer.kind == "adam" and not torch.cuda.is_available():
        # Only copies of a table have a kernel of Adam on a CPU.
        recipe = rayrec.load_recipe(name, {**SMALL, "train.sharding.default": "data_parallel"})
    run = train(recipe, dataset_of(recipe), tmp_path / "run")
    found = losses(run.path)
    assert list(found) == list(range(1, STEPS + 1)) and all(map(math.isfinite, found.values()))
    first, last = (weights_of(run.path, step) for step in (STEPS // 2, STEPS))
    still = [name for name, values in last.items() if np.array_equal(values.numpy(), first[name].numpy())]
    assert still == [], "every table and every layer moves"
    metrics = json.loads((run.path / "metrics.json").read_text())
    measured = "ndcg@10" if recipe.model.scores_next_items else "log_loss"
    assert metrics and all(math.isfinite(values[measured]) for values in metrics.values())
