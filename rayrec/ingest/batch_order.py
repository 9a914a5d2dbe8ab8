"""The order of the rows in the batches of an epoch, decided before any row is read.

The row groups ("units") of a split, permuted by (seed, epoch), form one long sequence of rows. It is cut into S lanes.
Global batch b of n rows takes the next n*(s+1)//S - n*s//S rows of each lane s in turn, so it mixes rows of S distant
places, and all lanes end with the last batch. Rank r of W holds rows n*r//W ... n*(r+1)//W of the batch, in this order.

So the rows of global batch b depend only on the seed and the epoch. Several ranks need the same row group where there
are more ranks than lanes, where W does not divide S, and where a lane ends in the middle of one. One rank decodes it
for all, once an epoch. Everything is computed from arrays with one entry for each row group; a batch's slices are
computed when they are needed.

With whole groups the order is the same, but a slice stands for the groups that begin in it: it leaves out its first
rows if they belong to a group that began before, and extends to the end of its last group. So a batch has a few rows
more or less than otherwise, and every group that begins in a batch is in it, once and whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Required, TypedDict

import numpy as np
from numpy.typing import NDArray

from rayrec.ingest.dataset import PartInfo

Shuffle = Literal["none", "row_groups", "rows"]
# Each use of the seed begins its entropy with another word, so that no two uses draw the same numbers.
_UNIT_ORDER, _ROW_ORDER = 1, 2


@dataclass(frozen=True, eq=False)
class Units:
    """The row groups of a split that have rows, in the order of its rows; arrays have one entry for each."""

    files: tuple[str, ...]
    """Paths relative to the dataset folder."""
    file: NDArray[np.int32]
    """Index into `files`."""
    row_group: NDArray[np.int32]
    """Index within the file."""
    rows: NDArray[np.int64]

    @classmethod
    def of(cls, parts: Sequence[PartInfo]) -> "Units":
        places = [(file, group, rows) for file, part in enumerate(parts) for group, rows in enumerate(part.row_groups)]
        file, row_group, rows = np.array([place for place in places if place[2]], np.int64).reshape(-1, 3).T
        return cls(tuple(part.path for part in parts), file.astype(np.int32), row_group.astype(np.int32), rows)

    @classmethod
    def of_samples(cls, count: int) -> "Units":
        """Return one unit of `count` samples, which are computed from their places instead of read."""
        return cls((), np.zeros(1, np.int32), np.zeros(1, np.int32), np.array([count]))

    def __len__(self) -> int:
        return len(self.rows)


class EpochOptions(TypedDict, total=False):
    """Options of a reader of an epoch; fields of `BatchOrder`."""

    global_batch_size: Required[int]
    drop_last: Required[bool]
    world_size: int
    rank: int
    shuffle: Shuffle
    """The default is that of the ingest config."""
    seed: int
    epoch: int
    start_batch: int


class Read(NamedTuple):
    """Rows start ... stop - 1 of a row group, counted after the permutation of its rows (`RowOrder`)."""

    unit: int
    """Index into `Units`."""
    start: int
    stop: int


class Slice(NamedTuple):
    """Rows start ... stop - 1 of a read, which a batch takes."""

    lane: int
    """A lane's slices use its reads one after the other; when the next one begins, the previous one is used up."""
    read: int
    """Index into the reads of the rank."""
    start: int
    stop: int


@dataclass(frozen=True)
class RowOrder:
    """The rows that a read of a row group takes, in their order."""

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
        """Return the rows of row group `unit` that a read of rows start ... stop - 1, counted in this order, takes.

        `count`: the rows of the row group. `group`: (count,) their group ids; needed with whole groups only.
        """
        order = self._order(unit, count, group)
        if order is None:
            return self.rows_of_whole(count, start, stop, group)
        return order[self.rows_of_whole(count, start, stop, None if group is None else group[order])]

    def rows_of_whole(self, count: int, start: int, stop: int, group: NDArray[np.int64] | None) -> slice:
        """Return the places of the rows that `rows` gives in a whole row group that already is in this order, as is
        `group`.
        """
        if self.whole_groups:
            assert group is not None
            ends = np.append(group_starts(group), count)
            start, stop = max(0, start - 1), int(ends[np.searchsorted(ends, stop)])
        return slice(start, stop)

    def _order(self, unit: int, count: int, group: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """(count,) the permuted rows; None if rows keep their places."""
        if not self.shuffle:
            return None
        generator = _generator_of(_ROW_ORDER, self.seed, self.epoch, unit)
        if not self.whole_groups:
            return generator.permutation(count)
        assert group is not None
        starts = group_starts(group)
        places = generator.permutation(len(starts))
        lengths = np.diff(starts, append=count)[places]
        return np.arange(count) + np.repeat(starts[places] - (np.cumsum(lengths) - lengths), lengths)


def group_starts(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions at which groups begin in a column of ids that has the rows of each group together."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(group)), np.bool_), group[1:] != group[:-1]]))


def _generator_of(*entropy: int) -> np.random.Generator:
    """Return a generator that draws the same numbers for the same words on any machine."""
    return np.random.Generator(np.random.PCG64([value % 2**64 for value in entropy]))


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchOrder:
    """One epoch of a split for one rank: the rows of each batch, and the order in which to read them."""

    units: Units
    global_batch_size: int
    world_size: int = 1
    rank: int = 0
    read_streams: int = 16
    """The largest number of lanes; there are never more than row groups, or than rows in a batch."""
    shuffle: Shuffle = "rows"
    seed: int = 0
    epoch: int = 0
    drop_last: bool = True
    """Leave out the last global batch if it is not full."""
    start_batch: int = 0
    """The first batch that is read, to resume inside an epoch; rows that only earlier batches need are not read."""
    longest_group: int | None = None
    """The most rows of a group, if batches hold whole groups; None if they are cut at any row."""

    @cached_property
    def total_rows(self) -> int:
        """Number of rows of the split."""
        return int(self.units.rows.sum())

    @property
    def num_batches(self) -> int:
        """Batches of the epoch, including those before `start_batch`; the same on every rank."""
        return self._full_batches + (self._remainder > 0 and not self.drop_last)

    @property
    def rows_dropped(self) -> int:
        """Rows of the split that are in no batch of this epoch."""
        return self._remainder if self.drop_last else 0

    def row_count(self, batch: int) -> int:
        """Return the number of rows of the global batch over all ranks; with whole groups, about that many."""
        assert 0 <= batch < self.num_batches, batch
        return self.global_batch_size if batch < self._full_batches else self._remainder

    def local_rows(self, batch: int) -> int:
        """Return the number of rows of the batch on this rank; with whole groups, about that many."""
        start, stop = self._rank_window(self.row_count(batch))
        return stop - start

    def local_size(self, batch: int) -> int:
        """Return the number of rows of the batch on every rank after padding."""
        rows = -(-self.row_count(batch) // self.world_size)
        if self.longest_group is None:
            return rows
        # In each of its lanes, a rank may take rows up to the end of a group.
        first, stop = self._lanes_of_ranks(batch)
        return rows + int((stop - first).max()) * (self.longest_group - 1)

    def first_row(self, batch: int) -> int:
        """Return the place in the epoch of this rank's first row of the batch, if there is only one lane."""
        return batch * self.global_batch_size + self._rank_window(self.row_count(batch))[0]

    def slices(self, batch: int) -> Iterator[Slice]:
        """Yield the rows of `batch` on this rank, in order."""
        assert self.start_batch <= batch < self.num_batches, batch
        edges = self._edges(self.row_count(batch))
        window_start, window_stop = self._rank_window(int(edges[-1]))
        _, read_start, _, _, read_of = self._reads
        first, stop = self._lanes_of_ranks(batch)
        for lane in range(int(first[self.rank]), int(stop[self.rank])):
            edge, next_edge = int(edges[lane]), int(edges[lane + 1])
            # Before the last, partial batch a lane has given `batch` full quotas as well.
            quota = int(self._full_edges[lane + 1] - self._full_edges[lane])
            base = int(self._lane_starts[lane]) + batch * quota - edge
            position, end = base + max(window_start, edge), base + min(window_stop, next_edge)
            place = int(np.searchsorted(self._unit_starts, position, side="right")) - 1
            while position < end:
                taken = min(end, int(self._unit_starts[place + 1])) - position
                read = int(read_of[place + lane])
                offset = position - int(self._unit_starts[place]) - int(read_start[read])
                yield Slice(lane, read, offset, offset + taken)
                position += taken
                place += 1

    @property
    def num_reads(self) -> int:
        return len(self._reads[0])

    def read(self, index: int) -> Read:
        """Return one of the reads, which are in the order in which the batches from `start_batch` on first need
        them.
        """
        unit, start, stop, _, _ = self._reads
        return Read(int(unit[index]), int(start[index]), int(stop[index]))

    def reads_of(self, batch: int) -> range:
        """Return the reads that `batch` is the first to need, as indices."""
        first, stop = np.searchsorted(self._reads[3], [batch, batch + 1]).tolist()
        return range(first, stop)

    def decoded(self, *, shares: bool) -> list[tuple[int, int]]:
        """(batch, unit) of each row group that this rank decodes, once each, in the order of the batches.

        `shares`: one rank decodes a row group for all, and `batch` is the first in which any of them needs it.
        Otherwise this rank decodes all that it needs, and `batch` is its own first one.
        """
        batch, lane, place = self._first_needs(range(self.world_size) if shares else range(self.rank, self.rank + 1))
        if shares:
            # The ranks of a lane take turns.
            ranks = [self._ranks_of_lane(number) for number in range(self._num_lanes)]
            first, count = np.array([each.start for each in ranks]), np.array([max(1, len(each)) for each in ranks])
            is_own = first[lane] + place % count[lane] == self.rank
            batch, place = batch[is_own], place[is_own]
        return list(zip(batch.tolist(), self._unit_order[place].tolist(), strict=True))

    def takers(self, unit: int) -> int:
        """Return the number of other ranks that need a row group which this rank decodes for all."""
        return self._takers[unit]

    @property
    def row_order(self) -> RowOrder:
        """Order of the rows in the reads."""
        return RowOrder(self.shuffle == "rows", self.longest_group is not None, self.seed, self.epoch)

    @property
    def _full_batches(self) -> int:
        return self.total_rows // self.global_batch_size

    @property
    def _remainder(self) -> int:
        return self.total_rows % self.global_batch_size

    def _rank_window(self, rows: int, rank: int | None = None) -> tuple[int, int]:
        """Return the first row of a rank, by default this one, in a global batch of `rows`, and the row after its last
        one.
        """
        rank = self.rank if rank is None else rank
        return rows * rank // self.world_size, rows * (rank + 1) // self.world_size

    def _edges(self, rows: int) -> NDArray[np.int64]:
        """(lanes + 1): where each lane's rows start in a global batch of `rows`."""
        return rows * np.arange(self._num_lanes + 1, dtype=np.int64) // self._num_lanes

    def _lanes_of_ranks(self, batch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(ranks,) the first lane that each rank reads for the batch, and the one after the last."""
        rows = self.row_count(batch)
        edges, windows = self._edges(rows), rows * np.arange(self.world_size + 1, dtype=np.int64) // self.world_size
        return np.searchsorted(edges, windows[:-1], side="right") - 1, np.searchsorted(edges, windows[1:], side="left")

    @cached_property
    def _num_lanes(self) -> int:
        return max(1, min(self.read_streams, len(self.units), self.global_batch_size))

    @cached_property
    def _full_edges(self) -> NDArray[np.int64]:
        return self._edges(self.global_batch_size)

    @cached_property
    def _lane_starts(self) -> NDArray[np.int64]:
        """(lanes + 1): where each lane starts in the sequence."""
        return self._full_batches * self._full_edges + self._edges(self._remainder)

    @cached_property
    def _unit_order(self) -> NDArray[np.int64]:
        if self.shuffle == "none":
            return np.arange(len(self.units))
        return _generator_of(_UNIT_ORDER, self.seed, self.epoch).permutation(len(self.units))

    @cached_property
    def _unit_starts(self) -> NDArray[np.int64]:
        """(units + 1): where each unit, in the epoch's order, starts in the sequence."""
        return np.concatenate([[0], np.cumsum(self.units.rows[self._unit_order])])

    @cached_property
    def _reads(self) -> tuple[NDArray[np.int64], ...]:
        """(unit, start, stop, batch) of each read, in the order of the batches that need them first; and `read_of`.

        Entry `place + lane` of `read_of` is the read of a unit in a lane. A lane ends in the unit in which the next one
        begins, or before it, so no two have the same entry.
        """
        needs = [self._needs_of_lane(lane, range(self.rank, self.rank + 1)) for lane in range(self._num_lanes)]
        lane, place, batch, start, stop = np.concatenate(needs, axis=1)
        order = np.lexsort((place, lane, batch))
        read_of = np.full(len(self.units) + self._num_lanes, -1)
        read_of[(place + lane)[order]] = np.arange(len(order))
        return self._unit_order[place][order], start[order], stop[order], batch[order], read_of

    def _first_needs(self, ranks: range) -> NDArray[np.int64]:
        """(3, units): the batch, the lane and the place in the epoch's order of the first need of each unit, sorted.

        The units are those that some of `ranks`, which are neighbours, need.
        """
        needs = [self._needs_of_lane(lane, ranks)[[2, 0, 1]] for lane in range(self._num_lanes)]
        found = np.concatenate(needs, axis=1)
        found = found[:, np.lexsort(found[::-1])]
        return found[:, np.sort(np.unique(found[2], return_index=True)[1])]

    @cached_property
    def _takers(self) -> dict[int, int]:
        """Number of other ranks that need each unit that this rank decodes for all."""
        is_own = np.isin(self._unit_order, [unit for _, unit in self.decoded(shares=True)])
        own = np.flatnonzero(is_own)
        needed = np.zeros((len(own), self.world_size), np.bool_)
        for lane in range(self._num_lanes):
            if is_own[self._places_of_lane(lane)].any():
                for rank in self._ranks_of_lane(lane):
                    _, place, _, _, _ = self._needs_of_lane(lane, range(rank, rank + 1))
                    needed[np.isin(own, place), rank] = True
        needed[:, self.rank] = False
        return dict(zip(self._unit_order[own].tolist(), needed.sum(axis=1).tolist(), strict=True))

    def _ranks_of_lane(self, lane: int) -> range:
        """Return the ranks that take rows of a lane, in full batches or in the last one."""
        first, stop = self.world_size, 0
        for edges in (self._full_edges, self._edges(self._remainder)):
            rows, start, end = int(edges[-1]), int(edges[lane]), int(edges[lane + 1])
            if start < end:
                # Row i of a batch is the rank's that starts last at or before it.
                first = min(first, ((start + 1) * self.world_size - 1) // rows)
                stop = max(stop, (end * self.world_size - 1) // rows + 1)
        return range(first, stop)

    def _places_of_lane(self, lane: int) -> slice:
        """Return the places in the epoch's order of the units that a lane lies in."""
        start, stop = self._lane_starts[lane : lane + 2]
        first = int(np.searchsorted(self._unit_starts, start, side="right")) - 1
        return slice(first, max(first, int(np.searchsorted(self._unit_starts, stop, side="left"))))

    def _needs_of_lane(self, lane: int, ranks: range) -> NDArray[np.int64]:
        """(5, units): lane, place in the epoch's order, first batch that needs the unit, and the range of needed rows.

        The units are those of the lane that some of `ranks`, which are neighbours, need.
        """
        lane_start, lane_stop = (int(edge) for edge in self._lane_starts[lane : lane + 2])
        of_lane = self._places_of_lane(lane)
        first, stop = of_lane.start, of_lane.stop
        # Positions from here on are relative to the lane.
        unit_starts = self._unit_starts[first:stop] - lane_start
        begin = np.maximum(unit_starts, 0)
        end = np.minimum(self._unit_starts[first + 1 : stop + 1], lane_stop) - lane_start
        quota = int(self._full_edges[lane + 1] - self._full_edges[lane])

        batch = np.full(len(begin), self.num_batches, dtype=np.int64)
        needed_start, needed_stop = end.copy(), begin.copy()
        offset, count = self._window_in_lane(lane, ranks, self._full_edges)
        if count:
            # The ranks take [b * quota + offset, b * quota + offset + count) in each full batch b.
            batch_first = np.maximum((begin - offset - count) // quota + 1, self.start_batch)
            batch_last = np.minimum((end - offset - 1) // quota, self._full_batches - 1)
            hit = batch_first <= batch_last
            batch[hit] = batch_first[hit]
            needed_start[hit] = np.maximum(begin, batch_first * quota + offset)[hit]
            needed_stop[hit] = np.minimum(end, batch_last * quota + offset + count)[hit]
        offset, count = self._window_in_lane(lane, ranks, self._edges(self._remainder))
        if count and max(self.start_batch, self._full_batches) < self.num_batches:
            window_start = self._full_batches * quota + offset
            hit = (begin < window_start + count) & (end > window_start)
            batch[hit] = np.minimum(batch[hit], self._full_batches)
            needed_start[hit] = np.minimum(needed_start, np.maximum(begin, window_start))[hit]
            needed_stop[hit] = np.maximum(needed_stop, np.minimum(end, window_start + count))[hit]
        places, lanes = np.arange(first, stop), np.full(len(batch), lane)
        needs = np.stack([lanes, places, batch, needed_start - unit_starts, needed_stop - unit_starts])
        return needs[:, batch < self.num_batches]

    def _window_in_lane(self, lane: int, ranks: range, edges: NDArray[np.int64]) -> tuple[int, int]:
        """(offset, count) of the ranks' rows among those that a batch with these edges takes from the lane."""
        rows = int(edges[-1])
        start, stop = self._rank_window(rows, ranks[0])[0], self._rank_window(rows, ranks[-1])[1]
        offset = max(start, int(edges[lane])) - int(edges[lane])
        return offset, max(0, min(stop, int(edges[lane + 1])) - int(edges[lane]) - offset)
