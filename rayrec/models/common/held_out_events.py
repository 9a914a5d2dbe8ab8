"""Events that a model did not see: of each the person, what the person chose, and what it had chosen before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ItemIds = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class HeldOutEvents:
    """n events, those of a person next to each other and in order of time. Item ids count from 1."""

    persons: NDArray[np.int64]
    """(n,) whose event it is: the id of the user, or, of people who are not in the vocabulary, a number below 0."""
    targets: NDArray[np.int64]
    """(n,) the items that were chosen."""
    histories: Sequence[ItemIds]
    """Of each event the items that its person chose before, oldest first, without those that are not in the vocabulary.
    """
    not_chosen: Sequence[ItemIds]
    """Of each event further items that its person had before: rows that `source.choices` leaves out."""
    is_new: NDArray[np.bool_]
    """(n,) whether the person has no event in `train` and in datasets before."""

    def __len__(self) -> int:
        return len(self.persons)

    def __getitem__(self, events: slice) -> "HeldOutEvents":
        """Return some events that follow each other."""
        return HeldOutEvents(
            self.persons[events],
            self.targets[events],
            self.histories[events],
            self.not_chosen[events],
            self.is_new[events],
        )

    @property
    def users(self) -> NDArray[np.int64]:
        """Return (n,) the ids of the users in their table: 0 of people who are not in the vocabulary."""
        return np.maximum(self.persons, 0)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Return (n,) the numbers of events of the histories."""
        return np.array([len(history) for history in self.histories], np.int64)

    def had_before(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the rows (m,) and items (m,) of what is no candidate: all that the person had before.

        An event's own item is a candidate even if the person had it before.
        """
        had = [np.concatenate(pair) for pair in zip(self.histories, self.not_chosen, strict=True)]
        rows = np.repeat(np.arange(len(had)), np.array([len(items) for items in had], np.int64))
        items = np.concatenate([np.empty(0, np.int64), *had])
        others = items != self.targets[rows]
        return rows[others], items[others]
