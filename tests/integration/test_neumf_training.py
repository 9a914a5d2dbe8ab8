"""NeuMF in the training loop: dense Adam and dropout resume exactly, pre-training, ranking metrics over workers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from jobs.train import initial_weights
from rayrec.common.errors import ConfigError
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe
from rayrec.training.run.folder import checkpoint_name
from tests.builders import users_and_items, write_dataset
from tests.training_runs import Case, losses, metrics_under, recipe, run_cases, weights_of

USERS, ITEMS = 40, 30
SCHEMA = users_and_items(USERS, ITEMS, group="list")
ADAM = {"kind": "adam", "lr": 0.01, "betas": [0.25, 0.5], "weight_decay": 0.01}
SIZES = {"kind": "neumf", "factors": 4, "mlp": [8, 4]}
RANKING = {"k": [1, 5], "metrics": ["hr", "ndcg", "recall", "map"]}
STEPS = 12


def _rows(rows: int, seed: int) -> pa.Table:
    """Lists of 8 candidates a user; a user likes every third item."""
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(rows // 8 + 1) % (USERS - 1) + 1, 8)[:rows].astype(np.int32)
    item = rng.integers(1, ITEMS, rows).astype(np.int32)
    label = ((user + item) % 3 == 0).astype(np.float32)
    return pa.table({"user": user, "item": item, "label": label, "list": np.arange(rows, dtype=np.int64) // 8})


def _recipe(
    *, parts: tuple[str, ...] = ("gmf", "mlp"), dropout: float = 0.0, candidates: str = "given", **train: Any
) -> Recipe:
    model = {**SIZES, "parts": parts, "dropout": dropout}
    dense = {"default": "data_parallel", "memory_per_worker": "1GB"}
    common = {"embedding_optimizer": ADAM, "dense_optimizer": {**ADAM, "kind": "adamw"}, "max_steps": STEPS}
    evaluate = {"global_batch_size": 64, "ranking": {**RANKING, "candidates": candidates}}
    return recipe(model=model, evaluate=evaluate, source="interactions", **{**common, "sharding": dense, **train})


def _folders(runs: Path, gmf: str, mlp: str) -> dict[str, str]:
    return {"gmf": str(runs / gmf), "mlp": str(runs / mlp)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interactions") / "data"
    write_dataset(folder, SCHEMA, {"train": _rows(1_000, 1), "test": _rows(300, 2)}, rows_per_row_group=50)
    return folder


@pytest.fixture(scope="module")
def runs(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    initial = {"sources": _folders(folder, "gmf", "mlp"), "options": {"alpha": 0.25}}
    full, following = _recipe(candidates="all"), _recipe(candidates="next")
    run_cases(
        2,
        dataset,
        [
            Case(folder / "gmf", _recipe(parts=("gmf",))),
            Case(folder / "mlp", _recipe(parts=("mlp",))),
            Case(folder / "two", _recipe()),
            Case(folder / "full-two", full),
            Case(folder / "next-two", following),
            Case(
                folder / "composed",
                _recipe(
                    initial_weights=initial,
                    max_steps=1,
                    # Sharded tables take their columns of the composed ones.
                    sharding={"default": "column_wise", "memory_per_worker": "1GB"},
                    embedding_optimizer={"kind": "sgd", "lr": 1e-30},
                    dense_optimizer={"kind": "sgd", "lr": 1e-30},
                ),
            ),
        ],
    )
    run_cases(
        1,
        dataset,
        [Case(folder / name, of) for name, of in (("one", _recipe()), ("full-one", full), ("next-one", following))],
    )
    return folder


def test_dense_adam_does_not_depend_on_the_workers(runs: Path) -> None:
    expected = losses(runs / "one")
    assert losses(runs / "two") == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert expected[STEPS] < expected[1] - 0.001


@pytest.mark.parametrize("candidates", ["given", "all", "next"])
def test_ranking_metrics_do_not_depend_on_the_workers(runs: Path, candidates: str) -> None:
    names = {"given": ("one", "two"), "all": ("full-one", "full-two"), "next": ("next-one", "next-two")}[candidates]
    one, two = (json.loads((runs / name / "metrics.json").read_text())["test"] for name in names)
    assert one["groups"] == two["groups"]
    if candidates == "given":
        labels = np.asarray(_rows(300, 2)["label"])
        assert one["groups"] == sum(labels[i : i + 8].any() for i in range(0, 300, 8))
    assert {f"{metric}@{k}" for metric in ("hr", "ndcg", "recall", "map") for k in (1, 5)} <= one.keys()
    for name, value in one.items():
        assert two[name] == pytest.approx(value, abs=1e-5), name


def test_ranking_metrics_of_a_checkpoint_do_not_depend_on_the_plan(runs: Path, dataset: Path, tmp_path: Path) -> None:
    checkpoint = runs / "two" / "checkpoints" / checkpoint_name(STEPS)
    plans = [
        _recipe(
            candidates=candidates,
            embedding_optimizer={"kind": "sgd", "lr": 1.0},
            sharding={"default": sharding, "memory_per_worker": "1GB"},
        )
        for candidates in ("given", "all", "next")
        for sharding in ("table_wise", "row_wise")
    ]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = metrics_under(plans, 1, dataset, checkpoint, tmp_path / "one")
    two = metrics_under(plans, 2, dataset, checkpoint, tmp_path / "two")
    for index in range(len(plans)):
        expected = one[index - index % 2]
        assert 0 < expected["hr@5"] < 1
        assert one[index] == pytest.approx(expected, abs=1e-6)
        assert two[index] == pytest.approx(expected, abs=1e-6)


def test_a_run_begins_with_the_composed_weights(runs: Path) -> None:
    gmf, mlp = (weights_of(runs / part, STEPS) for part in ("gmf", "mlp"))
    expected = {name: value for name, value in mlp.items() if ".mlp." in name}
    for side in ("user", "item"):  # equation 13 of the paper; both parts have tables of four columns
        name = f"embeddings.embedding_bags.{side}.weight"
        expected[name] = torch.cat([gmf[name], mlp[name]], dim=1)
    weight, bias = "dense_network.output.weight", "dense_network.output.bias"
    expected[weight] = torch.cat([0.25 * gmf[weight], 0.75 * mlp[weight]], dim=1)
    expected[bias] = 0.25 * gmf[bias] + 0.75 * mlp[bias]
    found = weights_of(runs / "composed", 1)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], msg=name)


@pytest.mark.parametrize(
    ("gmf", "mlp", "changes", "options", "message"),
    [
        ("absent", "mlp", {}, {}, r"train\.initial_weights\.sources\.gmf: .*absent: not a run folder"),
        (
            "gmf",
            "gmf",
            {},
            {},
            r"train\.initial_weights\.sources\.mlp: not a model of kind 'neumf' with parts: \[mlp\]",
        ),
        (
            "gmf",
            "mlp",
            {"mlp": (8, 2)},
            {},
            r"sources\.mlp: has model\.mlp=\(8, 4\), this model \(8, 2\); make them equal",
        ),
        ("gmf", "mlp", {"factors": 3}, {}, r"sources\.gmf: has model\.factors=4, this model 3; make them equal"),
        (
            "gmf",
            "mlp",
            {"parts": ("gmf",)},
            {},
            r"train\.initial_weights\.sources: a NeuMF with both parts begins with two",
        ),
        (
            "gmf",
            "mlp",
            {},
            {"alpha": 2},
            r"train\.initial_weights\.options: NeuMF takes alpha, from 0 to 1, not {'alpha': 2}",
        ),
        ("gmf", "mlp", {}, {"beta": 1}, r"train\.initial_weights\.options: NeuMF takes alpha"),
    ],
)
def test_folders_that_do_not_fit(
    runs: Path, dataset: Path, gmf: str, mlp: str, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    wanted = _recipe(initial_weights={"sources": _folders(runs, gmf, mlp), "options": options})
    wanted = wanted.model_copy(update={"model": wanted.model.model_copy(update=changes)})
    with pytest.raises(ConfigError, match=message) as caught:
        initial_weights(wanted, Dataset.open(dataset))
    assert "\n" not in str(caught.value)
