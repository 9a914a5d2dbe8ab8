"""Metrics of parts of the rows, to find where a model is worse than its average says."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rayrec.evaluation.statistics.estimates import Estimate, measure
from rayrec.evaluation.statistics.scored_rows import ScoredRows

_LEAST = 10
"""Rows of each label, or positives predicted, below which a metric of a slice is left out: its error would be wrong."""


@dataclass(frozen=True)
class Slice:
    """The rows with one value of what they were divided by."""

    value: str
    rows: int
    positives: int
    metrics: dict[str, Estimate | None]


def slices(rows: ScoredRows, place: NDArray[np.integer], values: Sequence[str]) -> list[Slice]:
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
            metrics = measure(own)
            if min(positives, len(own) - positives) < _LEAST:
                metrics["auc"] = metrics["normalized_entropy"] = None
            if max(positives, own.score.sum()) < _LEAST:
                metrics["calibration"] = None
            found.append(Slice(value, len(own), positives, metrics))
    return found


def by_score(rows: ScoredRows, count: int = 10) -> tuple[NDArray[np.int64], list[str]]:
    """Return the places and values that divide rows into `count` parts of about as many rows by score, for `slices`."""
    edges = np.unique(np.quantile(rows.score, np.arange(1, count) / count))
    place = np.empty(int(rows.row.max()) + 1, np.int64)
    place[rows.row] = np.searchsorted(edges, rows.score, side="right")
    ends = ["0", *(f"{edge:.3g}" for edge in edges), "1"]
    return place, [f"{low} to {high}" for low, high in pairwise(ends)]


def badness(of_slice: Slice, metric: str) -> float | None:
    """Return how bad a slice is by a metric, where its error is most in its favour; None if the metric is undefined.

    Higher is worse: so a slice of few rows is not the worst by chance. Calibration counts by its factor from 1.
    """
    found = of_slice.metrics[metric]
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
