"""Histories -> encoded rows of `train`, and for each held-out interaction a list of it and drawn negatives."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.categorical import id_dtype
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import KNOWN_SPLIT, Dataset
from rayrec.preprocessing.scratch_rows import Write, batch_of, gathered_rows, write_partitions
from rayrec.preprocessing.segments import Piece, Segment, make_segments, read_piece
from rayrec.preprocessing.sorted_rows import whole_groups
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.encode import RowEncoder
from rayrec.sources.interactions.drawn_negatives import NegativeSampler
from rayrec.sources.interactions.histories import EARLIER, SPLIT, TRAIN

_PLACED = pa.schema([("user", pa.int64()), ("place", pa.int64()), ("item", pa.int64()), (SPLIT, pa.int8())])
_USERS_ROWS = 65_536
"""Rows of histories that a task works on at a time; their lists are a few times that."""


@dataclass(frozen=True)
class InteractionRows:
    """Rows of a dataset of interactions: label (float32), user and item (ids), group (int64, the user's id)."""

    schema: Schema

    @property
    def arrow_schema(self) -> pa.Schema:
        assert self.schema.group is not None
        ids = [pa.field(f.name, pa.from_numpy_dtype(id_dtype(f)), False) for f in self.schema.categorical]
        label = pa.field(self.schema.label, pa.float32(), False)
        return pa.schema([label, *ids, pa.field(self.schema.group, pa.int64(), False)])

    def batch(self, label: NDArray[np.float32], user: NDArray[np.int64], item: NDArray[np.int64]) -> pa.RecordBatch:
        schema = self.arrow_schema
        columns = [
            pa.array(values).cast(field.type) for values, field in zip((label, user, item, user), schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True)
class HeldOutLists:
    """A split of held-out interactions."""

    code: int
    sampler: NegativeSampler
    known: tuple[int, ...]
    """Codes of the splits whose items are never negatives."""


def write_rows(
    workspace: Workspace,
    histories: Sequence[Segment],
    encoder: RowEncoder,
    rows: InteractionRows,
    held_out: Mapping[str, HeldOutLists],
    parent: Dataset | None,
    has_known: bool,
) -> tuple[dict[str, list[Piece]], Counter[str]]:
    """Write the rows of `train` and of the splits in `held_out`, ordered by user id, then by time.

    With `parent` the pairs of all its splits are known here, as are those that are no choices (`has_known`); they and
    those of `train` are written as the split `known`.

    Return the files by split, and for each split how many lists have fewer negatives than asked for, because the user
    knows nearly all items.
    """
    user, item = (feature.name for feature in encoder.schema.categorical)

    def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
        first = segment.first
        for batch in encoder.encode(segment):
            place = pa.array(np.arange(first, first + batch.num_rows))
            columns = [batch[user].cast(pa.int64()), place, batch[item].cast(pa.int64()), batch[SPLIT]]
            yield pa.RecordBatch.from_arrays(columns, schema=_PLACED)
            first += batch.num_rows

    def encoded(segment: Segment) -> Iterator[pa.RecordBatch]:
        for read in read_piece(segment.piece, [user, item, rows.schema.label], ()):
            batch = read.filter(pc.equal(read[rows.schema.label], 1.0))  # without drawn negatives
            place, code = (np.full(batch.num_rows, value) for value in (-1, EARLIER))
            yield batch_of(_PLACED, {"user": batch[user], "place": place, "item": batch[item], SPLIT: code})

    def draw(batches: Iterator[pa.RecordBatch], write: Write) -> Counter[str]:
        """Return the number of short lists by split."""
        short: Counter[str] = Counter()
        for users in whole_groups(batches, "user", _USERS_ROWS):
            history = _History.of(users)
            write("train", history.train(rows))
            if has_known:
                write(KNOWN_SPLIT, history.known(rows))
            for split, config in held_out.items():
                lists, short_lists = history.lists(rows, config)
                write(split, lists)
                short[split] += short_lists
        return short

    earlier: list[Segment] = []
    has_known |= parent is not None
    if parent is not None:
        parts = [p for split in (parent.known_split, *parent.evaluation_splits) for p in parent.split(split).parts]
        earlier = make_segments(Piece(parent.folder / part.path, 0, part.rows) for part in parts)
    sources = [(histories, encode), (earlier, encoded)]
    with gathered_rows(workspace, "number users and draw negatives", sources, _PLACED) as gathered:
        # A user lies in one range; within it, places ascend with time.
        by_user = gathered.partition_by_range("user", workspace.runner.partitions).sort_within("user", "place")
        names = ("train", *held_out, *([KNOWN_SPLIT] if has_known else []))
        folder = workspace.scratch / "ordered"
        pieces, short = write_partitions(by_user, folder, names, rows.arrow_schema, (), draw)
    return pieces, sum(short, Counter())


@dataclass(frozen=True)
class _History:
    """The interactions of whole users, by user id and then by time; arrays of one length."""

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    split: NDArray[np.int8]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "_History":
        return cls(*(batch[name].to_numpy() for name in ("user", "item", "split")))

    def train(self, rows: InteractionRows) -> pa.RecordBatch:
        chosen = self.split == TRAIN
        return rows.batch(np.ones(chosen.sum(), np.float32), self.user[chosen], self.item[chosen])

    def known(self, rows: InteractionRows) -> pa.RecordBatch:
        """Return the pairs that are in `train`, in a dataset before, or no choices, each once."""
        chosen = np.isin(self.split, (TRAIN, EARLIER))
        user, item = _distinct(self.user[chosen], self.item[chosen])
        return rows.batch(np.ones(len(user), np.float32), user, item)

    def lists(self, rows: InteractionRows, held_out: HeldOutLists) -> tuple[pa.RecordBatch, int]:
        """Return the row of each held-out interaction, label 1, then its negatives, label 0; and how many lists are
        short.
        """
        chosen = self.split == held_out.code
        users, positives = self.user[chosen], self.item[chosen]
        is_known = np.isin(self.split, held_out.known) & np.isin(self.user, users)
        user, item = _distinct(self.user[is_known], self.item[is_known])
        num_known = np.searchsorted(user, users, side="right") - np.searchsorted(user, users)
        negatives, lengths = held_out.sampler.draw(users, item, num_known)

        firsts = np.cumsum(lengths + 1) - (lengths + 1)
        label = np.zeros(len(users) + len(negatives), np.float32)
        label[firsts] = 1.0
        items = np.empty(len(label), np.int64)
        items[firsts] = positives
        items[label == 0.0] = negatives
        batch = rows.batch(label, np.repeat(users, lengths + 1), items)
        return batch, int((lengths < held_out.sampler.negatives).sum())


def _distinct(user: NDArray[np.int64], item: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pairs, each once, by user and then item."""
    ascending = np.lexsort((item, user))
    user, item = user[ascending], item[ascending]
    is_first = np.ones(len(user), np.bool_)
    is_first[1:] = (np.diff(user) != 0) | (np.diff(item) != 0)
    return user[is_first], item[is_first]


def read_rows(rows: InteractionRows, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield the rows that `write_rows` wrote, as they are."""
    schema = rows.arrow_schema
    for batch in read_piece(segment.piece, schema.names, []):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def encode_lists(encoder: RowEncoder, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield the rows of lists that came as a file, encoded, with the group; `encoder` keeps the label."""
    schema = InteractionRows(encoder.schema).arrow_schema
    for batch in encoder.encode(segment):
        label, user, item = batch.columns
        yield pa.RecordBatch.from_arrays([label, user, item, user.cast(pa.int64())], schema=schema)
