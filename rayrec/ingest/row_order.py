"""The order of the rows in a row group, which the tasks that read it compute too."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Each use of the seed begins its entropy with another word, so that no two uses draw the same numbers.
UNIT_ORDER, _ROW_ORDER = 1, 2


@dataclass(frozen=True)
class RowOrder:
    """Which rows a read of a row group takes, and in which order."""

    shuffle: bool
    """Whether rows are permuted, or groups if `whole_groups` is true."""
    whole_groups: bool
    """Whether a read extends to the end of its last row's group, and begins one row earlier, which tells whether its
    first row begins a group."""
    seed: int
    epoch: int

    def rows(
        self, unit: int, count: int, start: int, stop: int, group: NDArray[np.int64] | None
    ) -> NDArray[np.int64] | slice:
        """The rows of row group `unit` that a read of rows start ... stop - 1, counted in this order, takes.

        `count`: the rows of the row group. `group`: (count,) their group ids; needed with whole groups only.
        """
        order = self._order(unit, count, group)
        if self.whole_groups:
            assert group is not None
            ends = np.append(group_starts(group if order is None else group[order]), count)
            start, stop = max(0, start - 1), int(ends[np.searchsorted(ends, stop)])
        return slice(start, stop) if order is None else order[start:stop]

    def _order(self, unit: int, count: int, group: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """(count,) the permuted rows; None if rows keep their places."""
        if not self.shuffle:
            return None
        generator = generator_of(_ROW_ORDER, self.seed, self.epoch, unit)
        if not self.whole_groups:
            return generator.permutation(count)
        assert group is not None
        starts = group_starts(group)
        places = generator.permutation(len(starts))
        lengths = np.diff(starts, append=count)[places]
        return np.arange(count) + np.repeat(starts[places] - (np.cumsum(lengths) - lengths), lengths)


def group_starts(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where groups begin in a column of group ids in which the rows of each group follow each other."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(group)), np.bool_), group[1:] != group[:-1]]))


def generator_of(*entropy: int) -> np.random.Generator:
    """A generator that draws the same numbers for the same words on any machine."""
    return np.random.Generator(np.random.PCG64([value % 2**64 for value in entropy]))
