"""Rows with a model's scores: metrics of all and of slices, reliability as probabilities, curves over thresholds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayrec.config.evaluate import BINARY_METRICS
from rayrec.metrics.binary import BinaryMetrics, log_losses
from rayrec.metrics.estimates import Estimate, wilson

Floats = NDArray[np.float64]

SLICE_METRICS = ("auc", "normalized_entropy", "calibration")
"""What slices are compared by: log loss is left out, as it follows from the label rate of a slice."""
_LEAST = 10
"""Rows of each label, or positives predicted, below which a metric of a slice is left out: its error would be wrong."""
_BINS = 20
_CELLS = 1 << 16
_SHARES = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(9)])
_TIMES = np.searchsorted(_SHARES, (np.arange(_CELLS) + 0.5) / _CELLS).astype(np.uint8)
"""How often a unit counts by a uniform number of 16 bits: looking it up takes a tenth of the time of drawing it."""
_POINTS = 101
_LEAST_ROWS = 10
"""Rows above a threshold below which precision and lift are left out."""
_RESAMPLES = 200
_BAND = (0.025, 0.975)


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """n rows in ascending order of their scores. A row counts by its weight; rows of weight 0 are absent."""

    logit: Floats
    """(n,) scores: ln(p / (1 - p)) of the probability p."""
    label: Floats
    """(n,) 0 or 1."""
    weight: Floats
    """(n,) above 0."""
    unit: NDArray[np.int64]
    """(n,) numbers from 0. Rows of a unit, such as those of one display, were drawn together: each unit is one piece of
    evidence, however many rows it has."""
    row: NDArray[np.int64]
    """(n,) the place of each row among those that were given."""
    has_units: bool
    """Whether units were given; otherwise each row is one."""

    @classmethod
    def of(
        cls,
        logit: NDArray[Any],
        label: NDArray[Any],
        weight: NDArray[Any] | None = None,
        unit: NDArray[Any] | None = None,
    ) -> "ScoredRows":
        """Return the rows in any order: (n,) columns, units as any integers."""
        order = np.argsort(logit, kind="stable")
        if weight is not None:
            order = order[weight[order] > 0]
        units = np.arange(len(logit)) if unit is None else np.unique(unit, return_inverse=True)[1]
        return cls(
            logit=logit[order].astype(np.float64),
            label=label[order].astype(np.float64),
            weight=np.ones(len(order)) if weight is None else weight[order].astype(np.float64),
            unit=units[order],
            row=order,
            has_units=unit is not None,
        )

    def __len__(self) -> int:
        return len(self.logit)

    def take(self, places: NDArray[np.int64]) -> "ScoredRows":
        """Return some of the rows; `places` ascend."""
        return ScoredRows(
            logit=self.logit[places],
            label=self.label[places],
            weight=self.weight[places],
            unit=self.unit[places],
            row=self.row[places],
            has_units=self.has_units,
        )

    @cached_property
    def score(self) -> Floats:
        """Return probabilities, (n,)."""
        return torch.from_numpy(self.logit).sigmoid().numpy()

    @cached_property
    def losses(self) -> Floats:
        """Return -ln p(label) of each row, (n,)."""
        return log_losses(torch.from_numpy(self.logit), torch.from_numpy(self.label)).numpy()

    @cached_property
    def metrics(self) -> BinaryMetrics:
        """The accumulator of all rows."""
        metrics = BinaryMetrics(exact_auc_rows=len(self), auc_bins=2)
        logit, label, weight, unit = map(torch.from_numpy, (self.logit, self.label, self.weight, self.unit))
        metrics.update(logit, label, weight, unit if self.has_units else None)
        return metrics

    @cached_property
    def run(self) -> NDArray[np.int64]:
        """Return the number of each row's score among the distinct ones, (n,), from 0."""
        changes = np.zeros(len(self), np.int64)
        changes[1:] = self.logit[1:] != self.logit[:-1]
        return np.cumsum(changes)

    def class_weights(self, weight: Floats) -> tuple[Floats, Floats]:
        """Return the weight of positives and of negatives at each distinct score, if rows count by `weight` (n,)."""
        positives = sums(self.run, weight * self.label)
        return positives, sums(self.run, weight) - positives

    def resamples(self, count: int, seed: int) -> Iterator[Floats]:
        """Yield the weight (n,) of each row in each of `count` resamples of the units, by the Poisson bootstrap.

        Every unit counts a random number of times, of Poisson distribution with mean 1, so that rows need not be
        gathered anew (Chamandy et al. 2012, "Estimating uncertainty for massive data streams"). Rows of the same units
        get the same resamples.
        """
        units = int(self.unit.max()) + 1
        rng = np.random.default_rng([seed, units, count])
        for _ in range(count):
            yield self.weight * _TIMES[rng.integers(_CELLS, size=units, dtype=np.uint16)][self.unit]


def sums(place: NDArray[np.int64], weights: Floats, places: int = 0) -> Floats:
    """Return the sum of the weights at each place, of at least so many places."""
    return np.bincount(place, weights=weights, minlength=places).astype(np.float64, copy=False)


@dataclass(frozen=True)
class SliceMetrics:
    """The rows with one value of the column that divides all rows."""

    value: str
    rows: int
    positives: int
    metrics: dict[str, Estimate | None]

    def badness(self, metric: str) -> float | None:
        """Return how bad the slice is by a metric, where its error is most in its favour; None if it is undefined.

        Higher is worse: so a slice of few rows is not the worst by chance. Calibration counts by its factor from 1.
        """
        found = self.metrics[metric]
        if found is None:
            return None
        low, high = found.interval
        if metric == "auc":
            return -high
        if metric == "calibration":
            if found.value <= 0:
                return None
            width = (high - found.value) / found.value
            return abs(float(np.log(found.value))) - width
        return low


def slices(rows: ScoredRows, place: NDArray[np.integer], values: Sequence[str]) -> list[SliceMetrics]:
    """Return the rows divided by `place`, the number of its value in `values` for each row, in the order that they had
    before.

    Every row is in one slice; values without rows have none.
    """
    places = place[rows.row].astype(np.int64)
    # Stable, so that each slice is in the order of scores.
    order = np.argsort(places, kind="stable")
    cuts = np.searchsorted(places[order], np.arange(len(values) + 1)).tolist()
    found = []
    for value, (start, end) in zip(values, pairwise(cuts), strict=True):
        if end > start:
            own = rows.take(order[start:end])
            positives = int(own.label.sum())
            metrics = own.metrics.estimates()
            if min(positives, len(own) - positives) < _LEAST:
                metrics |= {name: None for name, metric in BINARY_METRICS.items() if metric.needs_both_labels}
            if max(positives, own.score.sum()) < _LEAST:
                metrics["calibration"] = None
            found.append(SliceMetrics(value, len(own), positives, metrics))
    return found


def by_score(rows: ScoredRows, count: int = 10) -> tuple[NDArray[np.int64], list[str]]:
    """Return the places and values, for `slices`, of `count` ranges of scores that hold about as many rows each."""
    edges = np.unique(np.quantile(rows.score, np.arange(1, count) / count))
    place = np.empty(int(rows.row.max()) + 1, np.int64)
    place[rows.row] = np.searchsorted(edges, rows.score, side="right")
    ends = ["0", *(f"{edge:.3g}" for edge in edges), "1"]
    return place, [f"{low} to {high}" for low, high in pairwise(ends)]


@dataclass(frozen=True)
class ReliabilityBin:
    """Rows that lie next to each other by score."""

    rows: int
    score: float
    """Their mean score."""
    rate: float
    """Their label rate."""
    low: float
    high: float
    """The 95 % interval of the rate."""


def reliability(rows: ScoredRows, bins: int = _BINS) -> list[ReliabilityBin]:
    """Return the bins of as many rows each, fewer where rows share a score, the lowest scores first."""
    edges = np.quantile(rows.score, np.linspace(0.0, 1.0, bins + 1))[1:-1]
    cuts = [0, *np.searchsorted(rows.score, np.unique(edges), side="right").tolist(), len(rows)]
    found = []
    for start, end in pairwise(cuts):
        if end > start:
            of_bin = rows.take(np.arange(start, end))
            score, rate = of_bin.metrics.sums.ratio("probability", "weight"), of_bin.metrics.label_rate
            assert score is not None and rate is not None
            found.append(ReliabilityBin(end - start, score.value, rate.value, *rate_interval(of_bin)))
    return found


def rate_interval(rows: ScoredRows) -> tuple[float, float]:
    """Return the 95 % interval of the label rate of at least one row: Wilson's, for as many independent rows as would
    have its standard error.
    """
    rate = rows.metrics.label_rate
    assert rate is not None
    count = (rows.weight.sum() ** 2) / (rows.weight**2).sum()
    if rows.has_units and rate.error > 0:
        count = min(count, rate.value * (1 - rate.value) / rate.error**2)
    return wilson(rate.value, float(count))


def expected_calibration_error(found: list[ReliabilityBin]) -> float:
    """Return the mean distance of the label rate from the score, over the rows of all bins."""
    return float(np.average([abs(b.rate - b.score) for b in found], weights=[b.rows for b in found]))


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
