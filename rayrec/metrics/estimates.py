"""Metrics with standard errors, intervals of rates, and how far two distributions are apart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

MetricValues = dict[str, float | None]
"""Metrics of some rows by name; None where one is undefined."""
SplitMetrics = dict[str, MetricValues]
"""Metrics by split, then by name."""
NORMAL_95 = 1.959964
"""Standard errors on each side of a 95 % interval."""
_SMALLEST_SHARE = 1e-4


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


class SumsOfRows:
    """Sums of columns over rows, and of the products of two columns: ratios of sums and their errors follow from them.

    Rows are added in any order and by any process. Those of a unit, such as the rows of one display, were drawn
    together: a unit is one piece of evidence, and all of its rows must be in one call of `update`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.sums: NDArray[np.float64] = np.zeros(len(names))
        self.products: NDArray[np.float64] = np.zeros((len(names), len(names)))
        """Sum over units of the product of the units' sums of two columns."""

    def update(self, columns: "Tensor", units: "Tensor | None" = None) -> None:
        """Add (names, n) float64 columns of n rows, on any device; `units` (n,) are numbers from 0, else rows are."""
        self.sums += columns.sum(dim=1).cpu().numpy()
        if units is not None and columns.shape[1]:
            by_unit = columns.new_zeros(len(columns), int(units.max()) + 1)
            columns = by_unit.index_add_(1, units, columns)
        self.products += (columns @ columns.T).cpu().numpy()

    def add(self, other: "SumsOfRows") -> None:
        """Add the rows of another one."""
        self.sums += other.sums
        self.products += other.products

    def __getitem__(self, name: str) -> float:
        """Return the sum of a column."""
        return float(self.sums[self.names.index(name)])

    def ratio(self, over: str, under: str) -> Estimate | None:
        """Return the sum of one column by that of another with its standard error; None if the second one is 0."""
        if not self[under]:
            return None
        value = self[over] / self[under]
        return Estimate(value, self.error({over: 1.0, under: -value}) / self[under])

    def error(self, factors: Mapping[str, float]) -> float:
        """Return the standard error of the sum over rows of `factors` times the columns, if its expectation is 0.

        The infinitesimal jackknife (Efron 1982): the root of the sum over units of the squares.
        """
        by = np.array([factors.get(name, 0.0) for name in self.names])
        return math.sqrt(max(float(by @ self.products @ by), 0.0))


def wilson(rate: float, count: float) -> tuple[float, float]:
    """Return the 95 % interval of a rate that was observed in `count` independent rows (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    z2 = NORMAL_95**2 / count
    centre, half = rate + z2 / 2, NORMAL_95 * math.sqrt(rate * (1 - rate) / count + z2 / 4 / count)
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


def stability_index(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """Return the population stability index of two distributions over the same cells: the sum of (a - e) ln(a / e).

    `expected` and `actual`: (n,) shares, or counts, of each cell. Values below 0.1 are usually read as no change,
    values above 0.25 as a large one. Shares below 0.0001 count as that.
    """
    e, a = (np.maximum(counts / counts.sum(), _SMALLEST_SHARE) for counts in (expected, actual))
    return float(((a - e) * np.log(a / e)).sum())
