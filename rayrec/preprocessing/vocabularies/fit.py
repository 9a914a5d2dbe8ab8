"""Second stage: count every categorical value and number the frequent ones by rank, without a column ever in one place.

A task counts the values of its rows in Arrow; Spark adds up the counts by (feature, value) and sorts by (feature,
descending count, value) into ranges. A range knows its rows of each feature, so offsets turn places into ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.config.transforms import Vocabulary
from rayrec.features.vocabulary import VOCABULARY_SCHEMA, fingerprint
from rayrec.ingest.dataset import VOCABULARY_FOLDER
from rayrec.preprocessing.segments import Segment, count_rows, new_parquet, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number, run_tasks
from rayrec.preprocessing.workspace import Workspace

_VALUES_PER_FILE = 4_194_304
"""A longer vocabulary is a folder of parts."""
_COUNTED = pa.schema([("feature", pa.int32()), ("value", pa.string()), ("count", pa.int64())])
_RANKED = pa.schema([pa.field("value", pa.string(), False), pa.field("count", pa.int64(), False)])


def vocabulary_file(feature: str, size: int) -> str:
    """The path of a feature's vocabulary, relative to the dataset: a file, or a folder of parts for a long one."""
    path = f"{VOCABULARY_FOLDER}/{feature}"
    return f"{path}.parquet" if size <= _VALUES_PER_FILE else path


def fit_vocabularies(
    workspace: Workspace, segments: Sequence[Segment], limits: Mapping[str, int]
) -> dict[str, Vocabulary]:
    """Write the vocabularies of the features in `limits` into the dataset folder, fitted on the rows of `segments`.

    `limits` gives the least count at which a value is listed. Ids go from 1 by descending count, ties by ascending
    value (the order of the UTF-8 bytes), so they depend on the rows alone.
    """
    features = list(limits)
    spark, progress, ranked_in = workspace.spark, workspace.progress, workspace.scratch / "ranked"
    (workspace.folder / VOCABULARY_FOLDER).mkdir(exist_ok=True)
    with counted_rows(spark, progress, "count values", count_rows(segments)) as counter:

        def count(segment: Segment) -> Iterator[pa.RecordBatch]:
            yield from _count_values(segment, features)
            counter.add(segment.piece.rows)

        from pyspark.sql import functions as f

        counted = frame_of_tasks(spark, segments, count, "feature int, value string, count long")
        least = f.element_at(f.array(*[f.lit(limit) for limit in limits.values()]), f.col("feature") + 1)
        ranked = (
            counted.groupBy("feature", "value")
            .agg(f.sum("count").alias("count"))
            .filter(f.col("count") >= least)
            .orderBy("feature", f.desc("count"), "value")
        )

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_ranks(batches, ranked_in)

        found = collect_rows(ranked.mapInArrow(write, "feature int, partition int, rows long"))
    parts: dict[int, list[tuple[int, int]]] = {index: [] for index in range(len(features))}
    for feature, partition, rows in sorted(found):
        parts[feature].append((partition, rows))
    sizes = {name: sum(rows for _, rows in parts[index]) for index, name in enumerate(features)}
    progress.stage("number values", sum(sizes.values()))
    fingerprints = _number(workspace, features, parts, sizes, ranked_in)
    progress.advance(sum(sizes.values()))
    return {
        name: Vocabulary(file=vocabulary_file(name, size), size=size, fingerprint=f"{fingerprints[name]:016x}")
        for name, size in sizes.items()
    }


def _count_values(segment: Segment, features: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The distinct values of a segment by feature, with their counts."""
    partial: dict[str, list[tuple[pa.Array, NDArray[np.int64]]]] = {name: [] for name in features}
    for batch in read_piece(segment.piece, features, features):
        for name in features:
            column = batch.column(name)
            indices = column.indices.drop_null().to_numpy()
            counts = np.bincount(indices, minlength=len(column.dictionary))
            partial[name].append((column.dictionary, counts))
    for number, name in enumerate(features):
        values = pa.chunked_array([v for v, _ in partial[name]], pa.string())
        counts = pa.array(np.concatenate([c for _, c in partial[name]]))
        table = pa.table({"value": values, "count": counts})
        table = table.filter(pa.compute.greater(table["count"], 0)).group_by("value", use_threads=False).aggregate(
            [("count", "sum")]
        )  # fmt: skip
        columns = [pa.array(np.full(len(table), number, np.int32)), table["value"], table["count_sum"]]
        yield from pa.table(columns, schema=_COUNTED).combine_chunks().to_batches()


def _write_ranks(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write a sorted range to a file for each feature in it; yields (feature, partition, rows) of each file."""
    partition = partition_number()
    for feature, run in rows_by_value(batches, "feature"):
        rows = 0
        with new_parquet(_rank_path(folder, feature, partition), _RANKED) as writer:
            for batch in run:
                writer.write_batch(pa.RecordBatch.from_arrays([batch["value"], batch["count"]], schema=_RANKED))
                rows += batch.num_rows
        yield pa.RecordBatch.from_arrays(
            [pa.array([feature], pa.int32()), pa.array([partition], pa.int32()), pa.array([rows], pa.int64())],
            names=["feature", "partition", "rows"],
        )


def _rank_path(folder: Path, feature: int, partition: int) -> Path:
    return folder / f"{feature}-{partition:05d}.parquet"


def _number(
    workspace: Workspace,
    features: Sequence[str],
    parts: Mapping[int, Sequence[tuple[int, int]]],
    sizes: Mapping[str, int],
    ranked: Path,
) -> dict[str, int]:
    """Write the ranked files again with ids: into one file a feature, or a file a part for long vocabularies.

    Returns the features' fingerprints.
    """
    files: list[_Numbering] = []
    for number, name in enumerate(features):
        path = workspace.folder / vocabulary_file(name, sizes[name])
        sources = [_rank_path(ranked, number, partition) for partition, _ in parts[number]]
        if path.suffix:
            files.append(_Numbering(name, path, sources, first_id=1))
            continue
        first_id = 1
        for index, (source, (_, rows)) in enumerate(zip(sources, parts[number], strict=True)):
            files.append(_Numbering(name, path / f"part-{index:05d}.parquet", [source], first_id))
            first_id += rows

    words = dict.fromkeys(features, 0)
    for file, word in zip(files, run_tasks(workspace.spark, files, _write_ids), strict=True):
        words[file.feature] = (words[file.feature] + word) % 2**64
    return words


@dataclass(frozen=True)
class _Numbering:
    """A vocabulary file to write: the values of `sources`, in order, with ids from `first_id`."""

    feature: str
    path: Path
    sources: Sequence[Path]
    first_id: int


def _write_ids(file: _Numbering) -> int:
    """Write a vocabulary file; returns the fingerprint of its values."""
    next_id, word = file.first_id, 0
    with new_parquet(file.path, VOCABULARY_SCHEMA) as writer:
        for source in file.sources:
            with pq.ParquetFile(source) as ranked:
                for batch in ranked.iter_batches():
                    ids = pa.array(np.arange(next_id, next_id + batch.num_rows))
                    columns = [batch["value"], ids, batch["count"]]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=VOCABULARY_SCHEMA))
                    word = (word + fingerprint(batch["value"], next_id)) % 2**64
                    next_id += batch.num_rows
    return word
