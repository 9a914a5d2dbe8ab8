"""What `make gpu-check` runs of training on GPUs, in a small form on CPUs: two ranks with gloo."""

import json
from importlib import metadata
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.gpu_check import run_sections, training_sections
from benchmarks.gpu_training import SPEEDS, check_training, kinds, losses_of, train_each, train_with_ray
from rayrec.config.optimizers import DenseOptimizerConfig, EmbeddingOptimizerConfig
from tests.builders import make_dataset
from tests.training_runs import Case, recipe


@pytest.mark.minutes
def test_every_way_to_train_is_checked(tmp_path: Path) -> None:
    rows = {row["kind"]: row for row in check_training(tmp_path, "cpu", workers=2)}
    assert [name for name, row in rows.items() if not row["ok"]] == [], rows
    on_gpu_alone = {kind.name for kind in kinds()} - rows.keys()
    assert on_gpu_alone == {
        "tables by adam", "dlrm in tf32", "dcnv2 in tf32", "compiled", "tables in host memory"
    }  # fmt: skip


def test_a_failure_hides_no_other_result(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", {"train": 500, "test": 50})
    good, bad = recipe(max_steps=2), recipe(max_steps=2, sharding={"memory_per_worker": "1KB"})
    cases = {"good": Case(tmp_path / "good", good), "bad": Case(tmp_path / "bad", bad)}
    errors = train_each(2, tmp_path / "data", "cpu", [cases])
    assert list(errors) == ["bad"] and "cannot hold them" in errors["bad"]
    assert list(losses_of(tmp_path / "good")) == [1, 2]


def test_no_optimizer_is_left_out() -> None:
    trained = [kind.changes for kind in kinds()]
    for config, section in (
        (EmbeddingOptimizerConfig, "embedding_optimizer"),
        (DenseOptimizerConfig, "dense_optimizer"),
    ):
        names = set(get_args(config.model_fields["kind"].annotation))
        assert {changes[section]["kind"] for changes in trained if section in changes} == names


@pytest.mark.minutes
def test_published_recipes_are_measured(tmp_path: Path) -> None:
    """Their networks as they are, on few rows and small tables; the results are there as each section ends."""
    sections = training_sections(tmp_path / "work", "cpu", 1, batch=320, largest=100, steps=2)
    recipes = [speed.recipe for speed in SPEEDS]
    chosen = {name: sections[name] for name in (*recipes, "memory", "streamed")}
    results = tmp_path / "results.json"
    results.write_text('{"notes": ["kept"], "sections": {"speed": {"rows": []}}}')
    assert run_sections(chosen, results) == 0, results.read_text()
    content = json.loads(results.read_text())
    assert content["notes"] == ["kept"] and list(content["sections"]) == ["speed", *chosen]
    for name in chosen:
        section = content["sections"][name]
        assert section["machine"]["versions"]["torch"] == metadata.version("torch") and section["seconds"] > 0
        rows = section["rows"]
        if name in recipes:
            assert [(row["recipe"], row["precision"]) for row in rows] == [(name, "bf16"), (name, "fp32")]
            assert all(row["steps alone, M/s"] > 0 for row in rows) and rows[0]["scoring, M/s"] > 0
            assert all(row["operator calls"] > row["of them outermost"] > 50 for row in rows)
        else:
            assert [row["recipe"] for row in rows] == recipes
            assert all(row["whole run, M/s"] > 0 for row in rows)


@pytest.mark.minutes
def test_the_command_itself(tmp_path: Path) -> None:
    (row,) = train_with_ray(tmp_path, "cpu", workers=1)
    assert row["ok"], row
