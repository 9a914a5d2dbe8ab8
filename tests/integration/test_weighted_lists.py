"""Lists with weights in the training loop: on one worker and on two, under every sharding, as plain torch has it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from jobs.export import ExportRequest
from jobs.export import run as export
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.models.common.batch import Batch
from rayrec.models.common.ranking import RankingModel
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.run.folder import checkpoint_name
from tests.builders import make_dataset
from tests.training_runs import Case, logits_under, losses, recipe, run_cases, weights_of

STEPS = 20
LR = {"embedding_optimizer": {"kind": "sgd", "lr": 0.5}, "dense_optimizer": {"kind": "sgd", "lr": 0.1}}
MIXED = {"C1": "row_wise", "C2": "data_parallel", "M1": "row_wise", "M2": "data_parallel", "M3": "table_wise"}
PLANS = {
    "tables": ("table_wise", {}),
    "rows": ("row_wise", {}),
    "columns": ("column_wise", {}),
    "copies": ("data_parallel", {}),
    "mixed": ("table_wise", MIXED),
}


def _recipe(plan: str = "tables", **train: Any) -> Recipe:
    default, tables = PLANS[plan]
    sharding = {"default": default, "tables": tables, "memory_per_worker": "1GB"}
    return recipe(**{**LR, "sharding": sharding, "max_steps": STEPS, "epochs": 1, **train})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Means (M2, M4) and sums (M1, M3) of lists, of which M1, M2 and M4 have weights; M4 reads the table of C2."""
    folder = tmp_path_factory.mktemp("weighted") / "data"
    columns = {"numeric": 2, "categorical": 2, "multi_hot": 4, "cardinalities": (11, 101), "shared": {"M4": "C2"}}
    make_dataset(folder, {"train": 25 * 64, "test": 300}, **columns, weighted=("M1", "M2", "M4"), seed=1)
    return folder


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    cases = {plan: _recipe(plan) for plan in PLANS} | {f"{plan}-step": _recipe(plan, max_steps=1) for plan in PLANS}
    for workers in (1, 2):
        run_cases(workers, dataset, [Case(folder / f"{name}-{workers}", case) for name, case in cases.items()])
    return folder


def plain_logits(model: RankingModel, tables: dict[str, Tensor], batch: Batch) -> Tensor:
    """Logits of the model's dense network over embeddings that are gathered, weighed and pooled by hand."""
    outputs = []
    for stated in model.pooled:
        ids = batch.sparse[stated.feature]
        row = torch.repeat_interleave(torch.arange(batch.size), ids.lengths())
        weights = ids.weights()
        rows = tables[stated.table.name][ids.values().long(), : stated.table.dim]
        total = torch.zeros(batch.size, stated.table.dim).index_add(0, row, weights.unsqueeze(1) * rows)
        if stated.pooling == "mean":
            divisor = torch.zeros(batch.size).index_add(0, row, weights)
            total = total / torch.where(divisor > 0, divisor, 1.0).unsqueeze(1)
        outputs.append(total)
    return model.dense_network(batch.dense, torch.cat(outputs, dim=1))


@pytest.fixture(scope="module")
def plain(dataset: Path) -> dict[int, tuple[float, dict[str, Tensor]]]:
    """The loss of each step, and the tables after it, of gradient descent over tables that are plain tensors."""
    config, data = _recipe(), Dataset.open(dataset)
    model = build_model(config.model, data.schema, seed=config.train.seed)
    tables = {t.name: model.embeddings.embedding_bags[t.name].weight.detach().clone() for t in model.tables}
    found = {}
    order = {"global_batch_size": 64, "seed": config.train.seed, "epoch": 0, "drop_last": True}
    with open_batches(data, "train", config.train.ingest, **order) as batches:
        for step, batch in zip(range(1, STEPS + 1), batches, strict=False):
            tables = {name: value.detach().requires_grad_() for name, value in tables.items()}
            model.zero_grad()
            loss = F.binary_cross_entropy_with_logits(plain_logits(model, tables, batch), batch.label)
            loss.backward()
            with torch.no_grad():
                tables = {name: value - 0.5 * value.grad for name, value in tables.items()}
                for parameter in model.dense_network.parameters():
                    parameter.sub_(0.1 * parameter.grad)
            found[step] = (loss.item(), tables)
    return found


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_equals_plain_torch(
    runs: Path, plain: dict[int, tuple[float, dict[str, Tensor]]], plan: str, workers: int
) -> None:
    expected = {step: loss for step, (loss, _) in plain.items()}
    found = losses(runs / f"{plan}-{workers}")
    assert sorted(found) == list(range(1, STEPS + 1))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    for name, steps in ((f"{plan}-step", 1), (plan, STEPS)):
        weights = weights_of(runs / f"{name}-{workers}", steps)
        for table, value in plain[steps][1].items():
            trained = weights[f"embeddings.embedding_bags.{table}.weight"]
            np.testing.assert_allclose(trained, value, rtol=0, atol=1e-6 if steps == 1 else 2e-5, err_msg=table)


def test_weights_matter(plain: dict[int, tuple[float, dict[str, Tensor]]], dataset: Path) -> None:
    """The rows of the batches have weights of 0, of 1, others, and all of a list may be 0."""
    config, data = _recipe(), Dataset.open(dataset)
    with open_batches(data, "train", config.train.ingest, global_batch_size=64, drop_last=True) as batches:
        batch = next(iter(batches))
    for feature in ("M1", "M2", "M4"):
        ids = batch.sparse[feature]
        of_rows = [part.tolist() for part in torch.split(ids.weights(), ids.lengths().tolist())]
        assert any(row and not any(row) for row in of_rows) and len({weight for row in of_rows for weight in row}) > 50
    assert (batch.sparse["M3"].weights() == 1).all()
    before, after = plain[1][1]["M2"], plain[STEPS][1]["M2"]
    assert (before - after).abs().max() > 0.01


def test_the_model_folder_scores_as_the_trained_model(runs: Path, dataset: Path, tmp_path: Path) -> None:
    checkpoint = runs / "mixed-2" / "checkpoints" / checkpoint_name(STEPS)
    logits = {}
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        (logits[workers],) = logits_under([_recipe("mixed")], workers, dataset, checkpoint, tmp_path / str(workers))
    np.testing.assert_allclose(logits[1], logits[2], rtol=0, atol=1e-6)
    export(ExportRequest(run=runs / "mixed-2", output=tmp_path / "model"), SilentProgress())
    predictor = load_model(tmp_path / "model")
    (rows,) = pq.read_table(dataset / "test").combine_chunks().to_batches()
    scores = predictor.predict_encoded(rows)
    assert scores.std() > 0.01
    np.testing.assert_allclose(scores, logits[1].sigmoid(), rtol=0, atol=1e-6)
    one = predictor.predict([{"M1": [3, 4, 5], "M1_weights": [0.5, 0, 2]}])
    other = predictor.predict([{"M1": [3, 4, 5]}])
    assert abs(one - other) > 1e-6
