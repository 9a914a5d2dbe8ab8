"""What the best possible model reaches on generated rows: it knows each row's probability of a click."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayrec.common.files import write_json
from rayrec.config import Config

TRUTH_FILE = "truth.json"
BINS = 2**18


class RowsTruth(Config):
    """What the true probabilities reach on some rows."""

    rows: int
    positives: int
    best_auc: float | None
    """AUC of the true probabilities against the labels that were drawn; None where only one label occurs."""
    best_auc_error: float
    """`best_auc` is off by no more: half the share of (positive, negative) pairs that one histogram bin does not tell
    apart."""
    expected_auc: float
    """The same over all labels that could have been drawn: pairs weighted p_i (1 - p_j)."""
    best_log_loss: float
    """Mean log loss of the true probabilities against the labels, in nats."""
    expected_log_loss: float
    """Mean entropy of the true probabilities, in nats."""


class FileTruth(RowsTruth):
    """One generated file."""

    path: str
    """Relative to the folder of `truth.json`."""


class GeneratedTruth(RowsTruth):
    """`truth.json`, beside generated data: all rows, and each file's."""

    source: str
    seed: int
    files: tuple[FileTruth, ...]
    method: str = (
        "Labels are drawn from a known click model; on average no model ranks the rows better than the true "
        "probabilities do. AUC: of the true probabilities of all rows, from a histogram of "
        f"{BINS} equal bins, pairs within a bin counted half. Log loss: exact."
    )

    def save(self, folder: Path) -> None:
        write_json(folder / TRUTH_FILE, self.model_dump(mode="json"))


class TruthAccumulator:
    """Sums over rows that `RowsTruth` follows from, in constant memory."""

    def __init__(self) -> None:
        self._rows = 0
        self._positives = np.zeros(BINS)
        self._negatives = np.zeros(BINS)
        self._expected_positives = np.zeros(BINS)
        self._expected_negatives = np.zeros(BINS)
        self._log_loss = 0.0
        self._entropy = 0.0

    def add(self, probability: NDArray[np.float64], label: NDArray[np.bool_]) -> None:
        """Count n rows: their true probabilities, strictly between 0 and 1, and labels."""
        bins = np.minimum((probability * BINS).astype(np.int64), BINS - 1)
        np.add.at(self._positives, bins[label], 1.0)
        np.add.at(self._negatives, bins[~label], 1.0)
        np.add.at(self._expected_positives, bins, probability)
        np.add.at(self._expected_negatives, bins, 1.0 - probability)
        surprise_positive, surprise_negative = -np.log(probability), -np.log1p(-probability)
        self._rows += len(label)
        self._log_loss += float(np.where(label, surprise_positive, surprise_negative).sum())
        self._entropy += float((probability * surprise_positive + (1.0 - probability) * surprise_negative).sum())

    def result(self) -> RowsTruth:
        """What follows for the rows so far; at least one."""
        auc, error = _auc(self._positives, self._negatives)
        expected, _ = _auc(self._expected_positives, self._expected_negatives)
        assert expected is not None
        return RowsTruth(
            rows=self._rows,
            positives=int(self._positives.sum()),
            best_auc=auc,
            best_auc_error=error,
            expected_auc=expected,
            best_log_loss=self._log_loss / self._rows,
            expected_log_loss=self._entropy / self._rows,
        )


def _auc(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> tuple[float | None, float]:
    """AUC from weights by bin in ascending order of score, and the most by which it is off."""
    pairs = positives.sum() * negatives.sum()
    if pairs == 0.0:
        return None, 0.0
    below = np.cumsum(negatives) - negatives
    half_ties = 0.5 * (positives * negatives).sum()
    return float(((positives * below).sum() + half_ties) / pairs), float(half_ties / pairs)
