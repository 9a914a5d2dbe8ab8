"""A generated table goes the way of a user's own: every row is read, and a model comes near the truth."""

from pathlib import Path
from typing import Any

import pytest
import yaml

import rayrec

TIME = {"format": "%Y-%m-%d %H:%M", "zone": "Europe/Madrid"}
RECIPE: dict[str, Any] = {
    "source": {
        "kind": "table",
        "label": {"column": "answer", "equals": ["yes", "sure"], "missing": 0},
        "weight": "importance",
        "group": "visit",
        "candidate": "offer",
        "time": {"column": "shown", **TIME},
        "features": [
            {"columns": "price", "kind": "numeric", "transforms": [{"op": "log", "offset": 1}, "standardize"]},
            {"columns": "m*", "kind": "numeric", "transforms": [{"op": "fill", "value": "mean"}, "standardize"]},
            {"columns": "price", "kind": "buckets", "name": "price_range", "quantiles": 6},
            {"columns": "depth", "kind": "buckets", "boundaries": [3, 9]},
            {"columns": "who", "kind": "categorical"},
            {"columns": "where?", "kind": "categorical", "hash_buckets": 200},
            {"columns": "kind", "kind": "categorical", "values": ["x", "y, z"]},
            {"columns": "level", "kind": "categorical", "cardinality": 12},
            {"columns": "place", "kind": "categorical", "cardinality": "auto"},
            {"columns": "tags", "kind": "list", "separator": ";", "weights": "tag_weights"},
            {"columns": "friends", "kind": "list", "separator": ";", "share": "who", "pooling": "sum"},
            {"columns": "shown", "kind": "timestamp", **TIME},
            {"columns": "born", "kind": "timestamp", "derive": ["age", "weekday"]},
            {"columns": "face", "kind": "vector", "size": 3, "separator": " "},
            {"kind": "cross", "of": ["kind", "level"]},
        ],
        "rates": [{"keys": "city"}, {"keys": ["who", "level"]}],
    },
    "preprocess": {"split": {"kind": "time", "test": 0.2}, "frequency_limit": 2, "max_rejected_fraction": 0.0},
    "model": {"kind": "wide_deep", "embedding_dim": 8, "mlp": [32]},
    "train": {
        "global_batch_size": 256,
        "epochs": 3,
        "device": "cpu",
        "workers": 1,
        "embedding_optimizer": {"kind": "adagrad", "lr": 0.05},
        "dense_optimizer": {"kind": "adagrad", "lr": 0.05},
    },
}
CARDINALITY = {"who": 60, "where*": 30, "tags": 25, "city": 20, "place": 40, "offer": 500}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(RECIPE))
    return str(tmp_path / "mine.yaml")


@pytest.mark.parametrize("name", ["table.csv.gz", "table.jsonl", "table.jsonl.gz", "table.parquet"])
def test_every_row_is_read(tmp_path: Path, recipe: str, name: str) -> None:
    kind = {"csv": "delimited", "jsonl": "json_lines", "parquet": "parquet"}[name.split(".")[1]]
    changes = {"source.format": kind}
    made = rayrec.generate(
        "table",
        4_000,
        tmp_path / "raw",
        recipe=recipe,
        set=changes,
        cardinality=CARDINALITY,
        compress=name.endswith(".gz"),
        progress=False,
    )
    assert made.details["truth"]["path"] == name
    done = rayrec.preprocess(recipe, str(tmp_path / "raw" / name), tmp_path / "data", set=changes, progress=False)
    assert done.rows == 4_000, done.details


def test_a_model_comes_near_the_truth(tmp_path: Path, recipe: str) -> None:
    made = rayrec.generate(
        "table", 40_000, tmp_path / "raw", recipe=recipe, cardinality=CARDINALITY, seed=5, progress=False
    )
    best = made.details["truth"]["best_auc"]
    done = rayrec.run(recipe, input=str(tmp_path / "raw/table.csv"), output=tmp_path / "out", progress=False)
    reached = done.metrics["test"]["auc"]
    assert reached is not None and 0.9 < (reached - 0.5) / (best - 0.5) < 1.03, (reached, best)
