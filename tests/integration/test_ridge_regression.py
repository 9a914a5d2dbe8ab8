"""The wide model with weight decay, as `rayrec inspect` writes it for few rows, is scikit-learn's ridge regression."""

from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from rayrec.ingest.dataset import Dataset
from tests.builders import make_dataset
from tests.dataset_cells import read_rows
from tests.training_runs import Case, logits_under, recipe, run_cases

ROWS, EPOCHS = 40 * 64, 20
CARDINALITIES = (11, 101, 1_009)
PENALTY = 0.002


def one_hot(dataset: Dataset, split: str) -> sparse.csr_matrix:
    """(rows, numbers + cardinalities) with one column for each number and each id."""
    rows = read_rows(dataset, split)
    numbers = [sparse.csr_matrix(rows[feature.name].to_numpy()[:, None]) for feature in dataset.schema.numeric]
    ids = [
        sparse.csr_matrix(
            (np.ones(rows.num_rows), (np.arange(rows.num_rows), rows[f.name].to_numpy())),
            (rows.num_rows, f.cardinality),
        )
        for f in dataset.schema.categorical
    ]
    return sparse.hstack([*numbers, *ids]).tocsr()


def test_it_is_ridge_regression(tmp_path: Path) -> None:
    dataset = make_dataset(
        tmp_path / "data", {"train": ROWS, "test": 500}, numeric=2, categorical=3, cardinalities=CARDINALITIES
    )
    optimizer = {"kind": "adagrad", "lr": 0.2, "weight_decay": PENALTY}
    settings = recipe(
        model={"kind": "wide_deep", "part": "wide"},
        epochs=EPOCHS,
        embedding_optimizer=optimizer,
        dense_optimizer=optimizer,
        schedule={"pieces": [{"from_epoch": 10, "factor": 0.3}, {"from_epoch": 15, "factor": 0.1}]},
        sharding={"default": "data_parallel", "memory_per_worker": "1GB"},
    )
    run = tmp_path / "run"
    run_cases(1, dataset.folder, [Case(run, settings)])
    (checkpoint,) = sorted((run / "checkpoints").glob("step-*"))[-1:]
    (logits,) = logits_under([settings], 1, dataset.folder, checkpoint, tmp_path)

    labels = read_rows(dataset, "train")["label"].to_numpy()
    expected = LogisticRegression(C=1 / (PENALTY * ROWS), max_iter=1000).fit(one_hot(dataset, "train"), labels)
    wanted = expected.decision_function(one_hot(dataset, "test"))
    assert wanted.std() > 0.2
    difference = logits.to(torch.float64).numpy()[: len(wanted)] - wanted
    assert np.sqrt(np.mean(difference**2)) < 0.05 * wanted.std()
