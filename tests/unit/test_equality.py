"""Comparisons of what two ways have written: what is the same passes, and the smallest difference is found by name."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayrec.config.execution import Execution
from rayrec.ingest.dataset import DatasetManifest
from rayrec.inspection import equality
from rayrec.inspection.equality import compare_datasets, compare_metrics, compare_scores, compare_weights
from tests.builders import make_dataset


@pytest.fixture
def datasets(tmp_path: Path) -> tuple[Path, Path]:
    """The same dataset twice, made by different means and at different times."""
    first, second = tmp_path / "first", tmp_path / "second"
    make_dataset(first, {"train": 60, "test": 20})
    shutil.copytree(first, second)
    made = Execution(on="ray", engine="Spark on Ray", workers=3, nodes=3, cpus=3)
    DatasetManifest.load(second).model_copy(update={"execution": made}).save(second)
    (first / "result.json").write_text("{}")
    return first, second


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def _reject(path: Path) -> None:
    DatasetManifest.load(path.parent).model_copy(update={"rejected": {"label": 1}}).save(path.parent)


def test_the_same_dataset(datasets: tuple[Path, Path]) -> None:
    assert compare_datasets(*datasets, "result.json").differences == ()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("test/part-00000.parquet", _append),
        ("schema.json", _append),
        ("manifest.json", _reject),
        ("train/part-00000.parquet", Path.unlink),
        ("train/part-00009.parquet", Path.touch),
    ],
)
def test_another_dataset(name: str, change: object, datasets: tuple[Path, Path]) -> None:
    for changed in datasets:
        other = changed.with_name("changed")
        shutil.copytree(changed, other)
        change(other / name)  # type: ignore[operator]
        pair = [other if folder == changed else folder for folder in datasets]
        assert compare_datasets(*pair, "result.json").differences == (name,)
        shutil.rmtree(other)


def _weights(**tables: list[float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(values) for name, values in tables.items()}


@pytest.mark.parametrize(
    ("other", "differences"),
    [
        (_weights(a=[0.5, float("nan")], b=[0.0]), ()),
        (_weights(a=[0.5, float("nan")], b=[-0.0]), ("b",)),
        (_weights(a=[0.5000001, float("nan")], b=[0.0]), ("a",)),
        (_weights(a=[0.5, float("nan")], b=[0.0, 0.0]), ("b",)),
        (_weights(a=[0.5, float("nan")], c=[0.0]), ("b", "c")),
    ],
)
def test_weights(other: dict[str, torch.Tensor], differences: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    runs = {Path("first"): _weights(a=[0.5, float("nan")], b=[0.0]), Path("second"): other}
    monkeypatch.setattr(equality, "_weights", runs.__getitem__)
    found = compare_weights(Path("first"), Path("second"), "a model")
    assert (found.what, found.differences) == ("a model: 3 weights in 2 tensors", differences)


@pytest.mark.parametrize(
    ("rows", "scores", "differences"),
    [
        ([4, 5, 6], [0.25, 0.5, 0.75], ()),
        ([4, 5, 6], [0.25, 0.51, 0.75], ()),
        ([4, 5, 6], [0.25, 0.53, float("nan")], ("row 1", "row 2")),
        ([4, 6, 5], [0.25, 0.5, 0.75], ("row",)),
        ([4, 5], [0.25, 0.5], ("row",)),
    ],
)
def test_scores(rows: list[int], scores: list[float], differences: tuple[str, ...], tmp_path: Path) -> None:
    for name, table in {
        "first": {"row": [4, 5, 6], "score": [0.25, 0.5, 0.75]},
        "second": {"row": rows, "score": scores},
    }.items():
        (tmp_path / name).mkdir()
        pq.write_table(pa.table(table), tmp_path / name / "part-00000.parquet")
    assert compare_scores(tmp_path / "first", tmp_path / "second", 0.02).differences == differences


@pytest.mark.parametrize(
    ("other", "differences"),
    [
        ({"test": {"auc": 0.7000001, "hr@3": None}}, ()),
        ({"test": {"auc": 0.71, "hr@3": None}}, ("test auc",)),
        ({"test": {"auc": None, "hr@3": 0.0}}, ("test auc", "test hr@3")),
        ({"test": {"auc": 0.7}}, ("test hr@3",)),
        ({"holdout": {"auc": 0.7, "hr@3": None}}, ("holdout auc", "holdout hr@3", "test auc", "test hr@3")),
    ],
)
def test_metrics(other: dict[str, dict[str, float | None]], differences: tuple[str, ...]) -> None:
    assert compare_metrics({"test": {"auc": 0.7, "hr@3": None}}, other, 1e-6).differences == differences
