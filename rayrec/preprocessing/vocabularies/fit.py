"""Second stage: count every categorical value and number the frequent ones by rank, without a column ever in one place.

A task counts the values of its rows in Arrow; Spark adds up the counts by (feature, value) and sorts by (feature,
descending count, value) into ranges. A range knows its rows of each feature, so offsets turn places into ids.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.config.transforms import Vocabulary
from rayrec.features.vocabulary import VOCABULARY_SCHEMA, fingerprint, index_file, write_index
from rayrec.ingest.dataset import VOCABULARY_FOLDER
from rayrec.preprocessing.segments import Piece, ReadRows, Segment, count_rows, cut_pieces, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.tasks import counted_rows, run_brief_tasks
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.shards import cut_row_groups
from rayrec.storage.files import make_folder, open_parquet
from rayrec.storage.parquet_files import new_parquet

_VALUES_PER_FILE = 4_194_304
"""A longer vocabulary is a folder of parts."""
_VALUES_PER_ROW_GROUP = 65_536
_GIVEN = 0
"""The partition that given values are written as."""
_COUNTED = pa.schema([("feature", pa.int32()), ("value", pa.string()), ("count", pa.int64())])
_RANKED = pa.schema([pa.field("value", pa.string(), False), pa.field("count", pa.int64(), False)])


def vocabulary_file(feature: str, size: int) -> str:
    """The path of a feature's vocabulary, relative to the dataset: a file, or a folder of parts for a long one."""
    path = f"{VOCABULARY_FOLDER}/{feature}"
    return f"{path}.parquet" if size <= _VALUES_PER_FILE else path


@dataclass(frozen=True)
class Listing:
    """A vocabulary to fit."""

    columns: tuple[str, ...]
    """The columns (text, or lists of it) whose values count together."""
    min_count: int = 1
    """The least count at which a value is listed."""
    max_size: int | None = None
    """The most values that are listed, the most frequent ones."""
    values: tuple[str, ...] | None = None
    """The values that are listed, in order of id, instead of those found."""


def fit_vocabularies(
    workspace: Workspace, read: ReadRows, segments: Sequence[Segment], listings: Mapping[str, Listing]
) -> dict[str, Vocabulary]:
    """Write the vocabularies of features into the dataset folder, fitted on the rows of `segments`.

    Ids go from 1 by descending count, ties by ascending value (the order of the UTF-8 bytes), so they depend on the
    rows alone. Missing values and empty ones are not listed.
    """
    features = list(listings)
    progress, ranked_in = workspace.progress, workspace.scratch / "ranked"
    make_folder(workspace.folder / VOCABULARY_FOLDER)
    if not listings:
        return {}
    with counted_rows(workspace.workers, progress, "count values", count_rows(segments)) as counter:

        def count(segment: Segment) -> Iterator[pa.RecordBatch]:
            yield from _count_values(segment, read, list(listings.values()))
            counter.add(segment.piece.rows)

        def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_ranks(batches, ranked_in, partition)

        least = [1 if listing.values else listing.min_count for listing in listings.values()]
        counted = workspace.workers.rows(segments, count, _COUNTED)
        listed = counted.summed(("feature", "value"), ("count",)).at_least("count", least, by="feature")
        ranked = listed.in_order("feature", "count", "value", descending=("count",))
        found = ranked.results(write, "feature int, partition int, rows long")
    parts: dict[int, list[tuple[int, int]]] = {index: [] for index in range(len(features))}
    for feature, partition, rows in sorted(found):
        most = listings[features[feature]].max_size
        before = sum(kept for _, kept in parts[feature])
        kept = rows if most is None else min(rows, most - before)
        if kept:
            parts[feature].append((partition, kept))
    for feature, listing in enumerate(listings.values()):
        if listing.values is not None:
            parts[feature] = [_rank_given(ranked_in, feature, listing.values, parts[feature])]
    sizes = {name: sum(rows for _, rows in parts[index]) for index, name in enumerate(features)}
    progress.stage("number values", sum(sizes.values()))
    fingerprints = _number(workspace, features, parts, sizes, ranked_in)
    progress.advance(sum(sizes.values()))
    return {
        name: Vocabulary(file=vocabulary_file(name, size), size=size, fingerprint=f"{fingerprints[name]:016x}")
        for name, size in sizes.items()
    }


def _count_values(segment: Segment, read: ReadRows, listings: Sequence[Listing]) -> Iterator[pa.RecordBatch]:
    """The distinct values of a segment by feature, with their counts."""
    columns = list(dict.fromkeys(name for listing in listings for name in listing.columns))
    partial: dict[str, list[tuple[pa.Array, pa.Array]]] = {name: [] for name in columns}
    for batch in read(segment, columns, columns):
        for name in columns:
            partial[name].append(distinct_values(batch.column(name)))
    for number, listing in enumerate(listings):
        found = [part for name in listing.columns for part in partial[name]]
        values = pa.chunked_array([v for v, _ in found], pa.string())
        counts = pa.chunked_array([c for _, c in found], pa.int64())
        table = pa.table({"value": values, "count": counts})
        is_listed = pc.greater(table["count"], 0)
        if listing.values is not None:
            is_listed = pc.and_(is_listed, pc.is_in(values, pa.array(listing.values, pa.string())))
        is_listed = pc.and_(is_listed, pc.not_equal(values, ""))
        table = table.filter(is_listed).group_by("value", use_threads=False).aggregate([("count", "sum")])
        columns_of = [pa.array(np.full(len(table), number, np.int32)), table["value"], table["count_sum"]]
        yield from pa.table(columns_of, schema=_COUNTED).combine_chunks().to_batches()


def distinct_values(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Distinct values of a column or its lists as text, null not among them, and how often (0, too) they are in it."""
    if not pa.types.is_dictionary(column.type):
        column = (column.flatten() if pa.types.is_list(column.type) else column).dictionary_encode()
    counts = np.bincount(column.indices.drop_null().to_numpy(), minlength=len(column.dictionary))
    return column.dictionary.cast(pa.string()), pa.array(counts, pa.int64())


def _rank_given(folder: Path, feature: int, values: Sequence[str], parts: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Write given values with their counts, in their order, as if they were found so; returns partition and rows."""
    tables = [_RANKED.empty_table()]
    for partition, _ in parts:
        with open_parquet(_rank_path(folder, feature, partition)) as file:
            tables.append(file.read())
    found = pa.concat_tables(tables)
    counts = dict(zip(found["value"].to_pylist(), found["count"].to_pylist(), strict=True))
    with new_parquet(_rank_path(folder, feature, _GIVEN), _RANKED) as writer:
        writer.write_table(pa.table([list(values), [counts.get(value, 0) for value in values]], schema=_RANKED))
    return _GIVEN, len(values)


def _write_ranks(batches: Iterator[pa.RecordBatch], folder: Path, partition: int) -> Iterator[pa.RecordBatch]:
    """Write a sorted range to a file for each feature in it; yields (feature, partition, rows) of each file."""
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

    Then writes the indexes. Returns the features' fingerprints.
    """
    files: list[_Numbering] = []
    for number, name in enumerate(features):
        path = workspace.folder / vocabulary_file(name, sizes[name])
        pieces = [Piece(_rank_path(ranked, number, partition), 0, rows) for partition, rows in parts[number]]
        # Spark draws its ranges by chance, so files and row groups are cut anew: a new run writes the same bytes.
        for index, start in enumerate(range(0, max(1, sizes[name]), _VALUES_PER_FILE)):
            part = path if path.suffix else path / f"part-{index:05d}.parquet"
            files.append(_Numbering(name, part, cut_pieces(pieces, start, start + _VALUES_PER_FILE), start + 1))

    words = dict.fromkeys(features, 0)
    for file, word in zip(files, run_brief_tasks(workspace.workers, files, _write_ids), strict=True):
        words[file.feature] = (words[file.feature] + word) % 2**64
    paths = [workspace.folder / vocabulary_file(name, sizes[name]) for name in features]
    run_brief_tasks(workspace.workers, paths, _write_index)
    return words


def _write_index(path: Path) -> None:
    write_index(path, index_file(path))


@dataclass(frozen=True)
class _Numbering:
    """A vocabulary file to write: the values of `pieces`, in order, with ids from `first_id`."""

    feature: str
    path: Path
    pieces: Sequence[Piece]
    first_id: int


def _write_ids(file: _Numbering) -> int:
    """Write a vocabulary file; returns the fingerprint of its values."""
    next_id, word = file.first_id, 0
    with new_parquet(file.path, VOCABULARY_SCHEMA) as writer:
        ranked = (batch for piece in file.pieces for batch in read_piece(piece, _RANKED.names, ()))
        for table in cut_row_groups(ranked, _VALUES_PER_ROW_GROUP):
            ids = pa.array(np.arange(next_id, next_id + table.num_rows))
            writer.write_table(pa.table([table["value"], ids, table["count"]], schema=VOCABULARY_SCHEMA))
            word = (word + fingerprint(table["value"].combine_chunks(), next_id)) % 2**64
            next_id += table.num_rows
    return word
