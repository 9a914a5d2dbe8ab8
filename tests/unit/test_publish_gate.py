"""The gate: what a new model must reach on held-out rows before it serves."""

import re
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from sklearn.metrics import log_loss

from rayrec.config import PublishConfig
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset, SplitInfo
from rayrec.inspection.gate import Comparison, _label_faults

ROWS = 4_000


def scores(seed: int, rows: int = ROWS, noise: float = 0.0, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a known truth, and the truth's probabilities, blurred in their logits and multiplied."""
    random = np.random.default_rng(0)
    logits = random.normal(-1.0, 1.0, rows)
    labels = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    blurred = logits + noise * np.random.default_rng(seed).normal(size=rows)
    return labels, np.minimum(factor / (1 + np.exp(-blurred)), 0.999).astype(np.float32)


def compare(labels: np.ndarray, weights: np.ndarray, probabilities: np.ndarray, serving: np.ndarray) -> Comparison:
    return Comparison.of(labels, weights, *(np.log(p) - np.log1p(-p) for p in (probabilities, serving)))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "the same": ({}, {}, None),
    "better": ({}, {"noise": 1.5}, None),
    "as good, by other errors": ({"noise": 0.3, "seed": 1}, {"noise": 0.3, "seed": 2}, None),
    "worse": ({"noise": 1.5}, {}, r"^log loss 0\.\d+ exceeds the serving model's 0\.\d+ by 0\.\d+ \(standard error"),
    "worse, but the rows are few": ({"noise": 0.8, "rows": 40}, {"rows": 40}, None),
    "too high": (
        {"factor": 1.6},
        {"factor": 1.6},
        r"^the probabilities add up to 1\.\d+ times the number of positives",
    ),
    "too low": ({"factor": 0.6}, {"factor": 0.6}, r"^the probabilities add up to 0\.\d+ times the number of positives"),
    "too high, but the rows are few": ({"factor": 1.5, "rows": 30}, {"factor": 1.5, "rows": 30}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_may_serve(case: str) -> None:
    new, serving, fault = CASES[case]
    labels, own = scores(**{"seed": 3, **new})
    _, before = scores(**{"seed": 4, **serving})
    comparison = compare(labels, np.ones_like(labels), own, before)
    assert comparison.loss == pytest.approx(log_loss(labels, own.astype(np.float64)))
    assert comparison.serving_loss == pytest.approx(log_loss(labels, before.astype(np.float64)))
    faults = comparison.faults(PublishConfig(), is_calibrated=True)
    if fault is None:
        assert faults == []
    else:
        assert len(faults) == 1 and re.match(fault, faults[0]), faults
    assert comparison.faults(PublishConfig(max_loss_increase=100, max_miscalibration=100), is_calibrated=True) == []


KNOWN: dict[str, tuple[float, int, bool]] = {
    "the same": (0.0, ROWS, False),
    "a little worse": (0.3, ROWS, False),
    "much worse": (3.0, ROWS, True),
    "worse, but the rows are few": (0.8, 30, False),
}


@pytest.mark.parametrize("case", KNOWN)
def test_what_is_forgotten_of_the_day_before(case: str) -> None:
    """Ranks count: another rate of labels is no fault."""
    noise, rows, is_fault = KNOWN[case]
    labels, own = scores(seed=1, rows=rows, noise=noise, factor=0.3)
    _, before = scores(seed=2, rows=rows)
    comparison = compare(labels, np.ones_like(labels), own, before)
    faults = comparison.faults_on_known_rows(PublishConfig())
    assert len(faults) == is_fault
    assert all(
        re.match(r"AUC on held-out rows .* was .* more than publish\.max_auc_loss \(0\.05\)$", f) for f in faults
    )
    assert comparison.faults_on_known_rows(PublishConfig(max_auc_loss=1)) == []


def test_swapped_labels_are_worse_than_chance() -> None:
    labels, own = scores(seed=1)
    for of_rows, is_fault in ((labels, False), (1 - labels, True)):
        comparison = compare(of_rows, np.ones_like(labels), own, own)
        for config, found in ((PublishConfig(), is_fault), (PublishConfig(min_auc=0), False)):
            faults = comparison.faults(config, is_calibrated=False)
            assert any("publish.min_auc" in fault for fault in faults) == found, faults


LABELS: dict[str, tuple[tuple[int, int], tuple[int, int], str | None]] = {
    # (rows, positives) of train and of the held-out rows; the day before has (8,000, 800) and (2,000, 200)
    "like the day before": ((8_000, 790), (2_000, 211), None),
    "half as many rows of a weekend": ((4_000, 700), (1_000, 190), None),
    "small": ((240, 20), (60, 4), None),
    "no positive": ((8_000, 0), (2_000, 0), "0 of the 10,000 labels of the day are 1, .* publish.min_positives"),
    "all positive": ((8_000, 8_000), (2_000, 2_000), "0 of the 10,000 labels of the day are 0, .*min_positives"),
    "one class held out": ((8_000, 900), (2_000, 0), "0 of the 2,000 labels of split 'test' are 1, .*min_positives"),
    "five rows": ((4, 2), (1, 1), "1 labelled rows were held out, fewer than publish.min_rows"),
    "ten times the rate": ((8_000, 7_800), (2_000, 1_950), "97.50% of the labels are 1, .*publish.max_rate_change"),
    "a tenth of the rate": ((8_000, 80), (2_000, 20), "1.00% of the labels are 1, .*publish.max_rate_change"),
    "a tenth of the rate by chance": ((90, 1), (30, 1), None),
}  # fmt: skip


@pytest.mark.parametrize("case", LABELS)
def test_labels_by_which_no_model_is_judged(case: str) -> None:
    train, test, fault = LABELS[case]
    now, before = _dataset(train, test), _dataset((8_000, 800), (2_000, 200))
    faults = list(_label_faults(PublishConfig(), now, before, "test", "test"))
    if fault is None:
        assert faults == []
    else:
        assert faults and re.match(fault, faults[0]), faults
    lax = PublishConfig(min_rows=0, min_positives=0, max_rate_change=None)
    assert list(_label_faults(lax, now, before, "test", "test")) == []


def _dataset(train: tuple[int, int], test: tuple[int, int]) -> Any:
    """What the gate reads of a dataset whose splits have these rows and positives."""
    splits = {n: SplitInfo(rows=r, positives=p, parts=()) for n, (r, p) in (("train", train), ("test", test))}
    schema = Mock(spec=Schema, interactions=None)
    return Mock(spec=Dataset, schema=schema, evaluation_splits=["test"], split=lambda name: splits[name])


def test_weights_count_as_that_many_rows() -> None:
    labels, own = scores(seed=1, noise=0.5)
    _, before = scores(seed=2, noise=0.2)
    weights = np.random.default_rng(5).integers(0, 3, ROWS).astype(np.float32)
    weighted = compare(labels, weights, own, before)
    times = weights.astype(int)
    repeated = [np.repeat(column, times) for column in (labels, own, before)]
    plain = compare(repeated[0], np.ones_like(repeated[0]), repeated[1], repeated[2])
    for name in ("loss", "serving_loss", "calibration"):
        assert getattr(weighted, name) == pytest.approx(getattr(plain, name), rel=1e-6)


def test_the_error_is_that_of_the_difference() -> None:
    """Drawn again, the difference scatters as much as its error says."""
    labels, own = scores(seed=1, noise=0.5)
    _, before = scores(seed=2, noise=0.5)
    random, differences = np.random.default_rng(7), []
    for _ in range(400):
        rows = random.integers(0, ROWS, ROWS)
        drawn = compare(labels[rows], np.ones(ROWS, np.float32), own[rows], before[rows])
        differences.append(drawn.loss - drawn.serving_loss)
    error = compare(labels, np.ones_like(labels), own, before).loss_difference_error
    assert np.std(differences) == pytest.approx(error, rel=0.15)


def test_without_positives_nothing_is_said_of_calibration() -> None:
    labels, own = np.zeros(50, np.float32), np.full(50, 0.9, np.float32)
    comparison = compare(labels, np.ones_like(labels), own, own)
    assert comparison.calibration is None
    assert comparison.faults(PublishConfig(), is_calibrated=True) == []
