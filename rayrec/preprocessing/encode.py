"""Third stage: parsed rows -> encoded rows in the order of the split -> parts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import PartInfo, SplitInfo
from rayrec.preprocessing.hash_ranges import partition_keys
from rayrec.preprocessing.long_vocabularies import LongVocabularies
from rayrec.preprocessing.segments import Segment, cut_segments, read_piece
from rayrec.preprocessing.shards import RowPacking, WrittenPart, rows_of_a_part, write_part
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Permutation = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class SegmentEncoder(Protocol):
    """Gives the rows of a segment as a dataset holds them."""

    @property
    def schema(self) -> Schema: ...

    @property
    def dataset(self) -> Path:
        """Folder that is written."""

    def encode(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The encoded rows of a segment, in order."""


@dataclass(frozen=True)
class RowEncoder:
    """Reads the parsed rows of a segment and applies the schema to them."""

    schema: Schema
    dataset: Path
    """Folder that holds the vocabularies."""
    long_vocabularies: LongVocabularies
    kept: tuple[pa.Field, ...]
    """The columns of parsed rows that stay as they are, such as the label."""

    @property
    def encoded_schema(self) -> pa.Schema:
        """The kept columns and the features."""
        return pa.schema([*self.kept, *self._features.encoded_schema])

    @property
    def _features(self) -> FeatureEncoder:
        return FeatureEncoder.cached(self.schema, self.dataset, frozenset(self.long_vocabularies.paths))

    def encode(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The encoded rows of a segment, in order."""
        kept = [field.name for field in self.kept]
        columns = [*kept, *(feature.name for feature in self.schema.features)]
        ids = self.long_vocabularies.ids_of_segment(segment.index)
        for raw in read_piece(segment.piece, columns, self._features.string_columns):
            encoded = self._features.encode(ids.replace_values(raw))
            yield pa.RecordBatch.from_arrays([*(raw[n] for n in kept), *encoded.columns], schema=self.encoded_schema)


def write_in_order(
    spark: "SparkSession",
    encoder: SegmentEncoder,
    split: str,
    segments: Sequence[Segment],
    layout: ShardLayoutConfig,
    progress: Progress,
) -> SplitInfo:
    """Write the rows of a split in the order of its segments. A task writes a part; nothing is shuffled."""
    rows = sum(segment.piece.rows for segment in segments)
    size = rows_of_a_part(rows, layout)
    with counted_rows(spark, progress, f"encode {split}", rows) as counter:

        def run(index: int) -> WrittenPart:
            def batches() -> Iterator[pa.RecordBatch]:
                for segment in cut_segments(segments, index * size, (index + 1) * size):
                    yield from encoder.encode(segment)
                    counter.add(segment.piece.rows)

            return write_part(encoder.dataset, split, index, encoder.schema.label, layout, batches())

        return _split_info(run_tasks(spark, range(-(-rows // size)), run))


def write_shuffled(
    spark: "SparkSession",
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    permutation: Permutation,
    layout: ShardLayoutConfig,
    progress: Progress,
    position: str | None = None,
) -> SplitInfo:
    """Write the rows of a split at the places that `permutation` gives those of the input.

    `position`: the kept column (int64) that says a row's place in the input, for segments in another order; the parts
    do not have it. A place tells its part, and Spark brings the rows of a part together and sorts them, spilling to
    disk.
    """
    rows = sum(segment.piece.rows for segment in segments)
    size = rows_of_a_part(rows, layout)
    keys = partition_keys(spark, -(-rows // size))
    label = encoder.schema.label
    written = [field for field in encoder.encoded_schema if field.name != position]
    packing = RowPacking(pa.schema(written), encoder.schema.hotness)
    with counted_rows(spark, progress, f"encode and shuffle {split}", rows) as counter:

        def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
            first = segment.first
            for batch in encoder.encode(segment):
                places = np.arange(first, first + batch.num_rows) if position is None else batch[position].to_numpy()
                positions = permutation(places)
                packed = packing.pack(batch.select([field.name for field in written]))
                columns = [pa.array(keys[positions // size]), pa.array(positions), packed]
                yield pa.RecordBatch.from_arrays(columns, names=["key", "position", "row"])
                first += batch.num_rows

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            batches = (batch for batch in batches if batch.num_rows)
            index, unpacked = _unpack_part(batches, packing, size, rows)
            part = write_part(encoder.dataset, split, index, label, layout, unpacked)
            counter.add(part.info.rows)
            columns = [pa.array([part.info.model_dump_json()]), pa.array([part.positives])]
            yield pa.RecordBatch.from_arrays(columns, names=["part", "positives"])

        encoded = frame_of_tasks(spark, segments, encode, "key int, position long, row binary")
        sorted_parts = encoded.repartition(len(keys), "key").sortWithinPartitions("position")
        found = collect_rows(sorted_parts.mapInArrow(write, "part string, positives double"))
    parts = [WrittenPart(PartInfo.model_validate_json(part), positives) for part, positives in found]
    return _split_info(sorted(parts, key=lambda part: part.info.path))


def _unpack_part(
    batches: Iterator[pa.RecordBatch], packing: RowPacking, size: int, rows: int
) -> tuple[int, Iterator[pa.RecordBatch]]:
    """The number of the part that sorted rows belong to, and its rows; it is checked that they are all there, once."""
    first = next(batches)
    index = first["position"][0].as_py() // size

    def unpack() -> Iterator[pa.RecordBatch]:
        expected = index * size
        batch: pa.RecordBatch | None = first
        while batch is not None:
            positions = batch["position"].to_numpy()
            assert np.array_equal(positions, np.arange(expected, expected + len(positions))), "rows lost or repeated"
            expected += len(positions)
            yield packing.unpack(batch["row"])
            batch = next(batches, None)
        assert expected == min((index + 1) * size, rows), "rows lost or repeated"

    return index, unpack()


def _split_info(parts: Sequence[WrittenPart]) -> SplitInfo:
    return SplitInfo(
        rows=sum(part.info.rows for part in parts),
        positives=sum(part.positives for part in parts),
        parts=tuple(part.info for part in parts),
    )
