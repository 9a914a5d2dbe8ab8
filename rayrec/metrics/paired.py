"""Better, or lucky? The difference of two recipes on the same held-out rows, beside what chance makes of it.

Chance acts twice. The held-out rows are a sample: with others the difference would be another one. They are the same
for all runs, so resampling them moves both runs alike and only the difference matters (a paired bootstrap). And a run
is a sample, too: another seed gives other initial weights and another order, and so another model. No resampling of
rows shows that, so it is measured between runs that differ in nothing but their seed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rayrec.config.evaluate import MAIN_METRICS, higher_is_better
from rayrec.metrics.auc import auc_of_cells
from rayrec.metrics.scored_rows import ScoredRows, sums

_RESAMPLES = 200
_CELLS = 10_000
"""Ranges of scores within which a resample's AUC counts rows as tied, which changes it by less than a millionth."""
_CONFIDENCE = 0.95
_NEARLY_NORMAL = 1e4
"""Degrees of freedom from which on Student's distribution is the normal one, to four digits."""
_GRID = 100_001

Verdict = Literal["better", "worse", "no difference shown"]


@dataclass(frozen=True)
class Repeats:
    """Values of a metric of one recipe's runs, one run for each seed."""

    values: tuple[float, ...]
    """On the held-out rows."""
    resampled: NDArray[np.float64]
    """(resamples,) the mean over the runs on each resample of the rows; the resamples of all recipes are the same."""

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


@dataclass(frozen=True)
class Difference:
    """Difference of a metric between two recipes."""

    metric: str
    value: float
    """The second one's mean over its runs less the first one's."""
    row_error: float
    """The standard error from the sample of rows."""
    seed_error: float | None
    """The standard error from the sample of seeds; None if no recipe has two runs."""
    interval: tuple[float, float]
    """Where the difference of the recipes lies with a probability of 95 %: of other rows and, if known, other seeds."""
    verdict: Verdict
    """Value of the second recipe."""

    @property
    def is_beyond_rows(self) -> bool:
        """Return whether the sample of rows alone does not explain the difference."""
        return abs(self.value) > _t_quantile(math.inf) * self.row_error


def repeats_of(groups: Mapping[str, Sequence[ScoredRows]], seed: int = 0) -> dict[str, dict[str, Repeats]]:
    """Return, by metric and recipe, the values of its runs; all of them scored the same rows in the same order."""
    runs = [run for group in groups.values() for run in group]
    points = np.array([[_value(run, metric) for metric in MAIN_METRICS] for run in runs])
    places = [_places(run) for run in runs]
    resamples = zip(*(run.resamples(_RESAMPLES, seed) for run in runs), strict=True)
    drawn = np.array([[_of_resample(*one) for one in zip(runs, places, w, strict=True)] for w in resamples])
    drawn = drawn[np.isfinite(drawn).all(axis=(1, 2))]  # a class may be absent from a resample of few rows
    found: dict[str, dict[str, Repeats]] = {metric: {} for metric in MAIN_METRICS}
    start = 0
    for name, group in groups.items():
        own = slice(start, start := start + len(group))
        for number, metric in enumerate(MAIN_METRICS):
            values = tuple(points[own, number].tolist())
            found[metric][name] = Repeats(values, drawn[:, own, number].mean(axis=1))
    return found


def seed_variance(recipes: Sequence[Repeats]) -> tuple[float, int] | None:
    """Return the variance of a metric between runs of one recipe, over all recipes, and its degrees of freedom.

    None if no recipe has two runs.
    """
    freedom = sum(len(recipe.values) - 1 for recipe in recipes)
    if not freedom:
        return None
    squares = sum(float(np.square(np.array(recipe.values) - recipe.mean).sum()) for recipe in recipes)
    return squares / freedom, freedom


def compare_recipes(metric: str, first: Repeats, second: Repeats, seeds: tuple[float, int] | None) -> Difference:
    """Compare two recipes; `seeds` is the `seed_variance` of all recipes that are compared.

    The interval adds the squares of two: that of the normal distribution for the rows, and for the seeds Student's, as
    a variance of few runs is uncertain itself. What seeds change on these very rows is in both, so it is rather too
    wide than too narrow, also where two runs are close by luck. Without `seeds` no difference can be shown.
    """
    value = second.mean - first.mean
    by_rows = float(np.std(second.resampled - first.resampled, ddof=1))
    by_seeds, half = None, _t_quantile(math.inf) * by_rows
    if seeds is not None:
        variance, freedom = seeds
        by_seeds = math.sqrt(variance * (1 / len(first.values) + 1 / len(second.values)))
        half = math.hypot(half, _t_quantile(freedom) * by_seeds)
    verdict: Verdict = "no difference shown"
    if by_seeds is not None and abs(value) > half:
        verdict = "better" if (value > 0) == higher_is_better(metric) else "worse"
    return Difference(metric, value, by_rows, by_seeds, (value - half, value + half), verdict)


def _places(rows: ScoredRows) -> NDArray[np.int64]:
    """Return the number of each row's range of scores and class, in which resamples are counted, (n,)."""
    distinct = int(rows.run[-1]) + 1
    cell = rows.run if distinct <= _CELLS else rows.run * _CELLS // distinct
    return 2 * cell + (rows.label > 0)


def _value(rows: ScoredRows, metric: str) -> float:
    found = rows.metrics.estimates()[metric]
    return math.nan if found is None else found.value


def _of_resample(rows: ScoredRows, place: NDArray[np.int64], weight: NDArray[np.float64]) -> tuple[float, float]:
    """Return the `MAIN_METRICS` where each row has the weight of a resample."""
    counts = sums(place, weight, 2 * (int(place[-1]) // 2 + 1))
    auc = auc_of_cells(counts[1::2], counts[::2])
    return math.nan if auc is None else auc, float((rows.losses * weight).sum() / weight.sum())


@cache
def _t_quantile(freedom: float) -> float:
    """Return how many standard errors a 95 % interval of Student's distribution reaches to each side."""
    freedom = min(freedom, _NEARLY_NORMAL)
    # With t = sqrt(freedom) tan(angle), the density of the angle is proportional to cos(angle)^(freedom - 1).
    angle = np.linspace(0.0, math.pi / 2, _GRID)
    mass = np.cumsum(np.cos(angle) ** (freedom - 1))
    return float(math.sqrt(freedom) * math.tan(np.interp(_CONFIDENCE, mass / mass[-1], angle)))
