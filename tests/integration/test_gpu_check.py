"""What `make gpu-check` runs of training on GPUs, in a small form on CPUs: two ranks with gloo."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from benchmarks.gpu_training import (
    SPEEDS,
    check_training,
    kinds,
    losses_of,
    measure_training,
    train_each,
    train_with_ray,
)
from rayrec.config.train import DenseOptimizerConfig, EmbeddingOptimizerConfig
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


def test_speeds_of_published_recipes(tmp_path: Path) -> None:
    """Their networks as they are, on few rows and tables of a hundred."""
    copies = {"train.sharding.default": "data_parallel"}  # a CPU has Adam for copies of tables alone
    speeds = [replace(s, batch=320, changes=copies if s.recipe.startswith("dcnv2") else {}) for s in SPEEDS]
    rows = measure_training(tmp_path, "cpu", 2, speeds, largest=100, steps=2)
    assert [row for row in rows if not row["ok"]] == []
    assert {row["recipe"] for row in rows} == {speed.recipe for speed in SPEEDS}
    assert all(row["steps alone, M/s"] > 0 and row["scoring, M/s"] > 0 for row in rows)
    assert sum("whole run, M/s" in row for row in rows) == len(SPEEDS)


def test_the_command_itself(tmp_path: Path) -> None:
    (row,) = train_with_ray(tmp_path, "cpu", workers=1)
    assert row["ok"], row
