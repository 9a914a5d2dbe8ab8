"""Area under the ROC curve: the probability that a random positive scores above a random negative, ties counting half.

`auc_of_rows` takes the scores themselves, `auc_of_cells` what lies in cells of them. Weighted rows count as that many.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.metrics.estimates import Estimate

# Scores beyond, at a probability of 2e-9 from 0 or 1, share the outermost cells of a histogram.
_LARGEST_LOGIT = 20.0
# Scores ranked at a time: bounds the memory for their ranks.
_PIECE = 1 << 22

Weights = NDArray[Any] | None
"""(n,) weights of rows above 0; None if all are 1."""


class ScoresOfClass:
    """The scores of one class, kept for sorting, with their weights and units."""

    def __init__(self) -> None:
        self._added: list[tuple[NDArray[np.float32], Weights, NDArray[np.int64] | None]] = []
        self.rows = 0

    def add(
        self, logits: NDArray[np.float32], weights: NDArray[np.float32], units: NDArray[np.int64] | None = None
    ) -> None:
        """Add rows of positive weight."""
        # Nearly always all weights are 1, and half the memory is saved.
        self._added.append((logits, weights if (weights != 1.0).any() else None, units))
        self.rows += len(logits)

    def extend(self, other: "ScoresOfClass") -> None:
        """Add the rows of another one."""
        self._added += other._added
        self.rows += other.rows

    @property
    def logits(self) -> NDArray[np.float32]:
        """Return the logits in the order of their arrival, (rows,)."""
        return np.concatenate([np.empty(0, np.float32), *(logits for logits, _, _ in self._added)])

    @property
    def weights(self) -> Weights:
        """Return the weights in the order of their arrival, (rows,); None if all are 1."""
        if all(weights is None for _, weights, _ in self._added):
            return None
        ones = (np.broadcast_to(np.float32(1.0), len(logits)) for logits, _, _ in self._added)
        return np.concatenate([w if w is not None else one for (_, w, _), one in zip(self._added, ones, strict=True)])

    @property
    def units(self) -> NDArray[np.int64] | None:
        """Return the unit of each row, (rows,); None if each row is one."""
        found = [units for _, _, units in self._added if units is not None]
        return np.concatenate(found) if found else None


class ScoreHistogram:
    """Weights of positives and negatives by cells of equal width over the logit; merging is adding."""

    def __init__(self, cells: int) -> None:
        self.positives = np.zeros(cells)
        self.negatives = np.zeros(cells)

    def add(self, scores: ScoresOfClass, *, positive: bool) -> None:
        target = self.positives if positive else self.negatives
        cells = len(target)
        scaled = (scores.logits.astype(np.float64) + _LARGEST_LOGIT) * (cells / (2 * _LARGEST_LOGIT))
        index = np.clip(scaled, 0, cells - 1).astype(np.int64)
        target += np.bincount(index, weights=scores.weights, minlength=cells)

    def auc(self) -> Estimate | None:
        """Return the AUC, where pairs within a cell count as tied, and its error as if all rows weighed 1."""
        value = auc_of_cells(self.positives, self.negatives)
        if value is None:
            return None
        squares = 0.0
        for own, others, sign in ((self.positives, self.negatives, 1), (self.negatives, self.positives, -1)):
            below = (np.cumsum(others) - others / 2) / others.sum()
            placement = below if sign > 0 else 1.0 - below
            squares += float((own * (placement - value) ** 2).sum() / own.sum() ** 2)
        return Estimate(value, squares**0.5)

    def error_bound(self) -> float:
        """Return how far the AUC of the scores themselves is from `auc` at most."""
        pairs = self.positives.sum() * self.negatives.sum()
        return float((self.positives * self.negatives).sum() / 2 / pairs) if pairs else 0.0


def auc_of_cells(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float | None:
    """Return the AUC from the weights of both classes in cells of ascending scores; None if a class is empty.

    Pairs within a cell count half, as if tied.
    """
    pairs = positives.sum() * negatives.sum()
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else None


def auc_of_rows(
    positives: NDArray[np.floating],
    negatives: NDArray[np.floating],
    positive_weights: Weights = None,
    negative_weights: Weights = None,
) -> float | None:
    """Return the AUC of scores in any order, exact up to the rounding of float64 sums; None if a class is empty."""
    if not len(positives) or not len(negatives):
        return None
    lower, below = _ascending(negatives, negative_weights)
    # Sorted, too, so that the search goes through memory in order.
    upper, up_to = _ascending(positives, positive_weights)
    won = 0.0
    for start in range(0, len(upper), _PIECE):
        wins = _weight_below(upper[start : start + _PIECE], lower, below)
        won += float(wins.sum() if up_to is None else wins @ np.diff(up_to[start : start + _PIECE + 1]))
    total_lower, total_upper = (float(len(s) if w is None else w[-1]) for s, w in ((lower, below), (upper, up_to)))
    return won / (total_lower * total_upper)


def auc_estimate(positives: ScoresOfClass, negatives: ScoresOfClass) -> Estimate | None:
    """Return the AUC with its standard error, that of DeLong et al. 1988, over units where they are known."""
    found = auc_influences(positives, negatives)
    return None if found is None else Estimate(found[0], float(np.sqrt((found[1] ** 2).sum())))


def auc_influences(positives: ScoresOfClass, negatives: ScoresOfClass) -> tuple[float, NDArray[np.float64]] | None:
    """Return the AUC, and the influence on it of each unit, else of each row, positives first; None if a class is
    empty.

    The influences of two models on the same rows tell the error of the difference of their AUCs.
    """
    value = auc_of_rows(positives.logits, negatives.logits, positives.weights, negatives.weights)
    if value is None:
        return None
    # Of a positive, the share of the negatives that it beats; of a negative, that of the positives that beat it.
    influences = []
    for own, others, sign in ((positives, negatives, 1), (negatives, positives, -1)):
        ascending, below = _ascending(others.logits, others.weights)
        total = float(len(ascending)) if below is None else float(below[-1])
        share = _weight_below(own.logits, ascending, below) / total
        weights = np.ones(own.rows) if own.weights is None else own.weights.astype(np.float64)
        influences.append(weights * ((share if sign > 0 else 1.0 - share) - value) / weights.sum())
    influence = np.concatenate(influences)
    if positives.units is not None and negatives.units is not None:
        influence = np.bincount(np.concatenate([positives.units, negatives.units]), weights=influence)
    return value, influence


def _ascending(scores: NDArray[Any], weights: Weights) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Return ascending scores, and the weight (n + 1,) of the first i of them; None if all weights are 1."""
    if weights is None:
        return np.sort(scores), None
    order = np.argsort(scores)
    return scores[order], np.concatenate([[0.0], np.cumsum(weights[order].astype(np.float64))])


def _weight_below(
    scores: NDArray[Any], ascending: NDArray[Any], below: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    """Return (n,) the weight of `ascending` below each of `scores`, with half the weight of tied ones."""
    ranks = np.searchsorted(ascending, scores, side="left"), np.searchsorted(ascending, scores, side="right")
    less, less_or_tied = ranks if below is None else (below[ranks[0]], below[ranks[1]])
    return (less + less_or_tied) / 2.0
