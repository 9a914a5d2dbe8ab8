"""Measures the best possible model on generated rows, which knows each row's probability of a click."""

import numpy as np
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.metrics.auc import ScoreHistogram

TRUTH_FILE = "truth.json"
BINS = 2**18


class RowsTruth(Config):
    """Metrics of the true probabilities on some rows."""

    rows: int
    positives: int
    best_auc: float | None
    """AUC of the true probabilities against the labels that were drawn; None if all labels are the same."""
    best_auc_error: float
    """The largest error of `best_auc`: half the share of the (positive, negative) pairs within a histogram bin."""
    expected_auc: float
    """AUC over all labels that could have been drawn: pairs weighted p_i (1 - p_j)."""
    best_log_loss: float
    """Mean log loss of the true probabilities against the labels, in nats."""
    expected_log_loss: float
    """Mean entropy of the true probabilities, in nats."""


class GeneratedTruth(RowsTruth):
    """The content of `truth.json`, for all rows."""

    source: str
    seed: int
    method: str = (
        "Labels are drawn from a logistic model of hidden weights; on average no model ranks the rows better than its "
        f"probabilities do. AUC: of these probabilities, from a histogram of {BINS} equal bins, pairs within a bin "
        "counted half. Log loss: exact. Weights of rows are not counted."
    )


class TruthAccumulator:
    """Accumulates what `RowsTruth` is computed from, in constant memory."""

    def __init__(self) -> None:
        self._rows = 0
        self._drawn, self._expected = ScoreHistogram(BINS), ScoreHistogram(BINS)
        self._log_loss = 0.0
        self._entropy = 0.0

    def add(self, probability: NDArray[np.float64], label: NDArray[np.bool_]) -> None:
        """Count n rows: their true probabilities, strictly between 0 and 1, and labels."""
        bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
        np.add.at(self._drawn.positives, bins[label], 1.0)
        np.add.at(self._drawn.negatives, bins[~label], 1.0)
        np.add.at(self._expected.positives, bins, probability)
        np.add.at(self._expected.negatives, bins, 1.0 - probability)
        surprise_positive, surprise_negative = -np.log(probability), -np.log1p(-probability)
        self._rows += len(label)
        self._log_loss += float(np.where(label, surprise_positive, surprise_negative).sum())
        self._entropy += float((probability * surprise_positive + (1.0 - probability) * surprise_negative).sum())

    def result(self) -> RowsTruth:
        """Return what the true probabilities reach on the rows so far; at least one."""
        expected = self._expected.auc()
        assert expected is not None
        best = self._drawn.auc()
        return RowsTruth(
            rows=self._rows,
            positives=int(self._drawn.positives.sum()),
            best_auc=None if best is None else best.value,
            best_auc_error=self._drawn.error_bound(),
            expected_auc=expected.value,
            best_log_loss=self._log_loss / self._rows,
            expected_log_loss=self._entropy / self._rows,
        )
