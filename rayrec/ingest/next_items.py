"""The held-out events of a dataset of interactions, each with what its person had before it."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.ingest.dataset import KNOWN_SPLIT, Dataset
from rayrec.ingest.interactions import interaction_columns, num_item_rows
from rayrec.ingest.packed_rows import RowPacker, present
from rayrec.models.common.held_out_events import HeldOutEvents

_SCORES_AT_ONCE = 2**22
"""Scores of a batch of events, all items for each: 16 MB in float32."""
_BEFORE = {"test": ("validation",)}
"""Held-out splits whose events came before those of another."""


@dataclass(frozen=True, eq=False)
class NextItems:
    """One rank's people with held-out events, and their events in order of time.

    An event is a row with label 1 and a known item: drawn negatives are no events, and neither are those with unknown
    items (id 0), which no model can name. A person is a user or, if it is not in the vocabulary, the rows that share a
    `group`; those of group 0 may be anybody's and are left out. In memory are the events of this rank's people alone.
    """

    num_items: int
    """Items are 1 ... num_items."""
    persons: NDArray[np.int64]
    """(people,) ascending: see `HeldOutEvents`."""
    items: NDArray[np.integer[Any]]
    """(events,) one person after the other, each in order of time: of `train` and datasets before, of held-out splits
    before, of the split."""
    starts: NDArray[np.int64]
    """(people + 1,) where the events of each person begin in `items`."""
    held_out: NDArray[np.int64]
    """(held-out events,) the places of the split's events in `items`, ascending."""
    is_new: NDArray[np.bool_]
    """(people,) whether `train` and datasets before have no event."""
    not_chosen: dict[int, NDArray[np.integer[Any]]]
    """By person the items of rows that are no choices."""
    most_events: int
    """The largest number of held-out events of any rank; all ranks yield batches for that many."""

    @classmethod
    def read(cls, dataset: Dataset, split: str, *, rank: int = 0, world_size: int = 1) -> "NextItems":
        """Read the events of a split and those before it, one row group at a time.

        People are dealt to ranks in turn. Raises UserError if there is no such split, or a part is damaged.
        """
        found, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for of, item, label in _rows(dataset, split):
            own, number = np.unique(of[(label > 0.5) & (item > 0) & (of != 0)], return_counts=True)
            found.append(own)
            counts.append(number)
        persons, place = np.unique(np.concatenate(found), return_inverse=True)
        events = np.bincount(place, np.concatenate(counts), len(persons))
        own = persons[rank::world_size]
        of_ranks = np.bincount(np.arange(len(persons)) % world_size, events, world_size)

        # The events of each stage of time, of whose rows those of a person are in order.
        before = [name for name in _BEFORE.get(split, ()) if name in dataset.evaluation_splits]
        stages = [dataset.known_split, *before, split]
        found_events: list[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]] = []
        others: dict[int, list[int]] = defaultdict(list)
        for stage, name in enumerate(stages):
            for of, item, label in _rows(dataset, name):
                place = np.searchsorted(own, of)
                is_own = (np.append(own, 0)[place] == of) & (item > 0) & (of != 0)
                chosen = is_own & (label > 0.5)
                found_events.append((place[chosen], item[chosen], np.full(int(chosen.sum()), stage)))
                if name == KNOWN_SPLIT:
                    for person, its in zip(of[is_own & ~chosen].tolist(), item[is_own & ~chosen].tolist(), strict=True):
                        others[person].append(its)
        person, items, stage_of = (np.concatenate(column) for column in zip(*found_events, strict=True))
        order = np.argsort(person, kind="stable")
        person, items, stage_of = person[order], items[order], stage_of[order]
        return cls(
            num_items=num_item_rows(dataset.schema) - 1,
            persons=own,
            items=items,
            starts=np.searchsorted(person, np.arange(len(own) + 1)),
            held_out=np.flatnonzero(stage_of == len(stages) - 1),
            is_new=np.bincount(person[stage_of == 0], minlength=len(own)) == 0,
            not_chosen={of: np.array(items_of, items.dtype) for of, items_of in others.items()},
            most_events=int(of_ranks.max(initial=0)),
        )

    @property
    def events_at_once(self) -> int:
        """Return a size of batches with which the scores of all items for each event take little memory."""
        return max(1, _SCORES_AT_ONCE // max(self.num_items, 1))

    def batches(self, size: int | None = None) -> Iterator[HeldOutEvents]:
        """Yield the events of this rank, at most `size` (default: `events_at_once`) in a batch.

        All ranks yield as many batches; the last ones may be empty.
        """
        size = size or self.events_at_once
        for first in range(0, self.most_events, size):
            yield self._events(self.held_out[first : first + size])

    def _events(self, places: NDArray[np.int64]) -> HeldOutEvents:
        """Return the events at places in `items`."""
        person = np.searchsorted(self.starts, places, side="right") - 1
        persons, nothing = self.persons[person], np.empty(0, self.items.dtype)
        return HeldOutEvents(
            persons=persons,
            targets=self.items[places].astype(np.int64),
            histories=[self.items[start:end] for start, end in zip(self.starts[person], places, strict=True)],
            not_chosen=[self.not_chosen.get(one, nothing) for one in persons.tolist()],
            is_new=self.is_new[person],
        )


def item_counts(dataset: Dataset) -> NDArray[np.float32]:
    """Return how many events of `train` and datasets before each item has, (items,)."""
    rows = num_item_rows(dataset.schema)
    counts = np.zeros(rows, np.int64)
    for _, item, label in _rows(dataset, dataset.known_split):
        counts += np.bincount(item[label > 0.5], minlength=rows)
    return counts[1:].astype(np.float32)


def _rows(dataset: Dataset, split: str) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float32]]]:
    """Yield the rows of each row group of a split: their persons (0: unknown), items and labels, (n,) each."""
    schema, columns = dataset.schema, interaction_columns(dataset.schema)
    names = [feature.name for feature in schema.categorical]
    user, item = names.index(columns.user), names.index(columns.item)
    for rows in RowPacker.of(dataset).read_split(dataset.split(split)):
        users = rows.one_hot[user].astype(np.int64)
        groups = np.zeros(len(rows), np.int64) if schema.group is None else present(rows.group)
        yield np.where(users > 0, users, -groups), rows.one_hot[item], rows.label
