"""Tables that are generated from a recipe: its columns, its values, and a truth that the labels follow."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import yaml

from jobs.generate import GenerateRequest, run
from rayrec.common.errors import ConfigError
from rayrec.common.plugins import SOURCES
from rayrec.common.progress import SilentProgress
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import load_recipe
from rayrec.sources.generated_files import TRUTH_FILE
from rayrec.sources.registry import preprocessing, source_of
from rayrec.sources.table.generator import GeneratedTable

FEATURES: list[dict[str, Any]] = [
    {"columns": "size", "kind": "numeric", "transforms": [{"op": "clip", "min": 30, "max": 48}, "standardize"]},
    {"columns": "shop", "kind": "categorical"},
    {"columns": "also", "kind": "categorical", "share": "shop"},
    {"columns": "colour", "kind": "categorical", "values": ["red", "blue, dark"]},
    {"columns": "page", "kind": "categorical", "cardinality": 40},
    {"columns": "words", "kind": "list", "separator": ","},
]


def _recipe(tmp_path: Path, label: Any = "bought", features: list[dict[str, Any]] = FEATURES, **source: Any) -> Path:
    content = {
        "source": {"kind": "table", "label": label, "features": features, **source},
        "model": {"kind": "wide_deep", "embedding_dim": 4, "mlp": [8]},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "recipe.yaml"


def _generate(tmp_path: Path, rows: int, *, name: str = "out", **options: Any) -> tuple[Path, dict[str, Any]]:
    recipe = options.pop("recipe", None) or _recipe(tmp_path)
    request = GenerateRequest(source="table", rows=rows, output=tmp_path / name, recipe=str(recipe), **options)
    request.check()
    details = run(request, SilentProgress()).details
    truth = json.loads((tmp_path / name / TRUTH_FILE).read_text())
    assert details["truth"].items() <= truth.items()
    return tmp_path / name / truth["path"], truth


def test_values_are_as_many_as_asked_for(tmp_path: Path) -> None:
    path, truth = _generate(tmp_path, 20_000, cardinality=["sh*=70", "words=9", "page=30"])
    rows = csv.read_csv(path, convert_options=csv.ConvertOptions(strings_can_be_null=True))
    assert truth["cardinality"] == {"shop": 70, "also": 70, "colour": 2, "page": 30, "words": 9}
    distinct = {name: set(rows[name].drop_null().to_pylist()) for name in rows.column_names}
    assert len(distinct["shop"]) == 70 and distinct["also"] == distinct["shop"]
    assert distinct["colour"] == {"red", "blue, dark"} and distinct["page"] == set(range(30))
    assert {word for words in distinct["words"] for word in words.split(",")} == {f"v{n}" for n in range(9)}
    assert 0 < rows["shop"].null_count < 2_000


def test_labels_follow_the_truth(tmp_path: Path) -> None:
    table = GeneratedTable(load_recipe(_recipe(tmp_path)), {"shop": 50}, 60_000, seed=8).rows
    chunks = list(table.chunks(60_000))
    probability, label = (np.concatenate([getattr(c, part) for c in chunks]) for part in ("probability", "label"))
    for low in (0.0, 0.2, 0.5):
        chosen = (probability >= low) & (probability < low + 0.2)
        assert label[chosen].mean() == pytest.approx(probability[chosen].mean(), abs=0.01)
    path, truth = _generate(tmp_path, 60_000, seed=8, cardinality=["shop=50"])
    assert csv.read_csv(path)["bought"].to_numpy().sum() == truth["positives"]
    assert truth["best_auc"] == pytest.approx(0.82, abs=0.03)


LABELS: dict[str, tuple[dict[str, Any], Callable[[Any], bool]]] = {
    "at least": ({"column": "stars", "at_least": 4}, lambda value: value >= 4),
    "equals": ({"column": "stars", "equals": ["sold", "other"]}, lambda value: value in ("sold", "other")),
    "missing": ({"column": "stars", "missing": 0}, lambda value: value is not None),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_by_a_condition(tmp_path: Path, name: str) -> None:
    condition, is_positive = LABELS[name]
    path, truth = _generate(tmp_path, 3_000, recipe=_recipe(tmp_path, condition))
    values = csv.read_csv(path)["stars"].to_pylist()
    assert sum(map(is_positive, values)) == truth["positives"] and 0 < truth["positives"] < 3_000


def test_roles_and_a_header_of_the_recipe(tmp_path: Path) -> None:
    names = ["shown", "junk", "visit", "shop", "size", "bought", "also", "colour", "page", "words", "weight"]
    roles: dict[str, Any] = {
        "time": {"column": "shown", "format": "s"},
        "group": "visit",
        "weight": "weight",
        "ignore": ["junk"],
    }
    recipe = _recipe(tmp_path, header=names, separator="\t", **roles)
    path, _ = _generate(tmp_path, 400, recipe=recipe)
    assert path.name == "table.tsv"
    options = csv.ReadOptions(column_names=names), csv.ParseOptions(delimiter="\t")
    rows = csv.read_csv(path, *options)
    times, visits = rows["shown"].to_numpy(), rows["visit"].to_numpy()
    assert (np.diff(times) > 0).all() and times[-1] - times[0] == pytest.approx(30 * 86_400, rel=0.01)
    assert (visits == np.arange(400) // 8).all() and rows["weight"].to_numpy().min() > 0
    assert rows["junk"].null_count == 400


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no recipe": ({"source": "table"}, "--recipe: missing; source 'table' has the columns that a recipe names"),
    "another source": ({"source": "table", "recipe": "dlrm-criteo-debug"}, "its source is 'criteo'"),
    "a layout of its own": ({"source": "criteo", "recipe": "dlrm-criteo-debug"}, "source 'criteo' has columns of its"),
    "cardinality": ({"source": "outbrain", "cardinality": ["a=3"]}, "source 'outbrain' has columns of its own"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_requests(tmp_path: Path, name: str) -> None:
    values, message = WRONG[name]
    with pytest.raises(ConfigError, match=message):
        GenerateRequest(rows=5, output=tmp_path / "out", **values).check()


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no such column": ({"cardinality": ["shopp=4"]}, {}, "--cardinality shopp=4: .* did you mean 'shop'"),
    "a number": ({"cardinality": ["size=4"]}, {}, "--cardinality size=4: no column of categories"),
    "no number": ({"cardinality": ["shop=many"]}, {}, "--cardinality shop=many: write it as COLUMN=N"),
    "none": ({"cardinality": ["shop=0"]}, {}, "--cardinality shop=0: write it as COLUMN=N"),
    "more than listed": ({"cardinality": ["colour=3"]}, {}, "column 'colour' has 2 values in the recipe"),
    "more than ids": ({"cardinality": ["page=41"]}, {}, "column 'page' has 40 values in the recipe"),
    "side tables": ({}, {"tables": {"shops": {"path": "shops.csv", "key": "shop"}}}, "source.tables: .*'shops'"),
    "events beside the log": (
        {},
        {"time": "at", "histories": {"views": {"by": "shop", "path": "views.csv", "take": ["count"]}}},
        "source.histories.views.path: events beside the log",
    ),
    "lists in text": (
        {},
        {"format": "delimited", "features": [{"columns": "words", "kind": "list"}]},
        "source.features.0.separator: missing",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables(tmp_path: Path, name: str) -> None:
    options, source, message = BAD[name]
    with pytest.raises(ConfigError, match=message):
        _generate(tmp_path, 10, recipe=_recipe(tmp_path, **source), **options)
    assert not (tmp_path / "out").exists()


def test_columns_of_events_are_written(tmp_path: Path) -> None:
    """What histories read is in the file, and what they give is not."""
    take = ["count", {"op": "mean", "column": "price"}, {"op": "last", "column": "brand"}]
    paid = {"by": ["shop", "city"], "where": {"column": "kind", "equals": ["pay", "buy"]}, "take": ["count"]}
    features = [*FEATURES, {"columns": "views_count", "kind": "numeric"}]
    histories = {"views": {"by": "user", "take": take}, "paid": paid}
    path, _ = _generate(tmp_path, 500, recipe=_recipe(tmp_path, features=features, time="at", histories=histories))
    rows = csv.read_csv(path)
    assert {"user", "city", "price", "brand", "kind", "at"} < {*rows.column_names}
    assert not {name for name in rows.column_names if name.startswith(("views_", "paid_"))}
    assert {*rows["kind"].to_pylist()} - {""} == {"pay", "buy", "other"}
    preprocessed = preprocessing(load_recipe(tmp_path / "recipe.yaml"), {None: [str(path)]}, tmp_path / "dataset")
    found = preprocessed.run(EmbeddedEngine(1)).found_keys
    assert found["views"].rows == 500 and 0 < found["paid"].found < 500


def test_every_source_generates() -> None:
    """A kind that the help offers must not fail whatever the request."""
    for kind in SOURCES.packages:
        source = source_of(kind)
        assert source.generates_from_recipe or source.generated is not None, kind


def test_lists_that_no_text_holds_are_in_parquet(tmp_path: Path) -> None:
    features: list[dict[str, Any]] = [
        {"columns": "words", "kind": "list"},
        {"columns": "face", "kind": "vector", "size": 3},
    ]
    path, _ = _generate(tmp_path, 50, recipe=_recipe(tmp_path, features=features))
    assert path.name == "table.parquet"
    rows = pq.read_table(path)
    assert pa.types.is_list(rows["words"].type) and {len(face) for face in rows["face"].to_pylist()} == {3}
