"""Metrics of scored rows with standard errors, which need no resampling.

Sums are NumPy's own, not products of BLAS, whose threads wait for each other where other programs run.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.evaluation.statistics.scored_rows import ScoredRows, weighted_auc

NORMAL_95 = 1.959964
"""Standard errors on each side of a 95 % interval."""


@dataclass(frozen=True)
class Estimate:
    """A metric of a sample of rows."""

    value: float
    error: float
    """Its standard error."""

    @property
    def interval(self) -> tuple[float, float]:
        """Return where the metric of all such rows lies with a probability of 95 %."""
        return self.value - NORMAL_95 * self.error, self.value + NORMAL_95 * self.error


def measure(rows: ScoredRows) -> dict[str, Estimate | None]:
    """AUC, log loss, normalized entropy and calibration (`rayrec.evaluation.binary`); None where one is undefined."""
    weight = rows.weight.sum()
    positive = float((rows.weight * rows.label).sum())
    return {
        "auc": _auc(rows) if 0 < positive < weight else None,
        "log_loss": _log_loss(rows) if weight else None,
        "normalized_entropy": _normalized_entropy(rows) if 0 < positive < weight else None,
        "calibration": _calibration(rows) if positive else None,
    }


def label_rate(rows: ScoredRows) -> Estimate:
    """Return the weighted mean of the labels of at least one row."""
    value = float(np.average(rows.label, weights=rows.weight))
    return Estimate(value, rows.error_of(_of_mean(rows, rows.label, value)))


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a rate that was observed in `count` independent rows (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    z2 = NORMAL_95**2 / count
    centre, half = rate + z2 / 2, NORMAL_95 * math.sqrt(rate * (1 - rate) / count + z2 / 4 / count)
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


def rate_interval(rows: ScoredRows) -> tuple[float, float]:
    """Return the 95 % interval of the label rate: Wilson's, for as many independent rows as would have its standard
    error.
    """
    rate = label_rate(rows)
    count = (rows.weight.sum() ** 2) / (rows.weight**2).sum()
    if rows.has_units and rate.error > 0:
        count = min(count, rate.value * (1 - rate.value) / rate.error**2)
    return wilson(rate.value, float(count))


def _of_mean(rows: ScoredRows, values: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """(n,) the influence of each row on a weighted mean."""
    return rows.weight * (values - mean) / rows.weight.sum()


def _auc(rows: ScoredRows) -> Estimate:
    positives, negatives = rows.class_weights(rows.weight)
    value = weighted_auc(positives, negatives)
    # Of a positive, the share of the negatives that it beats; of a negative, that of the positives that beat it: the
    # placements of DeLong et al. 1988, whose error this is.
    beats = (np.cumsum(negatives) - negatives / 2) / negatives.sum()
    beaten = 1.0 - (np.cumsum(positives) - positives / 2) / positives.sum()
    placement = np.where(rows.label > 0, beats[rows.run], beaten[rows.run])
    of_class = np.where(rows.label > 0, positives.sum(), negatives.sum())
    return Estimate(value, rows.error_of(rows.weight * (placement - value) / of_class))


def _log_loss(rows: ScoredRows) -> Estimate:
    value = float(np.average(rows.losses, weights=rows.weight))
    return Estimate(value, rows.error_of(_of_mean(rows, rows.losses, value)))


def _normalized_entropy(rows: ScoredRows) -> Estimate:
    loss = float(np.average(rows.losses, weights=rows.weight))
    rate = float(np.average(rows.label, weights=rows.weight))
    entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
    slope = math.log((1 - rate) / rate)
    influence = _of_mean(rows, rows.losses, loss) - loss / entropy * slope * _of_mean(rows, rows.label, rate)
    return Estimate(loss / entropy, rows.error_of(influence / entropy))


def _calibration(rows: ScoredRows) -> Estimate:
    positive = float((rows.weight * rows.label).sum())
    value = float((rows.weight * rows.score).sum()) / positive
    return Estimate(value, rows.error_of(rows.weight * (rows.score - value * rows.label) / positive))
