"""Look-ups in vocabularies too long for a node's memory.

The most frequent values are looked up in an index that the processes of a node map into memory, so neither they nor
missing values reach a shuffle. Each segment sends every other distinct value once, Spark joins these with the rest of
the vocabulary, and each segment gets back a small table of its own. No key of the join has more rows than there are
segments, so the join cannot be skewed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.transforms import HashUnlisted
from rayrec.features.categorical import hash_unlisted
from rayrec.features.encoder import id_column
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.features.vocabulary import VocabularyLookup, vocabulary_files, write_index
from rayrec.preprocessing.runners.spark_runner import frame_of_tasks
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.vocabularies.value_counts import distinct_values
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.parquet import new_parquet, open_parquet

Rest = Mapping[Path, tuple[pa.Array, NDArray[np.int64]]]
"""Values beyond the limit (string) and their ids, by vocabulary."""

_PENDING = pa.schema([("segment", pa.int32()), ("vocabulary", pa.int32()), ("value", pa.string())])
_JOINED = pa.schema([("vocabulary", pa.int32()), ("value", pa.string()), ("id", pa.int64())])


@dataclass(frozen=True)
class LongVocabularies:
    """The features with long vocabularies, and the joined ids of each segment."""

    features: tuple[CategoricalFeature, ...]
    dataset: Path
    """Folder that holds the vocabularies."""
    limit: int
    """Number of values of each vocabulary that are looked up in memory."""
    joined: Path
    """Folder with an index of the first `limit` values of each vocabulary, and a file for each segment."""

    @classmethod
    def of(cls, workspace: Workspace, schema: Schema, limit: int) -> "LongVocabularies":
        """Choose the features of a schema that have a vocabulary of more than `limit` values.

        Threads have none: the vocabularies of a small input are small.
        """
        features = [f for f in schema.categorical if f.vocabulary is not None and f.vocabulary.size > limit]
        joined = workspace.scratch / "joined"
        return cls(tuple(features) if workspace.has_spark else (), workspace.folder, limit, joined)

    @cached_property
    def paths(self) -> dict[Path, tuple[str, ...]]:
        """Long vocabularies, with the columns whose values are looked up in each."""
        found: dict[Path, tuple[str, ...]] = {}
        for feature in self.features:
            path = self._path(feature)
            found[path] = tuple(dict.fromkeys((*found.get(path, ()), feature.columns[0])))
        return found

    def first_ids(self, path: Path, values: pa.Array) -> NDArray[np.int64]:
        """(n,) ids of n values (string) in the vocabulary `path`; 0 for those that are not among its first ones."""
        return _opened(self.index_of_first(path)).ids(values)

    def index_of_first(self, path: Path) -> Path:
        """Return the index of the first values of the vocabulary `path`."""
        return self.joined / f"first-{list(self.paths).index(path)}.arrow"

    @property
    def names(self) -> frozenset[str]:
        """Names of the features."""
        return frozenset(feature.name for feature in self.features)

    @property
    def columns(self) -> list[str]:
        """Columns whose values are looked up."""
        return list(dict.fromkeys(feature.columns[0] for feature in self.features))

    def rest_of_segment(self, index: int) -> Rest:
        """Return the values of a segment beyond the limit, and their ids."""
        path = self.joined / f"{index:06d}.parquet"
        rows = _JOINED.empty_table()
        if path.exists():
            with open_parquet(path) as file:
                rows = file.read()
        parts = {path: rows.filter(pc.equal(rows["vocabulary"], n)) for n, path in enumerate(self.paths)}
        return {path: (found["value"].combine_chunks(), found["id"].to_numpy()) for path, found in parts.items()}

    def with_ids(self, batch: pa.RecordBatch, rest: Rest) -> pa.RecordBatch:
        """`batch`, of the segment of `rest`, with the column `id_column` of each feature."""
        for feature in self.features:
            ids = self._ids(feature, batch.column(feature.columns[0]), rest)
            batch = batch.append_column(id_column(feature.name), ids)
        return batch

    def _ids(self, feature: CategoricalFeature, column: pa.Array, rest: Rest) -> pa.Array:
        if pa.types.is_list(column.type):
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
            offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
            values = column.flatten()
            is_missing = pc.fill_null(pc.equal(values, ""), True)
            return pa.ListArray.from_arrays(offsets, pc.if_else(is_missing, None, self._ids(feature, values, rest)))
        values = column.cast(pa.string())
        ids = self.first_ids(self._path(feature), values)
        pending = np.flatnonzero(ids == 0)
        rest_values, rest_ids = rest[self._path(feature)]
        found = pc.index_in(values.take(pa.array(pending)), value_set=rest_values, skip_nulls=True)
        is_listed = found.is_valid().to_numpy(zero_copy_only=False)
        ids[pending[is_listed]] = rest_ids[found.drop_null().to_numpy()]
        for transform in feature.transforms:
            if isinstance(transform, HashUnlisted):
                ids = hash_unlisted(ids, values, transform)
        return pa.array(ids)

    def _path(self, feature: CategoricalFeature) -> Path:
        assert feature.vocabulary is not None
        return self.dataset / feature.vocabulary.file


def join_long_vocabularies(
    workspace: Workspace, read: ReadRows, segments: Sequence[Segment], vocabularies: LongVocabularies
) -> None:
    """Look up the values of every segment beyond the most frequent ones of each vocabulary."""
    if not vocabularies.features:
        return
    spark = workspace.spark

    def index_first(path: Path) -> None:
        write_index(path, vocabularies.index_of_first(path), vocabularies.limit)

    workspace.runner.run(list(vocabularies.paths), index_first)
    with counted_rows(workspace.runner, workspace.progress, "join long vocabularies", count_rows(segments)) as counter:

        def pending(segment: Segment) -> Iterator[pa.RecordBatch]:
            yield from _pending_values(segment, read, vocabularies)
            counter.add(segment.piece.rows)

        def rest(file: tuple[int, Path]) -> Iterator[pa.RecordBatch]:
            yield from _rest_of_vocabulary(*file, vocabularies.limit)

        wanted = frame_of_tasks(spark, segments, pending, _PENDING)
        files = [(number, file) for number, path in enumerate(vocabularies.paths) for file in vocabulary_files(path)]
        listed = frame_of_tasks(spark, files, rest, _JOINED)
        found = wanted.join(listed, ["vocabulary", "value"]).select("segment", "vocabulary", "value", "id")

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_segments(batches, vocabularies.joined)

        partitions = min(len(segments), workspace.runner.partitions)
        by_segment = found.repartition(partitions, "segment").sortWithinPartitions("segment")
        by_segment.mapInArrow(write, "segment int").count()


@lru_cache(maxsize=64)
def _opened(index: Path) -> VocabularyLookup:
    return VocabularyLookup.of_index(index)


def _pending_values(segment: Segment, read: ReadRows, vocabularies: LongVocabularies) -> Iterator[pa.RecordBatch]:
    """Yield the distinct values of a segment that are not among the first of their vocabulary."""
    pending: dict[Path, list[pa.Array]] = {path: [] for path in vocabularies.paths}
    for batch in read(segment, vocabularies.columns, vocabularies.columns):
        for path, columns in vocabularies.paths.items():
            for name in columns:
                values, _ = distinct_values(batch.column(name))
                pending[path].append(values.filter(pa.array(vocabularies.first_ids(path, values) == 0)))
    for number, parts in enumerate(pending.values()):
        values = pa.chunked_array(parts, pa.string()).unique()
        numbers = [pa.array(np.full(len(values), n, np.int32)) for n in (segment.index, number)]
        yield pa.RecordBatch.from_arrays([*numbers, values], schema=_PENDING)


def _rest_of_vocabulary(number: int, file: Path, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the values of a vocabulary file beyond the first `limit` of the vocabulary, with their ids."""
    with open_parquet(file) as parquet:
        for batch in parquet.iter_batches(columns=["value", "id"]):
            # An empty text stands where a value has expired, and no value is one.
            rest = batch.filter(pc.and_(pc.greater(batch["id"], limit), pc.not_equal(batch["value"], "")))
            columns = [pa.array(np.full(len(rest), number, np.int32)), rest["value"], rest["id"]]
            yield pa.RecordBatch.from_arrays(columns, schema=_JOINED)


def _write_segments(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write rows that are sorted by segment to a file for each segment."""
    for segment, run in rows_by_value(batches, "segment"):
        with new_parquet(folder / f"{segment:06d}.parquet", _JOINED) as writer:
            for batch in run:
                writer.write_batch(batch.select(_JOINED.names).cast(_JOINED))
        yield pa.RecordBatch.from_arrays([pa.array([segment], pa.int32())], names=["segment"])
