"""Curves of scored rows over all thresholds, with bands (ROC, precision and recall, lift), and their distribution."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.metrics.scored_rows import ScoredRows, sums

_POINTS = 101
_LEAST_ROWS = 10
"""Rows above a threshold below which precision and lift are left out."""
_RESAMPLES = 200
_BAND = (0.025, 0.975)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Points of a curve, and at each x the range that holds y with a probability of 95 %."""

    x: Floats
    y: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class ThresholdCurves:
    """Curves over thresholds on the score. Each point is that of one threshold, exactly."""

    roc: Curve
    """The share of the positives above the threshold, over that of the negatives."""
    precision_recall: Curve
    """The share of positives among the rows above the threshold, over the share of the positives that are above."""
    lift: Curve
    """How many times as frequent positives are above the threshold as in all rows, over the share of rows above."""
    average_precision: float
    """The sum over thresholds of precision times the rise of recall."""


@dataclass(frozen=True)
class _Shares:
    """Rows above each of k thresholds, in each of some samples: (samples, k) each."""

    recall: Floats
    """Share of the positives."""
    fallout: Floats
    """Share of the negatives."""
    rows: Floats
    """Share of the rows."""
    precision: Floats
    lift: Floats

    @classmethod
    def of(cls, positives: Floats, negatives: Floats) -> "_Shares":
        """Make the curves from the weights (samples, k) of both classes above the thresholds, of which the last
        is below all rows.
        """
        both = positives + negatives
        recall, fallout, share = (weights / weights[:, -1:] for weights in (positives, negatives, both))
        with np.errstate(invalid="ignore"):  # nothing may be above a threshold in a resample
            return cls(recall, fallout, share, precision=positives / both, lift=recall / share)


def threshold_curves(rows: ScoredRows, seed: int = 0) -> ThresholdCurves:
    """Return the curves of rows of both classes, at a few hundred thresholds, the highest first."""
    exact = _Shares.of(*(np.cumsum(w[::-1])[None] for w in rows.class_weights(rows.weight)))
    recall, precision = exact.recall[0], exact.precision[0]
    # Even steps of each share, as the one or the other curve needs them.
    even, last = np.linspace(0.0, 1.0, _POINTS), len(recall) - 1
    steps = [np.searchsorted(shares[0], even) for shares in (exact.recall, exact.fallout, exact.rows)]
    kept = np.unique(np.concatenate(steps).clip(0, last))
    drawn = _resampled(rows, np.searchsorted(kept, last - rows.run), len(kept), seed)
    # The rates of a few rows are noise.
    above = np.cumsum(np.bincount(rows.run)[::-1])[kept]
    few = int(np.searchsorted(above, min(_LEAST_ROWS, len(rows))))
    sure = kept[few:]
    return ThresholdCurves(
        roc=_with_band(exact.fallout[0, kept], recall[kept], drawn.fallout, drawn.recall),
        precision_recall=_with_band(recall[sure], precision[sure], drawn.recall[:, few:], drawn.precision[:, few:]),
        lift=_with_band(exact.rows[0, sure], exact.lift[0, sure], drawn.rows[:, few:], drawn.lift[:, few:]),
        average_precision=float((precision * np.diff(recall, prepend=0.0)).sum()),
    )


def score_histogram(rows: ScoredRows, bins: int = 50) -> tuple[Floats, Floats, Floats]:
    """Return the (bins + 1,) edges of bins of equal width, and the (bins,) share of the negatives and positives in
    each.

    The bins end at the highest of the scores but for one in a thousand, which the last bin takes in.
    """
    edges = np.linspace(0.0, max(float(np.quantile(rows.score, 0.999)), 1e-9), bins + 1)
    cell = np.minimum(np.searchsorted(edges, rows.score, side="right") - 1, bins - 1)
    shares = []
    for is_of_class in (1.0 - rows.label, rows.label):
        counts = sums(cell, rows.weight * is_of_class, bins)
        shares.append(counts / max(counts.sum(), 1e-300))
    return edges, shares[0], shares[1]


def _resampled(rows: ScoredRows, cell: NDArray[np.int64], cells: int, seed: int) -> _Shares:
    """Return what is above each of the thresholds at the ends of `cells` ranges of scores, the highest first."""
    positives, negatives = np.empty((2, _RESAMPLES, cells))
    place = 2 * cell + (rows.label > 0)
    for number, weight in enumerate(rows.resamples(_RESAMPLES, seed)):
        weights = sums(place, weight, 2 * cells)
        negatives[number], positives[number] = weights[::2], weights[1::2]
    # A class of few rows may be absent from a resample.
    drawn = (positives.any(axis=1)) & (negatives.any(axis=1))
    return _Shares.of(np.cumsum(positives[drawn], axis=1), np.cumsum(negatives[drawn], axis=1))


def _with_band(x: Floats, y: Floats, xs: Floats, ys: Floats) -> Curve:
    """Return the points with the band of resampled curves, (samples, k) of the same thresholds."""
    is_defined = np.isfinite(ys)
    heights = [np.interp(x, a[of], b[of]) for a, b, of in zip(xs, ys, is_defined, strict=True)]
    low, high = np.quantile(heights, _BAND, axis=0)
    return Curve(x, y, low, high)
