"""What a preprocessing job refuses before Spark starts, and in which order it reads files."""

from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.config import RowsPreprocessConfig
from rayrec.preprocessing.inputs import resolve_inputs
from rayrec.recipes import Recipe
from rayrec.sources.registry import preprocessing, preprocessing_job
from tests.builders import make_recipe


def recipe(**preprocess: Any) -> Recipe:
    return make_recipe(preprocess={"kind": "rows", **preprocess})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    for name in ["day_0", "day_1", "day_10", "day_2", "train.tsv", "test.tsv"]:
        (folder / name).write_text("x\n")
    (folder / "empty").touch()
    (folder / "other").mkdir()
    (folder / "other" / "day_1.gz").write_text("x\n")
    return folder


DAY = {"kind": "day", "held_out_day": 10}
FILES = {"kind": "files"}
REFUSED: dict[str, tuple[dict[str, Any], dict[str | None, list[str]], type[UserError], str]] = {
    # settings; inputs; error; what it says
    "days: other names": (
        {"split": DAY},
        {None: ["day_*", "train.tsv"]},
        UserError,
        "train.tsv: preprocess.split.kind",
    ),
    "days: not held out": (
        {"split": {"kind": "day"}},
        {None: ["day_*"]},
        UserError,
        "held_out_day: no file day_23 among the 4 inputs .days 0 to 10.",
    ),
    "days: nothing else": ({"split": DAY}, {None: ["day_10"]}, UserError, "held-out day is the only input"),
    "days: twice": ({"split": DAY}, {None: ["day_*", "other/day_1.gz"]}, UserError, "the same day as"),
    "day_random": ({"order": "day_random"}, {None: ["train.tsv"]}, UserError, "preprocess.order: day_random needs"),
    "day_random by time": (
        {"order": "day_random", "split": {"kind": "time"}},
        {None: ["day_*"]},
        ConfigError,
        "preprocess.order: 'day_random' does not suit preprocess.split.kind 'time'",
    ),
    "files: no train": ({"split": FILES}, {"test": ["test.tsv"]}, ConfigError, "add train=PATH"),
    "files: a folder's name": (
        {"split": FILES},
        {"train": ["train.tsv"], "vocabulary": ["test.tsv"]},
        ConfigError,
        "not a name for a split",
    ),
    "files: twice": ({"split": FILES}, {"train": ["t*.tsv"], "test": ["test.tsv"]}, UserError, "for two splits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, folder: Path, tmp_path: Path) -> None:
    settings, inputs, error, message = REFUSED[case]
    paths = {split: [str(folder / path) for path in given] for split, given in inputs.items()}
    with pytest.raises(error, match=message) as caught:
        preprocessing(recipe(**settings), paths, tmp_path / "out")
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_days_are_read_in_their_order(folder: Path) -> None:
    paths = {None: [str(folder / name) for name in ("day_10", "day_0", "day_2")]}
    inputs = resolve_inputs(RowsPreprocessConfig(), paths)
    assert inputs.days == (0, 2, 10)
    assert [file.base_name for file in inputs.files] == ["day_0", "day_2", "day_10"]


def test_other_files_are_read_in_the_order_given(folder: Path) -> None:
    paths: dict[str | None, list[str]] = {None: [str(folder / "train.tsv"), str(folder / "day_0")]}
    inputs = resolve_inputs(RowsPreprocessConfig(), paths)
    assert [file.base_name for file in inputs.files] == ["train.tsv", "day_0"]
    assert inputs.days == (None, 0)


def test_side_tables_are_among_the_files_of_a_job(tmp_path: Path) -> None:
    """So another side table makes another dataset, and a killed job does not go on with what the old one gave."""
    (tmp_path / "log.csv").write_text("label,user\n1,a\n0,b\n")
    (tmp_path / "users.csv").write_text("user,age\na,1\nb,2\n")
    source = {
        "kind": "table",
        "label": "label",
        "tables": {"users": {"path": str(tmp_path / "users.csv"), "key": "user"}},
        "features": [{"columns": "users_age", "kind": "numeric"}, {"columns": "user", "kind": "categorical"}],
    }
    recipe = make_recipe(source=source, preprocess={"kind": "rows"})
    job = preprocessing_job(recipe, {None: [str(tmp_path / "log.csv")]})
    assert [file.base_name for file in job.files] == ["log.csv", "users.csv"]
