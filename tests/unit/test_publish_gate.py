"""The gate: what a new model must reach on held-out rows before it serves."""

import re
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from rayrec.config import PublishConfig
from rayrec.inspection.gate import LossComparison

ROWS = 4_000


def scores(seed: int, rows: int = ROWS, noise: float = 0.0, factor: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Labels of a known truth, and the truth's probabilities, blurred in their logits and multiplied."""
    random = np.random.default_rng(0)
    logits = random.normal(-1.0, 1.0, rows)
    labels = (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    blurred = logits + noise * np.random.default_rng(seed).normal(size=rows)
    return labels, np.minimum(factor / (1 + np.exp(-blurred)), 0.999).astype(np.float32)


def compare(labels: np.ndarray, weights: np.ndarray, probabilities: np.ndarray, serving: np.ndarray) -> LossComparison:
    return LossComparison.of(labels, weights, *(np.log(p) - np.log1p(-p) for p in (probabilities, serving)))


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
