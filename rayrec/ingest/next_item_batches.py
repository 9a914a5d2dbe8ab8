"""Epochs of windows of people's events, in which every event but the first is told from those before it.

A person's events are cut into windows, and each batch has windows of about the same length, so that little of it is
padding and its memory does not grow with the longest history. Which windows a batch has follows from seed and epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.interactions import (
    Positives,
    interaction_columns,
    num_item_rows,
    positive_pairs,
    rows_of_users,
)
from rayrec.ingest.loader import EpochLoader
from rayrec.ingest.negatives import ItemDistribution
from rayrec.ingest.order import BatchOrder
from rayrec.models.common.batch import NextItemBatch
from rayrec.random.tensors import TablePermutation, derive_key, random_bits, uniform_below

# Each use of the seed has another word in its key, so that no two uses draw the same numbers.
_WINDOWS, _BATCHES, _CANDIDATES = 4, 5, 6
MOST_COMPARED = 50_000
"""Items of a catalogue, all of which are candidates of every step."""
DRAWN = 2_048
"""Candidates of a step that are drawn from a larger catalogue, unless the recipe says how many."""


@dataclass(frozen=True, eq=False)
class Windows:
    """The events of a split, cut into windows of a person's events that follow each other."""

    items: Tensor
    """(events,) int32 or int64 ids from 1, a person's next to each other, oldest first."""
    starts: Tensor
    """(windows,) int64: the first event of each window."""
    lengths: Tensor
    """(windows,) int64: its events, at least 2."""
    contexts: Tensor
    """(windows,) int64: its first events, which are read but not told; at least 1."""

    @classmethod
    def of(cls, positives: Positives, length: int, earlier: Positives | None = None, batches: int = 1) -> "Windows":
        """Cut the positives of a split into windows of at most `length` events and the one after them.

        Every event but a person's first is told once, from the events before it in its window; of a long history the
        newest window tells the most. `earlier` events of the same people are read before them, and not told. A window
        tells no more than one of the `batches` of an epoch, none of which would have a window otherwise. Raises
        ConfigError if the rows of a user are not together, UserError if a first day has nothing to tell.
        """
        known = (positives.users > 0) & (positives.items > 0)
        users, items = positives.users[known], positives.items[known]
        of_user = rows_of_users(users, "model.length")
        told = of_user
        if earlier is not None:
            # All events by user, those of each in order of time.
            own = users.unique_consecutive()
            every = torch.cat([earlier.users[torch.isin(earlier.users, own)], users])
            items = torch.cat([earlier.items[torch.isin(earlier.users, own)], items])[every.argsort(stable=True)]
            _, of_user = every.unique(return_counts=True)
            told = told[own.argsort()]
        ends = of_user.cumsum(0)
        # Events that are told, and the windows that they take.
        told = torch.minimum(told, of_user - 1)
        if not told.any():
            if earlier is None or not len(items):
                raise UserError(
                    "split 'train': nobody has two events, so there is no next item to learn; give more rows"
                )
            # A day of people who all came for the first time teaches nothing, and is known from then on: one window, of
            # which nothing is told.
            two = torch.full((1,), 2, device=users.device)
            return cls(torch.cat([items, items[:1]]), torch.zeros_like(two), two, two)
        most = max(1, min(length, int(told.sum()) // batches))
        windows = -(-told // most)
        owner = torch.arange(len(of_user), device=users.device).repeat_interleave(windows)
        first_window = windows.cumsum(0) - windows
        # Windows of a person are counted from the newest one, which ends with the last event.
        newer = torch.arange(len(owner), device=users.device) - first_window[owner]
        last = ends[owner] - newer * most
        starts = torch.maximum(last - length - 1, (ends - of_user)[owner])
        first_told = torch.maximum(last - most, (ends - told)[owner])
        return cls(items, starts, last - starts, (first_told - starts).clamp(min=1))


def events_before(dataset: Dataset, device: torch.device) -> Positives:
    """Return the events of datasets that this one extends, those of a user in order of time; without those whose item
    the user has again in `train`, as an item counts once in a history.
    """
    items = num_item_rows(dataset.schema)
    every, own = (
        np.concatenate([np.empty(0, np.int64), *positive_pairs(dataset, split)])
        for split in (dataset.known_split, "train")
    )
    pairs = every[~np.isin(every, own)]
    return Positives(*(torch.from_numpy(ids).to(device) for ids in (pairs // items, pairs % items)))


@dataclass(frozen=True, eq=False)
class Candidates:
    """Items that next items are told from: all of the catalogue, or some that are drawn for each step by popularity."""

    items: int
    """Items of the catalogue."""
    drawn: int | None
    """How many are drawn with each step; None: all items are candidates."""
    distribution: ItemDistribution

    @classmethod
    def of(cls, items: Tensor, rows: int, wanted: int | None) -> "Candidates":
        """Prepare for the events `items` of a catalogue whose table has `rows` rows; `wanted`: `LossConfig.candidates`.

        Raises UserError if the catalogue has no item.
        """
        drawn = wanted if wanted is not None else None if rows - 1 <= MOST_COMPARED else DRAWN
        distribution = ItemDistribution.by_popularity(items, rows, exponent=1.0)
        return cls(rows - 1, None if drawn is None or drawn >= rows - 1 else drawn, distribution)

    def of_step(self, key: int, batch: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Return the items (C,) int32 of a batch of the epoch of `key`, and the logarithms (C,) of how often each is
        expected; None where it is once.
        """
        if self.drawn is None:
            return torch.arange(1, self.items + 1, dtype=torch.int32, device=device), None
        places = torch.arange(batch * self.drawn, (batch + 1) * self.drawn, device=device)
        points = uniform_below(random_bits(key, places), self.distribution.total).int()
        items = self.distribution.item_at(points)
        expected = self.distribution.masses(items).double() * (self.drawn / self.distribution.total)
        return items, expected.log().float()


class NextItemLoader(EpochLoader):
    """Batches of windows on the device, which each rank gathers by itself."""

    def __init__(self, windows: Windows, candidates: Candidates, schema: Schema, order: BatchOrder) -> None:
        """Load `order`, whose one row group stands for the events of `windows`: it says how many batches there are."""
        super().__init__(order)
        self._windows, self._candidates, self._schema = windows, candidates, schema
        self._device = windows.items.device
        # Windows in a random order are sorted by length, so that those of one length lie in a random order.
        key = derive_key(order.seed, _WINDOWS, order.epoch)
        shuffled = TablePermutation(len(windows.starts), key, self._device)(
            torch.arange(len(windows.starts), device=self._device)
        )
        by_length = windows.lengths[shuffled].argsort(stable=True)
        self._sorted = shuffled[by_length]
        # This line of windows is cut into batches that tell about as many events each, which come in a random order.
        lengths = windows.lengths[self._sorted].cpu()
        told = lengths - windows.contexts[self._sorted].cpu()
        before = told.cumsum(0) - told
        batches = order.num_batches
        batch_of = before * batches // max(1, int(told.sum()))
        self._bounds = torch.searchsorted(batch_of, torch.arange(batches + 1)).tolist()
        key = derive_key(order.seed, _BATCHES, order.epoch)
        self._turns = TablePermutation(batches, key, torch.device("cpu"))(torch.arange(batches)).tolist()
        sums = torch.cat([told.new_zeros(1), told.cumsum(0)])
        self._told = sums[self._bounds].diff().tolist()
        self._longest = [int(lengths[end - 1]) if end > start else 2 for start, end in self._ranges]
        self._key = derive_key(order.seed, _CANDIDATES, order.epoch)

    @property
    def rows_dropped(self) -> int:
        """Return 0: every event of the windows is in a batch."""
        return 0

    def row_count(self, batch: int) -> int:
        """Return the number of events that are told in the global batch."""
        return self._told[self._turns[batch]]

    def share(self, batch: int) -> float:
        """Return 1: batches tell about as many events each."""
        return 1.0

    def __iter__(self) -> Iterator[NextItemBatch]:
        for number in range(self._order.start_batch, self._order.num_batches):
            with self._waited_for():
                batch = self._batch(number)
            yield batch

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        return list(zip(self._bounds, self._bounds[1:], strict=False))

    def _batch(self, number: int) -> NextItemBatch:
        order, windows, device = self._order, self._windows, self._device
        turn = self._turns[number]
        start, end = self._bounds[turn : turn + 2]
        # Ranks take windows in turn, which are of about one length; one that has none more repeats the first unweighed.
        size, longest = max(1, -(-(end - start) // order.world_size)), self._longest[turn]
        own = self._sorted[start + order.rank : end : order.world_size]
        filled = len(own)
        padding = self._sorted[min(start, len(self._sorted) - 1)].expand(size - filled)
        own = torch.cat([own, padding])
        places = torch.arange(longest, device=device)
        last = windows.lengths[own].unsqueeze(1) - 1
        event_ids = windows.items[windows.starts[own].unsqueeze(1) + torch.minimum(places, last)]
        weights = ((places < last) & (places >= windows.contexts[own].unsqueeze(1) - 1)).float()
        weights[filled:] = 0.0
        candidates, log_counts = self._candidates.of_step(self._key, number, device)
        none = weights.new_zeros(len(candidates))
        return _batch(self._schema, event_ids, torch.cat([weights.view(-1), none]), candidates, log_counts)


def item_batch(schema: Schema, items: Tensor) -> NextItemBatch:
    """Return a batch that looks up items (n,), without any event."""
    return _batch(schema, items.new_empty((0, 0)), torch.zeros(len(items), device=items.device), items, None)


def _batch(
    schema: Schema, event_ids: Tensor, weight: Tensor, candidate_ids: Tensor, log_counts: Tensor | None
) -> NextItemBatch:
    # It takes a second to import, and who only reads pairs does without.
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    # Every item to look up is a bag of its own.
    ids = torch.cat([event_ids.view(-1), candidate_ids.to(event_ids.dtype)])
    sparse = KeyedJaggedTensor(
        [interaction_columns(schema).item],
        ids,
        lengths=torch.ones_like(ids),
        offsets=torch.arange(len(ids) + 1, dtype=ids.dtype, device=ids.device),
        stride=len(ids),
        length_per_key=[len(ids)],
        offset_per_key=[0, len(ids)],
    )
    return NextItemBatch(
        dense=weight.new_empty((len(ids), 0)),
        sparse=sparse,
        label=torch.ones_like(weight),
        weight=weight,
        event_ids=event_ids,
        candidate_ids=candidate_ids,
        log_counts=log_counts,
    )
