"""What simpler models reach on held-out splits."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score

from rayrec.inspection.split_checks import baselines
from rayrec.inspection.table.evidence import Evidence, Regression
from rayrec.metrics.binary import BinaryMetrics
from tests.builders import make_dataset, make_recipe, users_and_items, write_dataset

METRICS = {"auc": 0.7, "log_loss": 0.5, "calibration": 1.0, "rows": 500.0}


def test_the_base_rate_is_that_of_train(tmp_path: Path) -> None:
    """The log loss is that of a model that answers every row with it."""
    dataset = make_dataset(tmp_path / "data", {"train": 2_000, "test": 500})
    train, test = dataset.split("train"), dataset.split("test")
    odds = math.log(train.positives / (train.rows - train.positives))
    labels = torch.zeros(test.rows)
    labels[: int(test.positives)] = 1
    constant = BinaryMetrics(10_000, 64)
    constant.update(torch.full((test.rows,), odds), labels, torch.ones(test.rows))
    (found,) = baselines(make_recipe(), dataset, {"test": METRICS, "progressive": METRICS})["test"].items()
    assert found == ("base rate", {"auc": 0.5, "log_loss": pytest.approx(constant.compute()["log_loss"], rel=1e-5)})


def test_weights_leave_the_auc_alone(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", {"train": 200, "test": 50}, weight=True)
    assert baselines(make_recipe(), dataset, {"test": METRICS}) == {"test": {"base rate": {"auc": 0.5}}}


def test_those_of_the_recipe_are_shown_where_the_model_has_them(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", {"train": 200, "test": 50})
    recipe = make_recipe(evaluate={"baselines": {"logistic regression": {"auc": 0.741, "hr@10": 0.3}}})
    found = baselines(recipe, dataset, {"test": {"auc": 0.7, "log_loss": None}})
    assert found == {"test": {"base rate": {"auc": 0.5}, "logistic regression": {"auc": 0.741}}}


def test_popularity_ranks_by_the_positives_of_train(tmp_path: Path) -> None:
    schema = users_and_items(9, 9, group="group", item_first=True)

    def table(rows: list[tuple[int, int, int]]) -> pa.Table:
        user, item, label = (np.array(column, np.int32) for column in zip(*rows, strict=True))
        columns = {"item": item, "user": user, "label": label.astype(np.float32), "group": user.astype(np.int64)}
        return pa.table(columns)

    train = [(1, 1, 1), (2, 1, 1), (3, 2, 1), (3, 3, 0), (4, 3, 0), (5, 3, 0)]
    # The popular item is the choice of two users, an item that train has not of the third.
    test = [(user, item, int(item == chosen)) for user, chosen in ((1, 1), (2, 1), (3, 8)) for item in (1, 2, 3, 8)]
    dataset = write_dataset(tmp_path / "data", schema, {"train": table(train), "test": table(test)})
    recipe = make_recipe(evaluate={"ranking": {"k": [1], "metrics": ["hr"]}})
    found = baselines(recipe, dataset, {"test": {"auc": 0.7, "hr@1": 0.9}})
    assert found == {"test": {"popularity": {"hr@1": pytest.approx(2 / 3)}}}


@pytest.mark.parametrize("rows", [4_000, 30_000])
def test_a_logistic_regression_is_measured_on_rows_that_it_was_not_fitted_to(rows: int) -> None:
    """It comes close to the truth with columns that say something, and to 0.5 with many values that say nothing."""
    rng = np.random.default_rng(3)
    number, category = rng.standard_normal(rows), rng.integers(0, 20, rows)
    odds = number + rng.standard_normal(20)[category]
    label = (rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.float64)
    evidence = Evidence(label)
    number[rng.random(rows) < 0.1] = np.nan
    best = roc_auc_score(label, odds)
    assert _auc(evidence.logistic_regression([category], [number])) == pytest.approx(best, abs=0.03)
    noise = [rng.integers(0, rows // 3, rows) for _ in range(5)]
    assert _auc(evidence.logistic_regression(noise, [])) == pytest.approx(0.5, abs=0.04)


def _auc(fitted: Regression | None) -> float:
    assert fitted is not None
    return fitted.reading.auc


@pytest.mark.parametrize("rows", [6_000, 30_000])
def test_pairs_that_say_more_together_are_found(rows: int) -> None:
    """Not those of columns that say something alone, of chance, or of values that never occur again."""
    rng = np.random.default_rng(5)
    user, shop, device, serial = (rng.integers(0, size, rows) for size in (200, 8, 3, 10**6))
    odds = rng.normal(size=200)[user] + rng.normal(size=3)[device] + 1.5 * rng.normal(size=(200, 8))[user, shop]
    evidence = Evidence((rng.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.float64))
    columns = [device, user, shop, serial]
    fitted = evidence.logistic_regression(columns, [])
    assert fitted is not None
    ((one, other, smoothing),) = fitted.clear_crosses(columns)
    assert (one, other) == (1, 2)
    assert 1 <= smoothing <= 10, "pairs differ by much, so few rows are needed to know theirs"


def test_a_logistic_regression_needs_rows_for_its_columns() -> None:
    rng = np.random.default_rng(3)
    label = rng.integers(0, 2, 200).astype(np.float64)
    columns = [rng.standard_normal(200) for _ in range(10)]
    evidence = Evidence(label)
    assert evidence.logistic_regression([], columns[:2]) is not None
    assert evidence.logistic_regression([], columns) is None
