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
    kept: pa.Field
    """The column of parsed rows that stays as it is, such as the label."""

    @property
    def encoded_schema(self) -> pa.Schema:
        """The kept column and the features."""
        return self._features.encoded_schema.insert(0, self.kept)

    @property
    def _features(self) -> FeatureEncoder:
        return FeatureEncoder.cached(self.schema, self.dataset, frozenset(self.long_vocabularies.paths))

    def encode(self, segment: Segment) -> Iterator[pa.RecordBatch]:
        """The encoded rows of a segment, in order."""
        categorical = [feature.name for feature in self.schema.categorical]
        columns = [self.kept.name, *(feature.name for feature in self.schema.features)]
        ids = self.long_vocabularies.ids_of_segment(segment.index)
        for raw in read_piece(segment.piece, columns, categorical):
            encoded = self._features.encode(ids.replace_values(raw))
            yield pa.RecordBatch.from_arrays([raw[self.kept.name], *encoded.columns], schema=self.encoded_schema)


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
) -> SplitInfo:
    """Write the rows of a split at the positions that `permutation` gives those of the input.

    A position tells its part, and Spark brings the rows of a part together and sorts them, spilling to disk.
    """
    rows = sum(segment.piece.rows for segment in segments)
    size = rows_of_a_part(rows, layout)
    keys = _partition_keys(spark, -(-rows // size))
    label = encoder.schema.label
    with counted_rows(spark, progress, f"encode and shuffle {split}", rows) as counter:

        def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
            packing = RowPacking(encoder.encoded_schema)
            first = segment.first
            for batch in encoder.encode(segment):
                positions = permutation(np.arange(first, first + batch.num_rows))
                columns = [pa.array(keys[positions // size]), pa.array(positions), packing.pack(batch)]
                yield pa.RecordBatch.from_arrays(columns, names=["key", "position", "row"])
                first += batch.num_rows

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            packing = RowPacking(encoder.encoded_schema)
            batches = (batch for batch in batches if batch.num_rows)
            index, unpacked = _unpack_part(batches, packing, size, rows)
            part = write_part(encoder.dataset, split, index, label, layout, unpacked)
            counter.add(part.info.rows)
            columns = [pa.array([part.info.model_dump_json()]), pa.array([part.positives])]
            yield pa.RecordBatch.from_arrays(columns, names=["part", "positives"])

        encoded = frame_of_tasks(spark, segments, encode, "key int, position long, row binary")
        sorted_parts = encoded.repartition(len(keys), "key").sortWithinPartitions("position")
        written = collect_rows(sorted_parts.mapInArrow(write, "part string, positives double"))
    parts = [WrittenPart(PartInfo.model_validate_json(part), positives) for part, positives in written]
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


def _partition_keys(spark: "SparkSession", partitions: int) -> NDArray[np.int32]:
    """For each partition an integer that Spark's hash partitioning sends to it, so that rows can be sent by number."""
    from pyspark.sql import functions as f

    keys = np.full(partitions, -1, np.int32)
    tried = 0
    while (keys < 0).any():
        candidates = spark.range(tried, tried + 8 * partitions + 64).select(f.col("id").cast("int").alias("key"))
        hashed = candidates.select("key", f.expr(f"pmod(hash(key), {partitions})").alias("partition")).collect()
        for key, partition in hashed:
            keys[partition] = key
        tried += 8 * partitions + 64
    return keys


def _split_info(parts: Sequence[WrittenPart]) -> SplitInfo:
    return SplitInfo(
        rows=sum(part.info.rows for part in parts),
        positives=sum(part.positives for part in parts),
        parts=tuple(part.info for part in parts),
    )
