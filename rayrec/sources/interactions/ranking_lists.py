"""Histories -> encoded rows of `train`, and for each held-out interaction a list of it and drawn negatives."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.features.categorical import id_dtype
from rayrec.features.schema import Schema
from rayrec.preprocessing.segments import Piece, Segment, count_rows, new_parquet, read_piece
from rayrec.preprocessing.sorted_rows import whole_groups
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.encode import RowEncoder
from rayrec.sources.interactions.drawn_negatives import NegativeSampler
from rayrec.sources.interactions.histories import SPLIT, TRAIN

_USERS_ROWS = 65_536
"""Rows of histories that a task works on at a time; their lists are a few times that."""


@dataclass(frozen=True)
class Rows:
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
class WrittenRows:
    """Rows of a split in scratch files, and how many of its lists are short."""

    pieces: list[Piece]
    short_lists: int
    """Lists with fewer negatives than asked for, because the user knows nearly all items."""


@dataclass(frozen=True)
class HeldOut:
    """A split of held-out interactions."""

    code: int
    sampler: NegativeSampler
    known: tuple[int, ...]
    """Codes of the splits whose items are never negatives."""


def write_rows(
    workspace: Workspace, histories: Sequence[Segment], encoder: RowEncoder, rows: Rows, held_out: Mapping[str, HeldOut]
) -> dict[str, WrittenRows]:
    """Write the rows of `train` and of the splits in `held_out`, ordered by user id, then by time."""
    spark, folder = workspace.spark, workspace.scratch / "ordered"
    user, item = (feature.name for feature in encoder.schema.categorical)
    progress, total = workspace.progress, count_rows(histories)
    with counted_rows(spark, progress, "number users and draw negatives", total) as counter:

        def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
            first = segment.first
            for batch in encoder.encode(segment):
                place = pa.array(np.arange(first, first + batch.num_rows))
                columns = [batch[user].cast(pa.int64()), place, batch[item].cast(pa.int64()), batch[SPLIT]]
                yield pa.RecordBatch.from_arrays(columns, names=["user", "place", "item", "split"])
                first += batch.num_rows

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            def counted() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    yield batch
                    counter.add(batch.num_rows)

            yield from _write(counted(), rows, held_out, folder)

        frame = frame_of_tasks(spark, histories, encode, "user long, place long, item long, split byte")
        partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
        # A user lies in one range; within it, places ascend with time.
        by_user = frame.repartitionByRange(partitions, "user").sortWithinPartitions("user", "place")
        found = collect_rows(by_user.mapInArrow(write, "partition long, split string, rows long, short_lists long"))
    return {
        split: WrittenRows(
            [Piece(_path(folder, split, p), 0, count) for p, s, count, _ in sorted(found) if s == split and count],
            sum(short for _, s, _, short in found if s == split),
        )
        for split in ("train", *held_out)
    }


def _path(folder: Path, split: str, partition: int) -> Path:
    return folder / f"{split}-{partition:06d}.parquet"


def _write(
    batches: Iterator[pa.RecordBatch], rows: Rows, held_out: Mapping[str, HeldOut], folder: Path
) -> Iterator[pa.RecordBatch]:
    """Write a range of users, with a file for each split; yields their rows and short lists."""
    partition = partition_number()
    written = dict.fromkeys(("train", *held_out), 0)
    short = dict.fromkeys(written, 0)
    options = {"compression": "lz4", "use_dictionary": False, "write_statistics": False}
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {
            split: stack.enter_context(new_parquet(_path(folder, split, partition), rows.arrow_schema, **options))
            for split in written
        }
        for users in whole_groups(batches, "user", _USERS_ROWS):
            history = _History.of(users)
            parts = {"train": history.train(rows)}
            for split, config in held_out.items():
                parts[split], short_lists = history.lists(rows, config)
                short[split] += short_lists
            for split, part in parts.items():
                if part.num_rows:
                    writers[split].write_batch(part)
                written[split] += part.num_rows
    columns = [pa.array([partition] * len(written)), *map(pa.array, (list(written), written.values(), short.values()))]
    yield pa.RecordBatch.from_arrays(columns, names=["partition", "split", "rows", "short_lists"])


@dataclass(frozen=True)
class _History:
    """The interactions of whole users, by user id and then by time; arrays of one length."""

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    split: NDArray[np.int8]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "_History":
        return cls(*(batch[name].to_numpy() for name in ("user", "item", "split")))

    def train(self, rows: Rows) -> pa.RecordBatch:
        chosen = self.split == TRAIN
        return rows.batch(np.ones(chosen.sum(), np.float32), self.user[chosen], self.item[chosen])

    def lists(self, rows: Rows, held_out: HeldOut) -> tuple[pa.RecordBatch, int]:
        """The row of each held-out interaction, label 1, then its negatives, label 0; and how many lists are short."""
        chosen = self.split == held_out.code
        users, positives = self.user[chosen], self.item[chosen]
        is_known = np.isin(self.split, held_out.known) & np.isin(self.user, users)
        user, item = self.user[is_known], self.item[is_known]
        ascending = np.lexsort((item, user))
        starts = np.searchsorted(user, users)
        num_known = np.searchsorted(user, users, side="right") - starts
        negatives, lengths = held_out.sampler.draw(users, item[ascending], num_known)

        firsts = np.cumsum(lengths + 1) - (lengths + 1)
        label = np.zeros(len(users) + len(negatives), np.float32)
        label[firsts] = 1.0
        items = np.empty(len(label), np.int64)
        items[firsts] = positives
        items[label == 0.0] = negatives
        batch = rows.batch(label, np.repeat(users, lengths + 1), items)
        return batch, int((lengths < held_out.sampler.negatives).sum())


def read_rows(rows: Rows, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Rows that `write_rows` wrote, as they are."""
    schema = rows.arrow_schema
    for batch in read_piece(segment.piece, schema.names, []):
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def encode_lists(encoder: RowEncoder, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Rows of lists that came as a file, encoded, with the group; `encoder` keeps the label."""
    schema = Rows(encoder.schema).arrow_schema
    for batch in encoder.encode(segment):
        label, user, item = batch.columns
        yield pa.RecordBatch.from_arrays([label, user, item, user.cast(pa.int64())], schema=schema)
