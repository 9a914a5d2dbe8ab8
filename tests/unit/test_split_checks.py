"""What is said of splits that measure little, or that differ from `train`."""

from pathlib import Path

import pytest

import rayrec
from rayrec.ingest.dataset import Dataset, DatasetManifest, FoundKeys, SplitInfo
from rayrec.inspection.split_checks import (
    class_warnings,
    describe_new_values,
    metric_warnings,
    split_notes,
    split_warnings,
)
from rayrec.recipes import Recipe

RANDOM = {"kind": "hash", "validation": 0.1, "test": 0.1}
LATEST = {"kind": "time", "validation": 0.1, "test": 0.1}


def manifest(split: dict[str, object], **of_splits: tuple[int, int]) -> DatasetManifest:
    """A manifest of splits by their rows and positives; `submission` has no labels."""
    source = {"kind": "table", "label": "click", "time": "at", "features": [{"columns": "*", "kind": "categorical"}]}
    content = {"name": "t", "source": source, "preprocess": {"split": split}, "model": {"kind": "dlrm"}}
    config = Recipe.model_validate(content).model_dump(mode="json")
    splits = {
        name: SplitInfo(rows=rows, positives=positives, parts=(), labelled=name != "submission")
        for name, (rows, positives) in of_splits.items()
    }
    return DatasetManifest(splits=splits, rejected={}, sources=(), config=config)


@pytest.mark.parametrize(
    ("split", "of_splits", "warned", "noted"),
    [
        (RANDOM, {"train": (8_000, 2_000), "validation": (1_000, 240), "test": (1_000, 265)}, [], []),
        (RANDOM, {"train": (8_000, 2_000), "validation": (0, 0), "test": (1_000, 250)}, ["validation"], []),
        (RANDOM, {"train": (8_000, 2_000), "validation": (1_000, 0), "test": (50, 50)}, ["validation", "test"], []),
        (RANDOM, {"train": (8_000, 40), "validation": (1_000, 9), "test": (1_000, 10)}, ["validation"], []),
        (RANDOM, {"train": (800, 796), "test": (100, 97)}, ["test"], []),
        (RANDOM, {"train": (800, 800), "test": (100, 80)}, ["train", "test"], []),
        (RANDOM, {"train": (8_000, 2_000), "test": (1_000, 310)}, ["test"], []),
        (LATEST, {"train": (8_000, 2_000), "test": (1_000, 310)}, [], ["test"]),
        # Beyond chance, but of no consequence where times differ.
        (LATEST, {"train": (8_000_000, 2_000_000), "test": (1_000_000, 260_000)}, [], []),
        (LATEST, {"train": (8_000, 2_000), "test": (100, 40)}, [], []),
        (LATEST, {"train": (8_000, 2_000), "submission": (1_000, 0)}, [], []),
    ],
)
def test_splits(
    split: dict[str, object], of_splits: dict[str, tuple[int, int]], warned: list[str], noted: list[str]
) -> None:
    made = manifest(split, **of_splits)
    for found, names in ((split_warnings(made), warned), (split_notes(made), noted)):
        assert [text.split("'")[1] for text in found] == names


def test_metrics_on_few_rows_of_a_class() -> None:
    metrics = {
        "validation": {"rows": 400.0, "positives": 3.0},
        "test": {"hr@10": 0.5},
        "late": {"rows": 5.0, "positives": 0.0},
    }
    assert [text.split("'")[1] for text in class_warnings(metrics)] == ["validation", "late"]


def test_models_that_a_simpler_one_beats_on_the_same_rows() -> None:
    metrics = {"validation": {"log_loss": 0.71}, "test": {"log_loss": 0.6}, "lists": {"hr@5": 0.2, "ndcg@5": 0.3}}
    baselines = {
        "validation": {"base rate": {"auc": 0.5, "log_loss": 0.69}, "other": {"log_loss": 0.1}},
        "test": {"base rate": {"auc": 0.5, "log_loss": 0.69}},
        "lists": {"popularity": {"hr@5": 0.25, "ndcg@5": 0.2}},
    }
    first, second = metric_warnings(metrics, baselines)
    assert "'validation'" in first and "0.7100" in first and "0.6900" in first
    assert "'lists'" in second and "0.2000" in second and "0.2500" in second


def test_the_past_tells_of_new_keys() -> None:
    """Of keys that most held-out rows have and `train` has not, a history tells."""
    known = {"user": FoundKeys(rows=100, found=14), "item": FoundKeys(rows=100, found=98)}
    said = describe_new_values("test", known, ["user", "item"])
    assert said == (
        "split 'test': train has not the 'user' of 86.0% of its rows, nor the 'item' of 2.0%; what the model knows of "
        "'user' helps few of them, but the past of 'user' tells of them"
    )
    assert "past" not in str(describe_new_values("test", known))


def test_the_past_of_new_people_tells_a_model_of_next_items(tmp_path: Path) -> None:
    rows = [
        f"{person},{(person * 7 + event) % 40},{1000 * person + event}" for person in range(60) for event in range(9)
    ]
    (tmp_path / "log.csv").write_text("\n".join(["who,what,at", *rows]) + "\n")
    names = {"source.user": "who", "source.item": "what", "source.timestamp": "at"}
    split = {"preprocess.split": {"kind": "time", "validation": 0.1, "test": 0.2}}
    for recipe, tells in (("sasrec", True), ("neumf-ml-1m-debug", False)):
        data = tmp_path / recipe
        rayrec.preprocess(recipe, tmp_path / "log.csv", data, set={**names, **split}, on="process", progress=False)
        (note,) = [note for note in split_notes(Dataset.open(data).manifest) if "'test'" in note]
        assert "'user' helps few of them" in note and ("the past of 'user' tells of them" in note) == tells
