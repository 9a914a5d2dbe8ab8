"""Wide & Deep in the training loop: two optimizers under every plan, exact resuming, MAP, the way to the predictor."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from jobs.export import ExportRequest
from jobs.export import run as export
from rayrec.common.progress import SilentProgress
from rayrec.inference.folder.model_folder import ModelFolder
from rayrec.inference.predictor import load_model
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import open_batches
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.optimizers import FTRL
from rayrec.training.run.folder import checkpoint_name
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.training_runs import (
    Case,
    logits_under,
    losses,
    metrics_under,
    recipe,
    require_same_training,
    run_cases,
    weights_of,
)

STEPS = 30
ROWS = {"train": 25 * 64, "test": 300}
"""25 batches an epoch."""
DISPLAYS = (7, 2, 5, 12, 7, 1, 9)
"""Rows of displays, whole in row groups, which batches cut unless lists are trained on."""
MODEL = {"kind": "wide_deep", "embedding_dim": 8, "embedding_dims": {"C1": 3}, "mlp": [16, 8]}
ADAGRAD = {"kind": "adagrad", "lr": 0.1, "initial_accumulator": 0.1}
ADAM = {"kind": "adam", "lr": 0.01}
RMSPROP = {"kind": "rmsprop", "lr": 0.01, "rho": 0.5}
L2 = 0.02
FTRL_SETTINGS = {"lr": 0.1, "initial_accumulator": 0.1, "l1": 0.002, "l2": 0.001, "beta": 0.5}
WIDE_OPTIMIZER = {"kind": "ftrl", **FTRL_SETTINGS}
WIDE = {"embedding_optimizer": WIDE_OPTIMIZER, "dense_optimizer": WIDE_OPTIMIZER, "schedule": {}, "embedding_l2": 0.0}
FUSED_PARTS = {
    "wide": {"embedding_optimizer": {"kind": "sgd", "lr": 0.5}, "schedule": {"warmup_steps": 4}, "embedding_l2": L2}
}
"""If tables are sharded, kernels of two optimizers with learning rates of their own; in copies, torch's optimizers."""
SCHEDULE = {"warmup_epochs": 0.4, "pieces": [{"from_epoch": 1, "factor": 0.25}]}
MIXED = {
    "C1": "row_wise", "C1_wide": "data_parallel", "C2": "data_parallel", "C2_wide": "row_wise", "C3": "row_wise",
    "C4_wide": "row_wise", "M1": "row_wise", "M1_wide": "row_wise",
}  # fmt: skip
PLANS = {
    "tables": ("table_wise", {}),
    "rows": ("row_wise", {}),
    "copies": ("data_parallel", {}),
    "columns": ("column_wise", {}),
    "mixed": ("table_wise", MIXED),
}


def _recipe(optimizer: dict[str, Any] = ADAGRAD, plan: str = "tables", size: int = 64, **changes: Any) -> Recipe:
    default, tables = PLANS[plan]
    evaluate = {"global_batch_size": size, "ranking": {"k": [12], "metrics": ["map"]}}
    model = {**MODEL, **changes.pop("model", {})}
    train = {
        "embedding_optimizer": optimizer,
        "dense_optimizer": optimizer,
        "parts": {"wide": WIDE},
        "embedding_l2": L2 if optimizer is RMSPROP else 0.0,
        "schedule": SCHEDULE,
        "sharding": {"default": default, "tables": tables, "memory_per_worker": "1GB"},
        "epochs": 2,
        "max_steps": STEPS,
        **changes,
    }
    return recipe(model=model, evaluate=evaluate, **train)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clicks") / "data"
    columns = {"numeric": 1, "vector": 2, "categorical": 4, "multi_hot": 2}
    make_dataset(folder, ROWS, **columns, shared={"M2": "C2"}, seed=1, group_sizes=DISPLAYS)
    return folder


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    frozen = {"max_steps": 5, "schedule": {}}
    one = {
        "adagrad-1": _recipe(),
        "rmsprop-1": _recipe(RMSPROP),
        "adam-1": _recipe(ADAM, "copies"),
        "accumulated": _recipe(gradient_accumulation=3),
        "frozen-tables": _recipe(freeze=["embeddings"], **frozen),
        "frozen-wide": _recipe(freeze=["dense_network.wide"], **frozen),
        "wide": _recipe(model={"part": "wide"}, **frozen),
        "deep": _recipe(model={"part": "deep"}, **frozen),
    }
    two = {f"adagrad-{plan}": _recipe(plan=plan) for plan in PLANS}
    two |= {f"rmsprop-{plan}": _recipe(RMSPROP, plan) for plan in ("rows", "mixed")}
    two |= {"adam-copies": _recipe(ADAM, "copies")}
    two |= {"moved": _recipe(RMSPROP, "mixed", max_steps=11)}
    one["parts-1"] = _recipe(plan="copies", parts=FUSED_PARTS)
    two |= {f"parts-{plan}": _recipe(plan=plan, parts=FUSED_PARTS) for plan in ("tables", "rows", "columns")}
    lists = {"loss": {"listwise": 0.5}, "model": {"dropout": 0.0}}
    one |= {"lists-1": _recipe(**lists), "lists-accumulated": _recipe(**lists, gradient_accumulation=3)}
    two |= {"lists-mixed": _recipe(plan="mixed", **lists)}
    run_cases(1, dataset, [Case(folder / name, case) for name, case in one.items()])
    run_cases(2, dataset, [Case(folder / name, case) for name, case in two.items()])
    run_cases(1, dataset, [Case(folder / "moved", _recipe(RMSPROP, "rows"))])
    return folder


@pytest.mark.parametrize(
    ("run", "reference"),
    [(f"adagrad-{plan}", "adagrad-1") for plan in PLANS]
    + [(f"rmsprop-{plan}", "rmsprop-1") for plan in ("rows", "mixed")]
    + [("adam-copies", "adam-1"), ("accumulated", "adagrad-1")]
    + [("lists-mixed", "lists-1"), ("lists-accumulated", "lists-1")]
    + [(f"parts-{plan}", "parts-1") for plan in ("tables", "rows", "columns")],
)
def test_losses_and_weights_depend_on_neither_workers_nor_plan(runs: Path, run: str, reference: str) -> None:
    expected = losses(runs / reference)
    assert sorted(expected) == list(range(1, STEPS + 1)) and expected[STEPS] < expected[1] - 0.03
    require_same_training(runs / run, runs / reference, STEPS)
    wide = _weight(runs / reference, "C1_wide")
    assert wide[:, 0].any() and not wide[:, 1:].any()


@pytest.mark.parametrize(("run", "optimizer"), [("adagrad-1", ADAGRAD), ("rmsprop-1", RMSPROP)])
def test_equals_plain_torch(runs: Path, dataset: Path, run: str, optimizer: dict[str, Any]) -> None:
    """The unsharded model, autograd over all of it, an optimizer for each part."""
    config, data = _recipe(optimizer), Dataset.open(dataset)
    model = build_model(config.model, data.schema, seed=config.train.seed)
    wide = [p for name, p in model.named_parameters() if "_wide" in name or ".wide." in name]
    deep = [p for p in model.parameters() if not any(p is other for other in wide)]
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adagrad": lambda: torch.optim.Adagrad(deep, eps=1e-8, initial_accumulator_value=0.1),
        "rmsprop": lambda: torch.optim.RMSprop(deep, alpha=0.5, eps=1e-8),
    }
    optimizers = [makers[optimizer["kind"]](), FTRL(wide, **FTRL_SETTINGS)]
    found, step = {}, 0
    for epoch in range(2):
        order = {"global_batch_size": 64, "seed": config.train.seed, "epoch": epoch, "drop_last": True}
        with open_batches(data, "train", config.train.ingest, **order) as batches:
            for batch in batches:
                step += 1
                factor = min(step / 10, 1.0) if step <= 25 else 0.25
                optimizers[0].param_groups[0]["lr"] = optimizer["lr"] * factor
                pooled = model.outputs(model.embeddings(batch.sparse), batch.sparse)
                loss = F.binary_cross_entropy_with_logits(model.dense_network(batch.dense, pooled), batch.label)
                penalty = config.train.embedding_l2 / 2 * pooled[:, :43].square().sum(1).mean()  # the deep columns
                for each in optimizers:
                    each.zero_grad()
                (loss + penalty).backward()
                for each in optimizers:
                    each.step()
                found[step] = loss.item()
    expected = losses(runs / run)
    assert {s: found[s] for s in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)
    rates = [r for r in read_history(runs / run / "history.jsonl") if r["event"] == "train"]
    assert [(r["lr_wide_embeddings"], r["lr_wide_dense"]) for r in rates] == [(0.1, 0.1)] * STEPS
    assert rates[-1]["lr_embeddings"] == rates[-1]["lr_dense"] == optimizer["lr"] / 4


def test_a_run_resumes_under_another_plan_on_fewer_workers(runs: Path) -> None:
    assert losses(runs / "moved") == pytest.approx(losses(runs / "rmsprop-1"), rel=1e-5, abs=1e-6)


def test_what_is_frozen_stays(runs: Path, dataset: Path) -> None:
    config = _recipe()
    initial = build_model(config.model, Dataset.open(dataset).schema, seed=config.train.seed).state_dict()
    for run, prefix in (("frozen-tables", "embeddings."), ("frozen-wide", "dense_network.wide.")):
        for name, value in weights_of(runs / run, 5).items():
            assert torch.equal(value, initial[name]) == name.startswith(prefix), (run, name)


def test_a_part_alone_trains(runs: Path) -> None:
    for part, other in (("wide", "deep"), ("deep", "wide")):
        names = set(weights_of(runs / part, 5))
        assert any(part in name for name in names if name.startswith("dense_network."))
        assert not any(other in name for name in names)
        assert losses(runs / part)[5] != losses(runs / part)[1]


@pytest.fixture(scope="module")
def logits(runs: Path, dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Of the test split from one checkpoint, by plan on two workers, and on one worker."""
    folder = tmp_path_factory.mktemp("logits")
    checkpoint = runs / "adagrad-mixed" / "checkpoints" / checkpoint_name(STEPS)
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    (one,) = logits_under([_recipe()], 1, dataset, checkpoint, folder / "one")
    two = logits_under([_recipe(plan=plan) for plan in PLANS], 2, dataset, checkpoint, folder / "two")
    return {"one": one.numpy()} | {plan: value.numpy() for plan, value in zip(PLANS, two, strict=True)}


@pytest.mark.parametrize("plan", PLANS)
def test_scores_do_not_depend_on_the_plan(logits: dict[str, np.ndarray], plan: str) -> None:
    assert len(logits["one"]) == 300 and logits["one"].std() > 0.2
    np.testing.assert_allclose(logits[plan], logits["one"], atol=1e-6, rtol=0)


def test_map_at_any_workers_and_batch_size(
    runs: Path, dataset: Path, logits: dict[str, np.ndarray], tmp_path: Path
) -> None:
    rows = pq.read_table(dataset / "test", columns=["group", "label"]).to_pydict()
    scores = 1 / (1 + np.exp(-logits["one"].astype(np.float64)))
    expected = {"map@12": _map(rows["group"], rows["label"], scores)}
    assert 0.3 < expected["map@12"] < 0.95
    checkpoint = runs / "adagrad-mixed" / "checkpoints" / checkpoint_name(STEPS)
    plans = [_recipe(plan="mixed", size=size) for size in (10, 64, 128, 1_000)]
    for workers in (1, 2):
        (tmp_path / str(workers)).mkdir()
        for found in metrics_under(plans, workers, dataset, checkpoint, tmp_path / str(workers)):
            assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9, rel=0)
            assert found["groups"] == len({g for g, y in zip(rows["group"], rows["label"], strict=True) if y})
    metrics = json.loads((runs / "adagrad-mixed" / "metrics.json").read_text())["test"]
    assert metrics["map@12"] == pytest.approx(expected["map@12"], abs=1e-9)


def test_the_model_folder_scores_as_the_trained_model(
    runs: Path, dataset: Path, logits: dict[str, np.ndarray], tmp_path: Path
) -> None:
    export(ExportRequest(run=runs / "adagrad-mixed", output=tmp_path / "model"), SilentProgress())
    folder = ModelFolder.open(tmp_path / "model")
    files = {path.stem for path in (tmp_path / "model/weights/tables").iterdir()}
    assert files == {f"{name}{suffix}" for name in ("C1", "C2", "C3", "C4", "M1") for suffix in ("", "_wide")}
    for table in folder.tables:
        assert torch.equal(folder.table(table), _weight(runs / "adagrad-mixed", table.name))
    (rows,) = pq.read_table(dataset / "test").combine_chunks().to_batches()
    scores = load_model(tmp_path / "model").predict_encoded(rows)
    np.testing.assert_allclose(scores, torch.tensor(logits["one"]).sigmoid(), rtol=0, atol=1e-6)


def _weight(run: Path, table: str) -> torch.Tensor:
    return weights_of(run, STEPS)[f"embeddings.embedding_bags.{table}.weight"]


def _map(groups: list[int], labels: list[float], scores: np.ndarray) -> float:
    """MAP@12 display by display, from the definition; a display may have several clicks here."""
    precisions = []
    for group in dict.fromkeys(groups):
        rows = [(-s, y) for g, y, s in zip(groups, labels, scores, strict=True) if g == group]
        clicked = [y for _, y in sorted(rows)]
        if any(clicked):
            hits = [sum(clicked[: rank + 1]) / (rank + 1) for rank in range(min(12, len(rows))) if clicked[rank]]
            precisions.append(sum(hits) / min(sum(clicked), 12))
    return sum(precisions) / len(precisions)
