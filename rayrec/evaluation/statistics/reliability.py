"""Reliability of scores as probabilities: the label rate of rows with about the same score."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rayrec.evaluation.statistics.estimates import label_rate, rate_interval
from rayrec.evaluation.statistics.scored_rows import ScoredRows

_BINS = 20


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
            score = float(np.average(of_bin.score, weights=of_bin.weight))
            found.append(ReliabilityBin(end - start, score, label_rate(of_bin).value, *rate_interval(of_bin)))
    return found


def expected_calibration_error(found: list[ReliabilityBin]) -> float:
    """Return the mean distance of the label rate from the score, over the rows of all bins."""
    return float(np.average([abs(b.rate - b.score) for b in found], weights=[b.rows for b in found]))
