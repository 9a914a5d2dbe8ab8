"""The order of the rows of an epoch, decided before any row is read: from seed and epoch to global batches, to ranks.

1. The row groups of a split, permuted by seed and epoch, form one long sequence of rows.
2. The sequence is cut into L lanes, 16 by default. A global batch of n rows takes the next rows of every lane, from
   lane s those from n*s//L to n*(s+1)//L, so it mixes rows of L distant places, and all lanes end with the last batch:

       sequence   |  lane 0       |  lane 1       |  lane 2       |
       batch 0    |##             |##             |##             |
       batch 1    |  ##           |  ##           |  ##           |

3. Rank r of W takes rows n*r//W to n*(r+1)//W of the batch. These lie in the lanes from r*L//W to (r+1)*L/W.

So the rows of a global batch depend on seed and epoch alone, never on the number of workers. Several ranks need the
same row group where W does not divide L, as all beyond 16 workers do, and where a lane ends inside a row group. One of
them decodes it for all (`Need.decoder`), so a row group is decoded once an epoch.

With whole groups (lists of rows that a loss compares) the order is the same, but a slice of rows stands for the groups
that begin in it. So a batch has some rows more or less, and every group is in one batch of one rank, as a whole.
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
_ROW_GROUP_ORDER, _ROW_ORDER = 1, 2


class RowGroup(NamedTuple):
    """A row group of a Parquet part."""

    path: str
    """The part, relative to the dataset folder."""
    number: int
    """The row group's number in the part."""
    rows: int

    @classmethod
    def of_samples(cls, count: int) -> "RowGroup":
        """Return one row group that stands for `count` samples, which are computed from their places, not read."""
        return cls("", 0, count)


def row_groups_of(parts: Sequence[PartInfo]) -> list[RowGroup]:
    """List the row groups of a split that have rows, in the order of the split's rows."""
    return [RowGroup(part.path, n, rows) for part in parts for n, rows in enumerate(part.row_groups) if rows]


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


class Slice(NamedTuple):
    """Rows start ... stop - 1 of a row group, counted in the order of `RowOrder`."""

    row_group: int
    """Index into `BatchOrder.row_groups`."""
    start: int
    stop: int


class Need(NamedTuple):
    """A row group that a rank needs in an epoch."""

    row_group: int
    """Index into `BatchOrder.row_groups`."""
    first_batch: int
    last_batch: int
    """The rank can forget the row group after this batch."""
    decoder: int
    """The rank that decodes it for all."""
    ranks: range
    """All ranks that need it, the decoder among them."""


@dataclass(frozen=True)
class RowOrder:
    """The order of the rows inside each row group."""

    shuffle: bool
    """Whether rows are permuted, or groups if `whole_groups` is true."""
    whole_groups: bool
    seed: int
    epoch: int

    def rows(self, row_group: int, count: int, group: NDArray[np.int64] | None) -> NDArray[np.int64] | slice:
        """Return the numbers of a row group's rows, 0 ... count - 1, in their order.

        `group`: (count,) the group ids of the rows; needed with whole groups only.
        """
        if not self.shuffle:
            return slice(0, count)
        generator = _generator_of(_ROW_ORDER, self.seed, self.epoch, row_group)
        if not self.whole_groups:
            return generator.permutation(count)
        # Groups change places, their rows stay together: each row moves as far as the first one of its group.
        assert group is not None
        starts = group_starts(group)
        places = generator.permutation(len(starts))
        lengths = np.diff(starts, append=count)[places]
        return np.arange(count) + np.repeat(starts[places] - (np.cumsum(lengths) - lengths), lengths)


def group_starts(group: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions at which groups begin in a column of ids that has the rows of each group together."""
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(group)), np.bool_), group[1:] != group[:-1]]))


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchOrder:
    """One epoch of a split for one rank: the rows of its batches, and the row groups that it needs for them."""

    row_groups: Sequence[RowGroup]
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
    """The first batch that is read, to resume inside an epoch; what only earlier batches need is not read."""
    longest_group: int | None = None
    """The most rows of a group, if batches hold whole groups; None if they are cut at any row."""

    @property
    def total_rows(self) -> int:
        """Number of rows of the split."""
        return int(self._starts[-1])

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
        start, stop = self._window(batch)
        return stop - start

    def local_size(self, batch: int) -> int:
        """Return the number of rows of the batch on every rank after padding."""
        count = self.row_count(batch)
        rows = -(-count // self.world_size)
        if self.longest_group is None:
            return rows
        # In each of its lanes, a rank may take rows up to the end of a group.
        windows, edges = count * np.arange(self.world_size + 1) // self.world_size, self._edges(count)
        first_lanes = np.searchsorted(edges, windows[:-1], side="right") - 1
        lanes = np.searchsorted(edges, windows[1:], side="left") - first_lanes
        return rows + int(lanes.max()) * (self.longest_group - 1)

    def first_row(self, batch: int) -> int:
        """Return the place in the epoch of this rank's first row of the batch, if there is only one lane."""
        return batch * self.global_batch_size + self._window(batch)[0]

    def slices(self, batch: int) -> Iterator[Slice]:
        """Yield the rows of `batch` on this rank, in order, as slices of row groups."""
        assert self.start_batch <= batch < self.num_batches, batch
        # This rank has a window of the batch, whose rows come from one lane after the other.
        edges, full_edges = self._edges(self.row_count(batch)), self._edges(self.global_batch_size)
        window_start, window_stop = self._window(batch)
        for lane in range(self.rank * self.num_lanes // self.world_size, self.num_lanes):
            edge, next_edge = int(edges[lane]), int(edges[lane + 1])
            if edge >= window_stop:
                return
            # All batches before are full ones, and have taken as much of the lane as each other.
            begin = int(self._lane_starts[lane]) + batch * int(full_edges[lane + 1] - full_edges[lane])
            position, end = begin + max(window_start - edge, 0), begin + min(window_stop, next_edge) - edge
            # From a range of the sequence of rows to the row groups that it lies in.
            place = int(np.searchsorted(self._starts, position, side="right")) - 1
            while position < end:
                start, stop = int(self._starts[place]), min(end, int(self._starts[place + 1]))
                yield Slice(int(self._sequence[place]), position - start, stop - start)
                position, place = stop, place + 1

    @cached_property
    def needs(self) -> list[Need]:
        """Row groups of this rank's lanes from `start_batch` on, in the order in which batches first need them.

        All ranks of a lane need its row groups in the same order.
        """
        decoders: dict[int, int] = {}
        sharing: dict[int, range] = {}
        own: dict[int, tuple[int, int]] = {}
        for first, lane, place, last in self._uses():
            # The ranks whose windows overlap the lane.
            ranks = range(lane * self.world_size // self.num_lanes, -(-(lane + 1) * self.world_size // self.num_lanes))
            # They take turns at decoding; of a row group in several lanes, those of the lane that needs it first.
            decoders.setdefault(place, ranks[place % len(ranks)])
            # Lanes of one row group are neighbours, and so are their ranks.
            others = sharing.get(place, ranks)
            sharing[place] = range(min(others.start, ranks.start), max(others.stop, ranks.stop))
            if self.rank in ranks:
                first_own, last_own = own.get(place, (first, last))
                own[place] = first_own, max(last_own, last)
        return [
            Need(int(self._sequence[place]), first, last, decoders[place], sharing[place])
            for place, (first, last) in own.items()
        ]

    @property
    def row_order(self) -> RowOrder:
        """Order of the rows inside row groups."""
        return RowOrder(self.shuffle == "rows", self.longest_group is not None, self.seed, self.epoch)

    @property
    def num_lanes(self) -> int:
        """Lanes of the epoch; each has a row at least."""
        return max(1, min(self.read_streams, len(self.row_groups), self.global_batch_size))

    @property
    def _full_batches(self) -> int:
        return self.total_rows // self.global_batch_size

    @property
    def _remainder(self) -> int:
        return self.total_rows % self.global_batch_size

    def _window(self, batch: int) -> tuple[int, int]:
        """Return this rank's first row in the global batch, and the one after its last."""
        rows = self.row_count(batch)
        return rows * self.rank // self.world_size, rows * (self.rank + 1) // self.world_size

    def _edges(self, rows: int) -> NDArray[np.int64]:
        """Return (lanes + 1): where each lane's rows begin in a global batch of `rows`."""
        return rows * np.arange(self.num_lanes + 1, dtype=np.int64) // self.num_lanes

    @cached_property
    def _sequence(self) -> NDArray[np.int64]:
        """Return indices in the order of the epoch, (row groups,)."""
        if self.shuffle == "none":
            return np.arange(len(self.row_groups))
        return _generator_of(_ROW_GROUP_ORDER, self.seed, self.epoch).permutation(len(self.row_groups))

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Return where each row group of `_sequence` begins in the sequence of rows, (row groups + 1,)."""
        rows = np.array([group.rows for group in self.row_groups], np.int64)
        return np.concatenate([[0], np.cumsum(rows[self._sequence])])

    @cached_property
    def _lane_starts(self) -> NDArray[np.int64]:
        """Return where each lane begins in the sequence of rows, (lanes + 1,)."""
        return self._full_batches * self._edges(self.global_batch_size) + self._edges(self._remainder)

    def _uses(self) -> list[list[int]]:
        """List (first batch, lane, place in `_sequence`, last batch) of each row group of each lane, sorted.

        Those that no batch from `start_batch` on uses are left out.
        """
        found = []
        for lane, quota in enumerate(np.diff(self._edges(self.global_batch_size))):
            start, stop = self._lane_starts[lane : lane + 2]
            first_place = np.searchsorted(self._starts, start, side="right") - 1
            places = np.arange(first_place, np.searchsorted(self._starts, stop, side="left"))
            # Rows of the lane, counted from its start: every full batch takes `quota` of them.
            begin = np.maximum(self._starts[places], start) - start
            end = np.minimum(self._starts[places + 1], stop) - start
            # What is left after the full batches is the last one's, however much that is.
            first = np.minimum(begin // quota, self._full_batches)
            last = np.minimum((end - 1) // quota, self._full_batches)
            found.append(np.stack([first, np.full_like(places, lane), places, last]))
        # What a resumed epoch, or one that drops its last batch, does not use is not read either.
        uses = np.concatenate(found, axis=1)
        uses = uses[:, (uses[3] >= self.start_batch) & (uses[0] < self.num_batches)]
        uses[0] = np.maximum(uses[0], self.start_batch)
        uses[3] = np.minimum(uses[3], self.num_batches - 1)
        return uses[:, np.lexsort(uses[2::-1])].T.tolist()


def _generator_of(*entropy: int) -> np.random.Generator:
    """Return a generator that draws the same numbers for the same words on any machine."""
    return np.random.Generator(np.random.PCG64([value % 2**64 for value in entropy]))
