"""Values that come and go: which value has a rank of a column on a day."""

import numpy as np
from numpy.typing import NDArray

from rayrec.random.splitmix64 import StatelessRandom

FEWEST_VALUES = 1_000
"""Columns with fewer values keep them: those of a country or a kind of device, not of an item or a campaign."""
RATE = 0.1
"""New values of a rank in a day at a drift of 1."""
TAKEOVER = 0.2
"""Share of the time until the next new value that a new one takes to get all the rows of its rank."""
GENERATIONS = 2**8
"""Values that a rank may have one after the other."""


def most_days(drift: float) -> float:
    """Return how many days can drift so much before a rank has had GENERATIONS values."""
    return 1 + (GENERATIONS - 1) // (RATE * drift) if drift else np.inf


class Turnover:
    """The values that have a rank of a large column one after the other, numbered as its generations from 0.

    On day 0 every rank has generation 0. Afterwards new generations come at equal intervals, at other times for each
    rank, and take over more of its rows from day to day: the values before them fade.
    """

    def __init__(self, seed: int, cardinalities: NDArray[np.float64], drift: float) -> None:
        """`cardinalities`: (columns,) the number of ranks of each column."""
        self._random = StatelessRandom(seed)
        self._columns = np.flatnonzero(cardinalities >= FEWEST_VALUES).tolist()
        self._num_columns = len(cardinalities)
        self._rate = RATE * drift

    def draw(
        self, rng: np.random.Generator, day: int, ranks: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the generations (n, columns) of values of these ranks, 0 if missing; and whether no earlier day had
        them.
        """
        generations, is_new = np.zeros_like(ranks), np.zeros(ranks.shape, np.bool_)
        if day == 0:
            return generations, is_new
        for column in self._columns:
            phases = self._phases(column, ranks[:, column])
            now = phases + self._rate * day
            newest = np.floor(now)
            has_newest = rng.random(len(ranks)) * TAKEOVER < now - newest
            generations[:, column] = np.maximum(newest - ~has_newest, 0.0)
            is_new[:, column] = has_newest & (newest > np.floor(phases + self._rate * (day - 1)))
        is_missing = ranks == 0
        generations[is_missing], is_new[is_missing] = 0, False
        return generations, is_new

    def newest(self, day: int, most: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the newest generation (columns, most) of the ranks 1 ... most, and whether no earlier day had it."""
        before, now = np.zeros((2, self._num_columns, most), np.int64)
        for column in self._columns:
            phases = self._phases(column, np.arange(1, most + 1))
            before[column], now[column] = phases + self._rate * (day - 1), phases + self._rate * day
        return now, now > before

    def _phases(self, column: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) in [0, 1): the share of the time until generation 1 that has passed on day 0."""
        return self._random.uniform(str(column), ranks)[:, 0]
