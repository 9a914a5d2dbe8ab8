"""Third stage for rows in another order than the input's: parsed rows -> encoded rows -> parts.

The columns that a row is sorted by determine its part too. Spark brings the rows of a part together and sorts them,
spilling to disk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.ingest.dataset import PartInfo, SplitInfo
from rayrec.preprocessing.segments import Segment, count_rows
from rayrec.preprocessing.tasks import counted_rows, results_of, rows_of_tasks, sorted_rows
from rayrec.preprocessing.threads import HeldRows, Threads
from rayrec.preprocessing.vocabularies.hash_ranges import partition_keys
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.encode import RowEncoder, split_info
from rayrec.preprocessing.write.shards import ColumnPacking, RowPacking, WrittenPart, rows_of_a_part, write_part
from rayrec.random.splitmix64 import mix

NewPositions = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""The positions (n,) in the output of rows given by their positions (n,) in the input: a bijection."""


@dataclass(frozen=True)
class RandomGroups:
    """The groups of a split in a random order that depends on `seed`, and the rows of a group in their own order."""

    seed: int


@dataclass(frozen=True)
class _ByPlace:
    """Rows in the order of their new positions."""

    new_positions: NewPositions
    size: int
    """Rows of every part but the last."""
    rows: int

    group = None
    """The column whose equal rows stay together."""
    names = ("place",)
    """The columns (int64) that the rows of a part are sorted by."""

    def sort_columns(self, batch: pa.RecordBatch, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        return (self.new_positions(positions),)

    def part(self, first_column: NDArray[np.int64]) -> NDArray[np.int64]:
        """The parts of rows, from the first of their sort columns."""
        return first_column // self.size

    def check(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the sorted rows of a part on; fails if some are lost or repeated."""
        expected = part * self.size
        for batch in batches:
            places = batch["place"].to_numpy()
            assert np.array_equal(places, np.arange(expected, expected + len(places))), "rows lost or repeated"
            expected += len(places)
            yield batch
        assert expected == min((part + 1) * self.size, self.rows), "rows lost or repeated"


@dataclass(frozen=True)
class _ByGroup:
    """Rows in the order of a hash of their group: a random order of all groups that needs no list of them."""

    group: str
    seed: int
    parts: int

    names = ("hash", "place")

    def sort_columns(self, batch: pa.RecordBatch, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        key = mix(np.array([self.seed & (2**64 - 1)], np.uint64))
        # Both steps are bijections, so no two groups have one hash.
        return (mix(batch[self.group].to_numpy().view(np.uint64) ^ key).view(np.int64), positions)

    def part(self, first_column: NDArray[np.int64]) -> NDArray[np.int64]:
        # Signed, as Spark sorts: the upper 32 bits, counted from 0, times the number of parts.
        return (((first_column >> 32) + 2**31) * self.parts) >> 32

    def check(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches


def write_shuffled(
    workspace: Workspace,
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    order: NewPositions | RandomGroups,
    layout: ShardLayoutConfig,
    position: str | None = None,
) -> SplitInfo:
    """Write the rows of a split in another order than that of its segments.

    With `RandomGroups`, the rows of a group follow each other in the input and end up in one row group. Parts then have
    about the same number of rows, and row groups as many as the layout says, or a few more. `position`: the kept column
    (int64) that holds a row's position in the input, for segments in another order; it is not written to the parts.
    """
    workers, rows = workspace.workers, count_rows(segments)
    size = rows_of_a_part(rows, layout)
    number_of_parts = -(-rows // size)
    sorting: _ByPlace | _ByGroup
    if isinstance(order, RandomGroups):
        assert encoder.schema.group is not None
        sorting = _ByGroup(encoder.schema.group, order.seed, number_of_parts)
    else:
        sorting = _ByPlace(order, size, rows)
    keys = partition_keys(workers, number_of_parts)
    label = encoder.schema.label
    written = [field for field in encoder.encoded_schema if field.name != position]
    columns = pa.schema(written)
    packing = ColumnPacking(columns) if isinstance(workers, Threads) else RowPacking(columns, encoder.schema.hotness)
    with counted_rows(workers, workspace.progress, f"encode and shuffle {split}", rows) as counter:

        def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
            first = segment.first
            for batch in encoder.encode(segment):
                places = np.arange(first, first + batch.num_rows) if position is None else batch[position].to_numpy()
                sorted_by = sorting.sort_columns(batch, places)
                packed = packing.pack(batch.select([field.name for field in written]))
                columns = [pa.array(keys[sorting.part(sorted_by[0])]), *map(pa.array, sorted_by), packed]
                yield pa.RecordBatch.from_arrays(columns, names=["key", *sorting.names, "row"])
                first += batch.num_rows

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            filled = (batch for batch in batches if batch.num_rows)
            first = next(filled, None)
            if first is None:
                return
            part = int(sorting.part(first[sorting.names[0]].to_numpy()[:1])[0])
            unpacked = (packing.unpack(batch["row"]) for batch in sorting.check(part, chain([first], filled)))
            info, positives = write_part(encoder.dataset, split, part, label, layout, unpacked, sorting.group)
            counter.add(info.rows)
            columns = [pa.array([info.model_dump_json()]), pa.array([positives])]
            yield pa.RecordBatch.from_arrays(columns, names=["part", "positives"])

        schema = pa.schema(
            [("key", pa.int32()), *((name, pa.int64()) for name in sorting.names), ("row", packing.type)]
        )
        encoded = rows_of_tasks(workers, segments, encode, schema)
        if isinstance(encoded, HeldRows):
            encoded = encoded.dealt(lambda batch: batch["key"].to_numpy(), len(keys))
        sorted_parts = sorted_rows(encoded, lambda frame: frame.repartition(len(keys), "key"), sorting.names)
        found = results_of(sorted_parts, write, "part string, positives double")
    parts = [WrittenPart(PartInfo.model_validate_json(part), positives) for part, positives in found]
    written_rows = sum(part.info.rows for part in parts)
    assert written_rows == rows, f"{written_rows} rows written of {rows}"
    return split_info(sorted(parts, key=lambda part: part.info.path))
