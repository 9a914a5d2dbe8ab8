"""Histories read event by event in the training loop: on one worker and on two, under every sharding, and resumed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F

from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from tests.builders import history_source, make_rows, make_schema, with_history, write_dataset
from tests.training_runs import BASE, Case, losses, require_same_training, run_cases, weights_of

STEPS = 20
LISTS = make_schema(2, 3, 3, cardinalities=(11, 101, 23), shared={"M1": "C1", "M2": "C2", "M3": "C3"})
SCHEMA = with_history(with_history(LISTS, "seen", {"M1": "C1", "M3": "C3"}), "liked", {"M2": "C2"})
MODEL = {
    "kind": "wide_deep",
    "embedding_dim": 8,
    "embedding_dims": {"C3": 3},
    "mlp": [16],
    "sequences": {"seen": {"kind": "din", "hidden": [8]}, "liked": {"kind": "mean"}},
}
PLANS: dict[str, tuple[str, dict[str, str]]] = {
    "tables": ("table_wise", {}),
    "columns": ("column_wise", {}),
    "mixed": ("table_wise", {"C1": "row_wise", "C2": "data_parallel", "C3_wide": "row_wise"}),
}


def _recipe(plan: str, **train: Any) -> Recipe:
    default, tables = PLANS[plan]
    sharding = {"default": default, "tables": tables, "memory_per_worker": "1GB"}
    settings = {**BASE["train"], "sharding": sharding, "max_steps": STEPS, "epochs": 1, **train}
    return Recipe.model_validate({**BASE, "model": MODEL, "source": history_source(SCHEMA), "train": settings})


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of up to four events, many of them empty; those of a history have one length."""
    folder = tmp_path_factory.mktemp("sequences") / "data"
    rows = make_rows(SCHEMA, 25 * 64, 1)
    place = rows.column_names.index("M3")
    events = [[(id_ * 7 + 1) % 23 for id_ in ids] for ids in rows["M1"].to_pylist()]
    rows = rows.set_column(place, "M3", pa.array(events, rows.schema.field("M3").type))
    write_dataset(folder, SCHEMA, {"train": rows})
    return folder


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    cases = [Case(folder / f"{plan}-2", _recipe(plan)) for plan in ("columns", "mixed")]
    run_cases(2, dataset, [*cases, Case(folder / "resumed", _recipe("mixed", max_steps=STEPS // 2))])
    run_cases(1, dataset, [Case(folder / "tables-1", _recipe("tables")), Case(folder / "resumed", _recipe("mixed"))])
    return folder


@pytest.fixture(scope="module")
def plain(dataset: Path) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """The loss of each step, and the weights after the last one, of gradient descent in plain torch."""
    config, data = _recipe("tables"), Dataset.open(dataset)
    model, found = build_model(config.model, data.schema, seed=config.train.seed), {}
    tables = list(model.embeddings.parameters())
    optimizer = torch.optim.SGD([{"params": tables, "lr": 0.5}, {"params": model.dense_network.parameters()}], lr=0.1)
    order = {"global_batch_size": 64, "seed": config.train.seed, "epoch": 0, "drop_last": True}
    with open_batches(data, "train", config.train.ingest, **order) as batches:
        for step, batch in zip(range(1, STEPS + 1), batches, strict=False):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(batch), batch.label)
            loss.backward()
            optimizer.step()
            found[step] = loss.item()
    return found, model.state_dict()


@pytest.mark.parametrize("run", ["tables-1", "columns-2", "mixed-2"])
def test_equals_plain_torch(runs: Path, plain: tuple[dict[int, float], dict[str, torch.Tensor]], run: str) -> None:
    expected, weights = plain
    assert losses(runs / run) == pytest.approx(expected, rel=1e-5, abs=1e-6)
    trained = weights_of(runs / run, STEPS)
    assert trained.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(
            trained[name], value, rtol=0, atol=2e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_run_resumes_on_another_number_of_workers(runs: Path) -> None:
    require_same_training(runs / "resumed", runs / "tables-1", STEPS)
