"""Area under the ROC curve: the probability that a random positive scores above a random negative, ties counting half.

Exact while the scores fit, from a histogram beyond. Weighted rows count as that many rows.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Scores beyond, at a probability of 2e-9 from 0 or 1, share the outermost bins.
_LARGEST_LOGIT = 20.0
# Positives ranked at a time: bounds the memory for their ranks.
_PIECE = 1 << 22


@dataclass(frozen=True)
class AucValue:
    value: float | None
    """The area under the ROC curve; None if all rows have the same label."""
    error_bound: float
    """The exact value is at most this far away."""


class Scores:
    """The scores of one class, kept for sorting."""

    def __init__(self) -> None:
        self._logits: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
        self._weights: list[NDArray[np.float32]] = [np.empty(0, np.float32)]
        self.rows = 0
        self.weighted = False
        """Whether any row has a weight other than 1."""

    def add(self, logits: NDArray[np.float32], weights: NDArray[np.float32]) -> None:
        """Add rows of positive weight."""
        is_weighted = bool((weights != 1.0).any())
        self._logits.append(logits)
        # Nearly always all weights are 1, and half the memory is saved.
        self._weights.append(weights if is_weighted else np.broadcast_to(np.float32(1.0), len(weights)))
        self.rows += len(logits)
        self.weighted |= is_weighted

    def logits(self) -> NDArray[np.float32]:
        """(rows,) in the order of their arrival."""
        return np.concatenate(self._logits)

    def weights(self) -> NDArray[np.float32]:
        """(rows,) in the order of their arrival."""
        return np.concatenate(self._weights)


class ScoreHistogram:
    """Weights of positives and negatives by bins of equal width over the logit; merging is adding."""

    def __init__(self, bins: int) -> None:
        self.positives = np.zeros(bins)
        self.negatives = np.zeros(bins)

    def add(self, scores: Scores, *, positive: bool) -> None:
        target = self.positives if positive else self.negatives
        bins = len(target)
        scaled = (scores.logits().astype(np.float64) + _LARGEST_LOGIT) * (bins / (2 * _LARGEST_LOGIT))
        index = np.clip(scaled, 0, bins - 1).astype(np.int64)
        target += np.bincount(index, weights=scores.weights(), minlength=bins)

    def auc(self) -> AucValue:
        """Return the AUC and its error bound; pairs within a bin count half, as if tied."""
        pairs = self.positives.sum() * self.negatives.sum()
        if pairs == 0:
            return AucValue(None, 0.0)
        below = np.cumsum(self.negatives) - self.negatives
        within = (self.positives * self.negatives).sum()
        above = (self.positives * below).sum()
        return AucValue(float((above + within / 2) / pairs), float(within / 2 / pairs))


def exact_auc(positives: Scores, negatives: Scores) -> AucValue:
    """Return the AUC from sorting both classes; exact up to the rounding of float64 sums."""
    if positives.rows == 0 or negatives.rows == 0:
        return AucValue(None, 0.0)
    lower, lower_weights = _sorted(negatives)
    upper, upper_weights = _sorted(positives)
    # below[i]: weight of the i lowest negatives.
    below = None if lower_weights is None else np.concatenate([[0.0], np.cumsum(lower_weights)])
    won = 0.0
    for start in range(0, len(upper), _PIECE):
        scores = upper[start : start + _PIECE]
        ranks = np.searchsorted(lower, scores, side="left"), np.searchsorted(lower, scores, side="right")
        less, less_or_tied = ranks if below is None else (below[ranks[0]], below[ranks[1]])
        wins = (less + less_or_tied) / 2.0
        won += float(wins.sum() if upper_weights is None else wins @ upper_weights[start : start + _PIECE])
    total_lower = float(len(lower)) if below is None else float(below[-1])
    total_upper = float(len(upper)) if upper_weights is None else float(upper_weights.sum())
    return AucValue(won / (total_lower * total_upper), 0.0)


def _sorted(scores: Scores) -> tuple[NDArray[np.float32], NDArray[np.float64] | None]:
    """Return ascending logits and their weights (None if all 1)."""
    logits = scores.logits()
    if not scores.weighted:
        return np.sort(logits), None
    order = np.argsort(logits)
    return logits[order], scores.weights()[order].astype(np.float64)
