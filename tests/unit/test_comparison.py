"""Which runs have one recipe, what recipes differ in, and which runs can be compared."""

from pathlib import Path
from typing import Any

import pytest

from rayrec.common.errors import UserError
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.runs import ComparedRun, config_differences, group_by_recipe, require_same_rows
from rayrec.models.registry import build_model
from rayrec.training.run.folder import RunFolder
from tests.builders import make_dataset
from tests.training_runs import recipe

ROWS = {"train": 300, "validation": 100}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "data", ROWS)
    return tmp_path


def begin(folder: Path, name: str, data: str = "data", **train: Any) -> ComparedRun:
    """A run that was begun on a dataset."""
    dataset, made = Dataset.open(folder / data), recipe(**train)
    RunFolder.create(folder / name, made, dataset, build_model(made.model, dataset.schema, "meta").schema)
    return ComparedRun.open(folder / name, name)


def test_runs_that_differ_in_their_seed_have_one_recipe(folder: Path) -> None:
    other = {"dense_optimizer": {"kind": "sgd", "lr": 0.5}}
    runs = [begin(folder, "a1", seed=1), begin(folder, "b1", seed=1, **other), begin(folder, "a2", seed=2)]
    recipes = group_by_recipe(runs)
    assert [(one.name, [run.name for run in one.runs]) for one in recipes] == [("a1", ["a1", "a2"]), ("b1", ["b1"])]
    third = begin(folder, "c1", evaluations_per_epoch=2, **other)
    assert config_differences([*recipes, *group_by_recipe([third])]) == {
        "train.dense_optimizer.lr": {"a1": 0.1, "b1": 0.5, "c1": 0.5},
        "train.evaluations_per_epoch": {"a1": 0, "b1": 0, "c1": 2},
    }
    with pytest.raises(UserError, match=r"a3: has the same recipe and seed as .*a1; leave one out"):
        group_by_recipe([*runs, begin(folder, "a3", seed=1)])


def test_another_dataset_is_another_recipe(folder: Path) -> None:
    """Even if its held-out rows are the same."""
    make_dataset(folder / "more", {**ROWS, "train": 400}, seed=0)
    runs = [begin(folder, "a", seed=1), begin(folder, "b", "more", seed=2)]
    require_same_rows(runs, "validation")
    recipes = group_by_recipe(runs)
    assert len(recipes) == 2
    assert list(config_differences(recipes)) == ["dataset"]


@pytest.mark.parametrize(
    ("rows", "seed", "columns"),
    [({"train": 300, "validation": 90}, 0, {}), (ROWS, 1, {}), (ROWS, 0, {"weight": True})],
    ids=["fewer rows", "other labels", "weights"],
)
def test_other_held_out_rows_are_refused(
    folder: Path, rows: dict[str, int], seed: int, columns: dict[str, Any]
) -> None:
    make_dataset(folder / "other", rows, seed=seed, **columns)
    runs = [begin(folder, "a"), begin(folder, "b", "other")]
    with pytest.raises(UserError) as error:
        require_same_rows(runs, "validation")
    assert str(error.value) == (
        f"{folder / 'b'}: its dataset ({folder / 'other'}) has other rows in 'validation' than that of {folder / 'a'}; "
        "only metrics of the same held-out rows can be compared"
    )
