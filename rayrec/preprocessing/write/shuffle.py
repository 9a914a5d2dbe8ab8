"""Third stage, where rows are to lie in another order than the input's: parsed rows -> encoded rows -> parts.

What a row is sorted by tells its part too. Spark brings the rows of a part together and sorts them, spilling to disk.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.ingest.dataset import PartInfo, SplitInfo
from rayrec.preprocessing.segments import Segment
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import partition_keys
from rayrec.preprocessing.write.encode import RowEncoder, split_info
from rayrec.preprocessing.write.shards import RowPacking, WrittenPart, rows_of_a_part, write_part
from rayrec.random.splitmix64 import mix

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RowMapping = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Gives the output positions of input rows."""


def write_shuffled(
    spark: "SparkSession",
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    permutation: RowMapping,
    layout: ShardLayoutConfig,
    progress: Progress,
    position: str | None = None,
) -> SplitInfo:
    """Write the rows of a split at the places that `permutation` gives those of the input.

    `position`: the kept column (int64) that says a row's place in the input, for segments in another order; the parts
    do not have it.
    """
    rows = sum(segment.piece.rows for segment in segments)
    order = _ByPlace(permutation, rows_of_a_part(rows, layout), rows)
    return _write(spark, encoder, split, segments, order, layout, progress, position)


def write_groups_shuffled(
    spark: "SparkSession",
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    seed: int,
    layout: ShardLayoutConfig,
    progress: Progress,
    position: str | None = None,
) -> SplitInfo:
    """Write the groups of a split in an order that `seed` says, the rows of each, which follow each other in the input,
    in that of the input and in one row group.

    Parts have about the same number of rows, and row groups that of the layout or a few more. `position`: see
    `write_shuffled`.
    """
    group = encoder.schema.group
    assert group is not None
    rows = sum(segment.piece.rows for segment in segments)
    order = _ByGroup(group, seed, -(-rows // rows_of_a_part(rows, layout)))
    return _write(spark, encoder, split, segments, order, layout, progress, position)


class _Order(Protocol):
    @property
    def parts(self) -> int:
        """Of the split."""

    @property
    def group(self) -> str | None:
        """The column whose rows stay together."""

    @property
    def names(self) -> tuple[str, ...]:
        """The columns (int64) that the rows of a part are sorted by."""

    def of(self, batch: pa.RecordBatch, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Those of encoded rows, whose places in the input are given."""

    def part(self, first_column: NDArray[np.int64]) -> NDArray[np.int64]:
        """The parts of rows."""

    def check(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The sorted rows of a part as they are; fails where it can tell that some are lost or repeated."""


@dataclass(frozen=True)
class _ByPlace:
    permutation: RowMapping
    size: int
    """Rows of a part, the last one aside."""
    rows: int

    group = None
    names = ("place",)

    @property
    def parts(self) -> int:
        return -(-self.rows // self.size)

    def of(self, batch: pa.RecordBatch, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        return (self.permutation(places),)

    def part(self, first_column: NDArray[np.int64]) -> NDArray[np.int64]:
        return first_column // self.size

    def check(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        expected = part * self.size
        for batch in batches:
            places = batch["place"].to_numpy()
            assert np.array_equal(places, np.arange(expected, expected + len(places))), "rows lost or repeated"
            expected += len(places)
            yield batch
        assert expected == min((part + 1) * self.size, self.rows), "rows lost or repeated"


@dataclass(frozen=True)
class _ByGroup:
    """By a hash of the group: an order of all groups that needs no list of them."""

    group: str
    seed: int
    parts: int

    names = ("hash", "place")

    def of(self, batch: pa.RecordBatch, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        key = mix(np.array([self.seed & (2**64 - 1)], np.uint64))
        # Both steps are bijections, so no two groups have one hash.
        return (mix(batch[self.group].to_numpy().view(np.uint64) ^ key).view(np.int64), places)

    def part(self, first_column: NDArray[np.int64]) -> NDArray[np.int64]:
        # Signed, as Spark sorts: the upper 32 bits from 0 on, times the parts.
        return (((first_column >> 32) + 2**31) * self.parts) >> 32

    def check(self, part: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches


def _write(
    spark: "SparkSession",
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    order: _Order,
    layout: ShardLayoutConfig,
    progress: Progress,
    position: str | None,
) -> SplitInfo:
    rows = sum(segment.piece.rows for segment in segments)
    keys = partition_keys(spark, order.parts)
    label = encoder.schema.label
    written = [field for field in encoder.encoded_schema if field.name != position]
    packing = RowPacking(pa.schema(written), encoder.schema.hotness)
    with counted_rows(spark, progress, f"encode and shuffle {split}", rows) as counter:

        def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
            first = segment.first
            for batch in encoder.encode(segment):
                places = np.arange(first, first + batch.num_rows) if position is None else batch[position].to_numpy()
                sorted_by = order.of(batch, places)
                packed = packing.pack(batch.select([field.name for field in written]))
                columns = [pa.array(keys[order.part(sorted_by[0])]), *map(pa.array, sorted_by), packed]
                yield pa.RecordBatch.from_arrays(columns, names=["key", *order.names, "row"])
                first += batch.num_rows

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            filled = (batch for batch in batches if batch.num_rows)
            first = next(filled, None)
            if first is None:
                return
            part = int(order.part(first[order.names[0]].to_numpy()[:1])[0])
            unpacked = (packing.unpack(batch["row"]) for batch in order.check(part, chain([first], filled)))
            info, positives = write_part(encoder.dataset, split, part, label, layout, unpacked, order.group)
            counter.add(info.rows)
            columns = [pa.array([info.model_dump_json()]), pa.array([positives])]
            yield pa.RecordBatch.from_arrays(columns, names=["part", "positives"])

        sort_columns = ", ".join(f"{name} long" for name in order.names)
        encoded = frame_of_tasks(spark, segments, encode, f"key int, {sort_columns}, row binary")
        sorted_parts = encoded.repartition(len(keys), "key").sortWithinPartitions(*order.names)
        found = collect_rows(sorted_parts.mapInArrow(write, "part string, positives double"))
    parts = [WrittenPart(PartInfo.model_validate_json(part), positives) for part, positives in found]
    written_rows = sum(part.info.rows for part in parts)
    assert written_rows == rows, f"{written_rows} rows written of {rows}"
    return split_info(sorted(parts, key=lambda part: part.info.path))
