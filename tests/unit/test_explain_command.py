"""`rayrec explain` on a model folder: what it writes, and what it says of mistakes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jobs.command import build_request, execute
from jobs.explain import COMMAND, ExplainRequest, describe
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import load_model
from tests.builders import write_dataset
from tests.model_folders import make_model_folder, make_raw_rows, write_table_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """model/, and data/ with a split `validation` and a split `test` of rows that the model scores well."""
    folder = tmp_path_factory.mktemp("explain")
    make_model_folder(folder / "model", multi_hot=1)
    predictor = load_model(folder / "model")
    tables = {}
    for number, split in enumerate(("validation", "test")):
        rows = predictor.encode(predictor.columns_of(make_raw_rows(predictor.schema, 600, seed=number)))
        labels = np.random.default_rng(number).random(600) < predictor.predict_encoded(rows)
        tables[split] = pa.Table.from_batches([rows]).append_column("label", pa.array(labels.astype(np.float32)))
    write_dataset(folder / "data", predictor.schema, tables)
    return folder


def ask(folder: Path, output: Path, **options: Any) -> Any:
    values = {"source": folder / "model", "data": folder / "data", "output": output, **options}
    return execute(COMMAND, build_request(ExplainRequest, values), SilentProgress())


def test_what_it_writes(folder: Path, tmp_path: Path) -> None:
    groups = ("numbers=I1,I2,I3", "lists=M1")
    result = ask(folder, tmp_path / "out", group=groups, feature=("C2", "I1", "M1"), permutations=2)
    figures = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (result.rows, list(result.metrics)) == (600, ["validation"])
    assert (figures["split"], figures["rows"], figures["rows_of_split"]) == ("validation", 600, 600)
    assert figures["metrics"] == result.metrics["validation"]
    names = [one["name"] for one in figures["importance"]]
    assert sorted(names) == sorted(["I1", "I2", "I3", "C1", "C2", "C3", "C4", "M1", "numbers", "lists"])
    changes = [one["worse_by"]["auc"]["value"] for one in figures["importance"]]
    assert changes == sorted(changes, reverse=True) and figures["most_important_by"] == "auc"
    assert {one["name"]: one["features"] for one in figures["importance"]}["numbers"] == ["I1", "I2", "I3"]
    for one in figures["importance"]:
        assert all(found["lower"] <= found["value"] <= found["upper"] for found in one["worse_by"].values())
    assert [found["feature"] for found in figures["partial_dependence"]] == ["C2", "I1", "M1"]
    listed = {point["name"] for point in figures["partial_dependence"][0]["points"]}
    assert "missing or not listed" in listed and listed - {"missing or not listed"} <= {f"C2-{i}" for i in range(33)}
    assert [line.split()[0] for line in describe(result).splitlines()[-len(names) :]] == names
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Dependence on numbers" in page and "Dependence on categories" in page


def test_by_default_the_most_important_are_shown(folder: Path, tmp_path: Path) -> None:
    ask(folder, tmp_path / "out", split="test", permutations=1)
    figures = json.loads((tmp_path / "out" / "report.json").read_text())
    shown = [found["feature"] for found in figures["partial_dependence"]]
    assert figures["split"] == "test" and shown == [one["name"] for one in figures["importance"]][:6]


MISTAKES: dict[str, tuple[dict[str, Any], type[UserError], str]] = {
    "a group without a name": ({"group": ("=I1",)}, ConfigError, "--group =I1: write NAME=FEATURE,FEATURE"),
    "a group without features": ({"group": ("a=",)}, ConfigError, "--group a=: write NAME=FEATURE,FEATURE"),
    "a group twice": ({"group": ("a=I1", "a=I2")}, ConfigError, "--group a=I2: the name 'a' is used twice"),
    "an unknown feature in a group": (
        {"group": ("a=I1,C22",)},
        ConfigError,
        "--group a: no feature 'C22'; did you mean 'C2'?",
    ),
    "a group named as a feature": (
        {"group": ("I1=I2,I3",)},
        ConfigError,
        "--group I1: this is the name of a feature; give another name",
    ),
    "an unknown feature": ({"feature": ("C22",)}, ConfigError, "--feature: no feature 'C22'; did you mean 'C2'?"),
    "no such split": ({"split": "train"}, UserError, "no rows in split 'train'; it has validation, test"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(folder: Path, tmp_path: Path, case: str) -> None:
    options, error, message = MISTAKES[case]
    with pytest.raises(error) as raised:
        ask(folder, tmp_path / "out", **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_vector_has_no_values_to_go_through(folder: Path, tmp_path: Path) -> None:
    write_table_model(tmp_path / "model")
    with pytest.raises(ConfigError, match="--feature vector: a vector, so there is no curve over its values; leave it"):
        ask(folder, tmp_path / "out", source=tmp_path / "model", feature=("vector",))


def test_another_model(folder: Path, tmp_path: Path) -> None:
    make_model_folder(tmp_path / "model", numeric=2, multi_hot=1)
    with pytest.raises(UserError, match="has a feature 'I3' that the model does not have"):
        ask(folder, tmp_path / "out", source=tmp_path / "model")
