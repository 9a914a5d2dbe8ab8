"""What training computes does not depend on workers, plans, interruptions or the number of passes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from rayrec.recipes import Recipe
from rayrec.training.run.folder import RunFolder, checkpoint_name
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.training_runs import (
    Case,
    logits_under,
    losses,
    recipe,
    require_same_bits,
    require_same_training,
    run_cases,
    weights_of,
)

STEPS = 50
MIXED = {
    "C1": "row_wise",
    "C2": "data_parallel",
    "C3": "column_wise",
    "C4": "table_wise",
    "M1": "table_wise",  # sums, where TorchRec's own mean of the row-wise table would divide them, too
    "M2": "row_wise",
}
MIXED_ROWWISE = {**MIXED, "C3": "row_wise"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "lr": 0.5},
    "adagrad": {"kind": "adagrad", "lr": 0.05},
    "rowwise_adagrad": {"kind": "rowwise_adagrad", "lr": 0.05},
}
DECAYED = {**OPTIMIZERS["adagrad"], "weight_decay": 0.01}
DCNV2 = {"kind": "dcnv2", "embedding_dim": 8, "bottom_mlp": [8], "cross_layers": 2, "cross_rank": 4, "top_mlp": [8]}


def _sharding(default: str, tables: dict[str, str] | None = None) -> dict[str, Any]:
    return {"default": default, "tables": tables or {}, "memory_per_worker": "1GB"}


def _plans(optimizer: str) -> dict[str, dict[str, Any]]:
    return {
        "table_wise": _sharding("table_wise"),
        "row_wise": _sharding("row_wise"),
        "mixed": _sharding("table_wise", MIXED_ROWWISE if optimizer == "rowwise_adagrad" else MIXED),
    }


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("training") / "data"
    make_dataset(folder, {"train": 3_500, "test": 300}, numeric=3, categorical=4, multi_hot=2, seed=1)
    return folder


def _recipe(optimizer: str, **train: Any) -> Recipe:
    dense = {"kind": "adam", "lr": 0.01} if optimizer == "adagrad" else {"kind": "sgd", "lr": 0.1}
    model = DCNV2 if optimizer == "rowwise_adagrad" else None
    schedule = {"warmup_steps": 10, "decay_start": 30, "decay_steps": 40}
    common = {"embedding_optimizer": OPTIMIZERS[optimizer], "dense_optimizer": dense, "max_steps": STEPS}
    return recipe(model=model, **{**common, "schedule": schedule, **train})


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run of the table of the first test: one worker as the reference, two under each plan."""
    folder = tmp_path_factory.mktemp("runs")
    one = [Case(folder / f"{name}-1", _recipe(name)) for name in OPTIMIZERS]
    one.append(Case(folder / "accumulated-1", _recipe("adagrad", gradient_accumulation=3)))
    two = [
        Case(folder / f"{name}-{plan}", _recipe(name, sharding=sharding))
        for name in OPTIMIZERS
        for plan, sharding in _plans(name).items()
    ]
    two.append(Case(folder / "accumulated-2", _recipe("adagrad", gradient_accumulation=4)))
    one.append(Case(folder / "penalized-1", _recipe("adagrad", embedding_l2=0.1)))
    two.append(Case(folder / "penalized-2", _recipe("adagrad", embedding_l2=0.1, sharding=_plans("adagrad")["mixed"])))
    decayed = _recipe("adagrad", sharding=_sharding("data_parallel"), embedding_optimizer=DECAYED)
    one.append(Case(folder / "decayed-1", decayed))
    two.append(Case(folder / "decayed-2", decayed))
    run_cases(1, dataset, one)
    run_cases(2, dataset, two)
    return folder


@pytest.mark.parametrize(
    ("run", "reference"),
    [(f"{name}-{plan}", f"{name}-1") for name in OPTIMIZERS for plan in ("table_wise", "row_wise", "mixed")]
    + [("accumulated-1", "adagrad-1"), ("accumulated-2", "adagrad-1"), ("penalized-2", "penalized-1")]
    + [("decayed-2", "decayed-1")],
)
def test_losses_and_weights_do_not_depend_on_the_workers(runs: Path, run: str, reference: str) -> None:
    expected = losses(runs / reference)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert expected[STEPS] < expected[1] - 0.01
    require_same_training(runs / run, runs / reference, STEPS)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_smaller_batch_takes_a_smaller_step(tmp_path: Path, workers: int) -> None:
    """Small steps of SGD by 64 rows and by the 28 that are left move as far as one by all 92 at 92/64 of the rate."""
    make_dataset(tmp_path / "data", {"train": 92, "test": 10}, rows_per_row_group=92)
    common: dict[str, Any] = {"checkpoint": {"every_steps": 1, "every_minutes": None}}

    def rates(factor: float) -> dict[str, Any]:
        return {
            f"{table}_optimizer": {"kind": "sgd", "lr": lr * factor}
            for table, lr in (("embedding", 5e-3), ("dense", 1e-3))
        }

    small = recipe(**common, **rates(1), max_steps=2, ingest={"in_memory": True, "drop_last": False})
    once, twice = (recipe(**common, **rates(factor * 92 / 64), max_steps=1, global_batch_size=92) for factor in (1, 2))
    cases = {"small": small, "once": once, "twice": twice}
    run_cases(workers, tmp_path / "data", [Case(tmp_path / name, case) for name, case in cases.items()])
    found, expected, further = (
        weights_of(tmp_path / name, step) for name, step in (("small", 2), ("once", 1), ("twice", 1))
    )
    for name, value in found.items():
        moved, off = (np.linalg.norm(other - expected[name]) for other in (further[name], value))
        assert off < 0.1 * moved, f"{name}: a full step for each batch would be off by about 0.3"


@pytest.fixture(scope="module")
def resumed(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs stopped after 23 steps and continued: on as many workers, on fewer, on more."""
    folder = tmp_path_factory.mktemp("resumed")
    first = {name: _recipe("adagrad", max_steps=23, sharding=sharding) for name, sharding in RESUMED.items()}
    whole = {name: _recipe("adagrad", sharding=sharding) for name, sharding in RESUMED.items()}
    two_to_one = Case(folder / "two-one", first["rows"])
    one_to_two = Case(folder / "one-two", first["tables"])
    two_to_two = Case(folder / "two-two", first["mixed"])
    run_cases(2, dataset, [Case(folder / "two", whole["mixed"]), two_to_one, two_to_two])
    run_cases(1, dataset, [Case(folder / "one", whole["tables"]), one_to_two])
    # As a run that was killed between its last checkpoint and the index of them.
    died = folder / "died"
    shutil.copytree(folder / "one", died)
    index = {"latest": checkpoint_name(23), "best": None, "metric": None, "checkpoints": [checkpoint_name(23)]}
    (died / "checkpoints" / "index.json").write_text(json.dumps(index))
    run_cases(1, dataset, [Case(two_to_one.folder, whole["tables"]), Case(died, whole["tables"])])
    run_cases(2, dataset, [Case(one_to_two.folder, whole["mixed"]), Case(two_to_two.folder, whole["mixed"])])
    return folder


RESUMED = {"tables": _sharding("table_wise"), "rows": _sharding("row_wise"), "mixed": _sharding("table_wise", MIXED)}


@pytest.mark.parametrize(("run", "uninterrupted"), [("two-one", "one"), ("one-two", "two"), ("one-two", "one")])
def test_a_run_resumes_on_another_number_of_workers(resumed: Path, run: str, uninterrupted: str) -> None:
    expected = losses(resumed / uninterrupted)
    assert losses(resumed / run) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_resumed_run_ends_in_the_same_weights_to_the_bit(resumed: Path) -> None:
    require_same_bits(resumed / "two-two", resumed / "two", STEPS)


def test_a_run_killed_after_its_last_checkpoint_names_it(resumed: Path) -> None:
    assert RunFolder.open(resumed / "died").checkpoint("latest").name == checkpoint_name(STEPS)


def test_a_part_of_the_rows_on_any_number_of_workers(dataset: Path, tmp_path: Path) -> None:
    """Fifteen batches of 64 of the first 1,000 rows, twice; stopped in the first epoch and continued on one worker."""
    part = {"rows": 1_000, "epochs": 2, "schedule": {}}
    whole, stopped = _recipe("adagrad", **{**part, "max_steps": None}), _recipe("adagrad", **{**part, "max_steps": 11})
    run_cases(2, dataset, [Case(tmp_path / "two", whole), Case(tmp_path / "resumed", stopped)])
    run_cases(1, dataset, [Case(tmp_path / "one", whole), Case(tmp_path / "resumed", whole)])
    expected = losses(tmp_path / "one")
    assert sorted(expected) == list(range(1, 31))
    for name in ("two", "resumed"):
        assert losses(tmp_path / name) == pytest.approx(expected, rel=1e-5, abs=1e-6), name


def test_evaluation_agrees_across_plans_and_counts_each_row_once(resumed: Path) -> None:
    """The loops evaluate at the end: the same metrics from runs that ended in the same weights."""
    metrics = {name: json.loads((resumed / name / "metrics.json").read_text())["test"] for name in ("one", "two")}
    assert metrics["one"]["rows"] == metrics["two"]["rows"] == 300
    for name, value in metrics["one"].items():
        assert metrics["two"][name] == pytest.approx(value, abs=1e-5), name


def test_predictions_do_not_depend_on_the_plan(runs: Path, dataset: Path, tmp_path: Path) -> None:
    checkpoint = runs / "adagrad-mixed" / "checkpoints" / checkpoint_name(STEPS)
    plans = [_recipe("adagrad", sharding=sharding) for sharding in _plans("adagrad").values()]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (expected,) = logits_under(plans[:1], 1, dataset, checkpoint, tmp_path / "one")
    assert len(expected) == 300
    assert expected.std() > 0.1
    for logits in logits_under(plans, 2, dataset, checkpoint, tmp_path / "two"):
        np.testing.assert_allclose(logits, expected, atol=1e-6, rtol=0)


def test_parts_of_a_run(dataset: Path, tmp_path: Path) -> None:
    """Freezing, early stop, evaluations and the checkpoints that are kept, in one process start."""
    half = {"evaluations_per_epoch": 2, "epochs": 3, "max_steps": None, "schedule": {}}
    cases = {
        "frozen-tables": _recipe("sgd", freeze=["embeddings"], max_steps=5),
        "frozen-bottom": _recipe("sgd", freeze=["dense_network.bottom_mlp"], max_steps=5),
        "initial": _recipe("sgd", max_steps=5, embedding_optimizer={"lr": 1e-30}, dense_optimizer={"lr": 1e-30}),
        "penalized": _recipe("sgd", max_steps=1, global_batch_size=3_500, embedding_l2=2.0, schedule={}),
        "not-penalized": _recipe("sgd", max_steps=1, global_batch_size=3_500, schedule={}),
        "stopped": _recipe("sgd", early_stop={"metric": "auc", "target": 0.5}, **half),
        "ended": _recipe("sgd", max_steps=31, evaluations_per_epoch=2, evaluate_after_epochs=0.51),
        "kept": _recipe("sgd", checkpoint={"every_steps": 10, "keep_last": 2, "keep_best": "log_loss"}, **half),
    }
    by_steps = {**half, "evaluate_every_steps": 40}
    parts = [Case(tmp_path / "by-steps", _recipe("sgd", **{**by_steps, "max_steps": end})) for end in (70, None)]
    run_cases(1, dataset, [*(Case(tmp_path / name, case) for name, case in cases.items()), *parts])

    initial = weights_of(tmp_path / "initial", 5)
    for name, value in weights_of(tmp_path / "frozen-tables", 5).items():
        assert value.equal(initial[name]) == name.startswith("embeddings."), name
    for name, value in weights_of(tmp_path / "frozen-bottom", 5).items():
        assert value.equal(initial[name]) == name.startswith("dense_network.bottom_mlp."), name

    # The penalty's gradient: an id's vector, as often as the id occurs.
    ids = pq.read_table(dataset / "train", columns=["C1"])["C1"].to_numpy()
    table = "embeddings.embedding_bags.C1.weight"
    counts = torch.from_numpy(np.bincount(ids, minlength=len(initial[table]))).unsqueeze(1)
    difference = weights_of(tmp_path / "not-penalized", 1)[table] - weights_of(tmp_path / "penalized", 1)[table]
    torch.testing.assert_close(difference, 0.5 * 2.0 * counts / 3_500 * initial[table], rtol=1e-4, atol=1e-6)

    batches = 3_500 // 64
    assert max(losses(tmp_path / "stopped")) == -(-batches // 2)
    assert max(losses(tmp_path / "kept")) == 3 * batches
    assert [r["step"] for r in _evaluations(tmp_path / "ended")] == [31], "not at 27, but at its end"
    evaluations = _evaluations(tmp_path / "kept")
    assert [r["step"] for r in evaluations] == [27, 54, 81, 108, 135, 162]
    best = min(evaluations, key=lambda r: r["log_loss"])["step"]
    index = json.loads((tmp_path / "kept" / "checkpoints" / "index.json").read_text())
    kept = sorted({160, 162, best})
    assert index["checkpoints"] == [checkpoint_name(step) for step in kept]
    assert (index["latest"], index["best"]) == (checkpoint_name(162), checkpoint_name(best))
    assert sorted(p.name for p in (tmp_path / "kept" / "checkpoints").glob("step-*")) == index["checkpoints"]

    # Evaluations after steps, of a run that ended at step 70 and was resumed; training is what it is with others.
    assert [r["step"] for r in _evaluations(tmp_path / "by-steps")] == [40, 70, 80, 120, 160, 162]
    require_same_bits(tmp_path / "by-steps", tmp_path / "kept", 162)


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_history(folder / "history.jsonl") if r["event"] == "evaluate"]
