"""Look-ups in vocabularies too long for a worker's memory.

The most frequent values are looked up in memory, so neither they nor missing values reach a shuffle. Each segment sends
every other distinct value once, Spark joins these with the rest of the vocabulary, and each segment gets back a small
table of its own. No key of the join has more rows than there are segments, so the join cannot be skewed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.config.transforms import Vocabulary
from rayrec.features.encoder import id_column
from rayrec.features.schema import Schema
from rayrec.features.vocabulary import VocabularyLookup, vocabulary_files
from rayrec.preprocessing.segments import Segment, count_rows, new_parquet, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.spark_tasks import counted_rows, frame_of_tasks
from rayrec.preprocessing.workspace import Workspace

_JOINED = pa.schema([("feature", pa.int32()), ("value", pa.string()), ("id", pa.int64())])


@dataclass(frozen=True)
class LongVocabularies:
    """The long vocabularies of a job, with the joined ids of each segment."""

    paths: Mapping[str, Path]
    """The vocabulary of each feature."""
    limit: int
    """Number of values of each vocabulary that are looked up in memory."""
    joined: Path
    """Folder with a file for each segment."""

    def rest_of_segment(self, index: int) -> dict[str, tuple[pa.Array, NDArray[np.int64]]]:
        """The values of a segment beyond the limit, and their ids, by feature."""
        path = self.joined / f"{index:06d}.parquet"
        rows = pq.read_table(path) if path.exists() else _JOINED.empty_table()
        by_feature = {name: rows.filter(pc.equal(rows["feature"], n)) for n, name in enumerate(self.paths)}
        return {name: (found["value"].combine_chunks(), found["id"].to_numpy()) for name, found in by_feature.items()}

    def replace_values(
        self, batch: pa.RecordBatch, rest: Mapping[str, tuple[pa.Array, NDArray[np.int64]]]
    ) -> pa.RecordBatch:
        """`batch`, of the segment of `rest`, with the ids (int64, 0 = missing or unlisted) in further columns."""
        for name, path in self.paths.items():
            values = batch.column(name).cast(pa.string())
            ids = _head(path, self.limit).ids(values)
            pending = np.flatnonzero(ids == 0)
            rest_values, rest_ids = rest[name]
            found = pc.index_in(values.take(pa.array(pending)), value_set=rest_values, skip_nulls=True)
            is_listed = found.is_valid().to_numpy(zero_copy_only=False)
            ids[pending[is_listed]] = rest_ids[found.drop_null().to_numpy()]
            batch = batch.append_column(id_column(name), pa.array(ids))
        return batch


def join_long_vocabularies(
    workspace: Workspace, segments: Sequence[Segment], schema: Schema, limit: int
) -> LongVocabularies:
    """Look up the values of every segment beyond the `limit` most frequent ones of each vocabulary of the schema."""
    paths = {
        feature.name: workspace.folder / transform.file
        for feature in schema.categorical
        for transform in feature.transforms
        if isinstance(transform, Vocabulary) and transform.size > limit
    }
    vocabularies = LongVocabularies(paths, limit, workspace.scratch / "joined")
    if not paths:
        return vocabularies
    spark = workspace.spark
    with counted_rows(spark, workspace.progress, "join long vocabularies", count_rows(segments)) as counter:

        def pending(segment: Segment) -> Iterator[pa.RecordBatch]:
            yield from _pending_values(segment, paths, limit)
            counter.add(segment.piece.rows)

        def rest(file: tuple[int, Path]) -> Iterator[pa.RecordBatch]:
            yield from _rest_of_vocabulary(*file, limit)

        wanted = frame_of_tasks(spark, segments, pending, "segment int, feature int, value string")
        files = [(number, file) for number, path in enumerate(paths.values()) for file in vocabulary_files(path)]
        listed = frame_of_tasks(spark, files, rest, "feature int, value string, id long")
        found = wanted.join(listed, ["feature", "value"]).select("segment", "feature", "value", "id")

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_segments(batches, vocabularies.joined)

        partitions = min(len(segments), int(spark.conf.get("spark.sql.shuffle.partitions") or len(segments)))
        by_segment = found.repartition(partitions, "segment").sortWithinPartitions("segment")
        by_segment.mapInArrow(write, "segment int").count()
    return vocabularies


@lru_cache(maxsize=64)
def _head(path: Path, limit: int) -> VocabularyLookup:
    return VocabularyLookup.load(path, limit)


def _pending_values(segment: Segment, paths: Mapping[str, Path], limit: int) -> Iterator[pa.RecordBatch]:
    """The distinct values of a segment that are not among the first `limit` of their vocabulary."""
    names = list(paths)
    pending: dict[str, list[pa.Array]] = {name: [] for name in names}
    for batch in read_piece(segment.piece, names, names):
        for name in names:
            values = batch.column(name).dictionary
            pending[name].append(values.filter(pa.array(_head(paths[name], limit).ids(values) == 0)))
    for number, name in enumerate(names):
        values = pa.chunked_array(pending[name], pa.string()).unique()
        numbers = [pa.array(np.full(len(values), n, np.int32)) for n in (segment.index, number)]
        yield pa.RecordBatch.from_arrays([*numbers, values], names=["segment", "feature", "value"])


def _rest_of_vocabulary(feature: int, file: Path, limit: int) -> Iterator[pa.RecordBatch]:
    """The values of a vocabulary file beyond the first `limit` of the vocabulary, with their ids."""
    with pq.ParquetFile(file) as parquet:
        for batch in parquet.iter_batches(columns=["value", "id"]):
            rest = batch.filter(pc.greater(batch["id"], limit))
            columns = [pa.array(np.full(len(rest), feature, np.int32)), rest["value"], rest["id"]]
            yield pa.RecordBatch.from_arrays(columns, schema=_JOINED)


def _write_segments(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write rows that are sorted by segment to a file for each segment."""
    for segment, run in rows_by_value(batches, "segment"):
        with new_parquet(folder / f"{segment:06d}.parquet", _JOINED) as writer:
            for batch in run:
                writer.write_batch(batch.select(_JOINED.names).cast(_JOINED))
        yield pa.RecordBatch.from_arrays([pa.array([segment], pa.int32())], names=["segment"])
