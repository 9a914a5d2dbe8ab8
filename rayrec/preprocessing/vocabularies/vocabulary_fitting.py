"""Second stage: count every categorical value and number the frequent ones by rank, without a column ever in one place.

A task counts the values of its rows in Arrow; counts are added up by (feature, value), and those that are listed are
sorted by (feature, descending count, value) into ranges. A range knows its rows of each feature, so offsets turn places
into ids. A vocabulary that goes on from an earlier one begins with it: new values come after the old ones.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.transforms import Vocabulary
from rayrec.features.vocabulary import (
    VALUES_PER_FILE,
    VALUES_PER_ROW_GROUP,
    VOCABULARY_SCHEMA,
    VocabularyLookup,
    content_hash,
    write_index,
)
from rayrec.ingest.dataset import COUNTS_FOLDER, VOCABULARY_FOLDER, Dataset
from rayrec.preprocessing.segments import Piece, ReadRows, Segment, cut_pieces, read_piece
from rayrec.preprocessing.sorted_rows import cut_row_groups, rows_by_value
from rayrec.preprocessing.tasks import run_brief_tasks
from rayrec.preprocessing.vocabularies.value_counts import (
    CountFiles,
    GrowthRules,
    Listing,
    count_values,
    read_counts,
    read_expired,
)
from rayrec.preprocessing.workspace import Stages, Workspace
from rayrec.store.node_copy import on_this_node
from rayrec.store.parquet import new_parquet, open_parquet
from rayrec.store.paths import file_name

_GIVEN = 0
"""The partition that given values are written as."""
_CANDIDATES = pa.schema([("feature", pa.int32()), ("value", pa.string()), ("count", pa.int64())])
_RANKED = pa.schema([pa.field("value", pa.string(), False), pa.field("count", pa.int64(), False)])


def vocabulary_file(feature: str, size: int) -> str:
    """Return the path of a feature's vocabulary, relative to the dataset: a file, or a folder of parts for a
    long one.
    """
    path = f"{VOCABULARY_FOLDER}/{file_name(feature)}"
    return f"{path}.parquet" if size <= VALUES_PER_FILE else path


def fit_vocabularies(
    workspace: Workspace,
    stages: Stages,
    read: ReadRows,
    segments: Sequence[Segment],
    listings: Mapping[str, Listing],
    growth: GrowthRules,
) -> dict[str, Vocabulary]:
    """Write the vocabularies of features into the dataset folder, fitted on the rows of `segments` and those before.

    Ids go from 1 by descending count, ties by ascending value (the order of the UTF-8 bytes), so they depend on the
    rows alone. Missing values and empty ones are not listed. With a parent the ids of its values stay, unless they are
    to be compact: what is listed now follows, and the empty text takes the place of a value that has expired. To count
    and to list are a stage each.
    """
    if not listings:
        (workspace.folder / VOCABULARY_FOLDER).mkdir(parents=True, exist_ok=True)
        return {}
    counts = stages.run(
        "counts",
        CountFiles,
        lambda _: count_values(workspace, read, segments, listings, growth),
        workspace.folder / COUNTS_FOLDER,
    )
    return stages.run(
        "vocabularies",
        dict[str, Vocabulary],
        lambda _: _list_values(workspace, listings, counts, None if growth.compact else growth.parent),
        workspace.folder / VOCABULARY_FOLDER,
    )


def _list_values(
    workspace: Workspace, listings: Mapping[str, Listing], counts: CountFiles, parent: Dataset | None
) -> dict[str, Vocabulary]:
    features, ranked_in = list(listings), workspace.scratch / "ranked"
    earlier = {} if parent is None else _vocabularies_of(parent)
    least = [1 if listing.values else listing.min_count for listing in listings.values()]

    def candidates(path: Path) -> Iterator[pa.RecordBatch]:
        for number, counted in read_counts(path, features):
            frequent = counted.filter(pc.greater_equal(counted["count"], least[number]))
            if parent is not None and features[number] in earlier:
                ids = _ids_in(parent, earlier[features[number]], frequent["value"].combine_chunks())
                frequent = frequent.filter(pa.array(ids == 0))
            columns = [pa.array(np.full(len(frequent), number, np.int32)), frequent["value"], frequent["count"]]
            yield from pa.table(columns, schema=_CANDIDATES).combine_chunks().to_batches()

    def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _write_ranks(batches, ranked_in, partition)

    rows = workspace.runner.rows(counts.files, candidates, _CANDIDATES)
    ranked = rows.sort("feature", "count", "value", descending=("count",))
    found = ranked.results(write, "feature int, partition int, rows long")
    before = {name: _pieces_of(parent, earlier[name]) for name in earlier} if parent is not None else {}
    pieces = {name: [*before.get(name, ())] for name in features}
    for feature, partition, count in sorted(found):
        name, most = features[feature], listings[features[feature]].max_size
        kept = count if most is None else min(count, most - sum(piece.rows for piece in pieces[name]))
        if kept > 0:
            pieces[name].append(Piece(_rank_path(ranked_in, feature, partition), 0, kept))
    for feature, (name, listing) in enumerate(listings.items()):
        if listing.values is not None:
            pieces[name] = before.get(name) or [_rank_given(ranked_in, feature, listing.values, pieces[name])]
    removed: dict[str, NDArray[np.int64]] = {}
    if parent is not None:
        found_ones = {name: earlier[name] for name in earlier if listings[name].values is None}
        removed = _removed(workspace, features, counts.expired, parent, found_ones)
    sizes = {name: sum(piece.rows for piece in of_feature) for name, of_feature in pieces.items()}
    workspace.progress.stage("number values", sum(sizes.values()))
    words = _number(workspace, pieces, sizes, removed)
    workspace.progress.advance(sum(sizes.values()))
    return {
        name: Vocabulary(file=vocabulary_file(name, size), size=size, content_hash=f"{words[name]:016x}")
        for name, size in sizes.items()
    }


def _vocabularies_of(dataset: Dataset) -> dict[str, Vocabulary]:
    """Return the vocabularies of a dataset by the feature that they belong to."""
    return {f.table or f.name: f.vocabulary for f in dataset.schema.categorical if f.vocabulary is not None}


def _pieces_of(dataset: Dataset, vocabulary: Vocabulary) -> list[Piece]:
    """Return the values of a vocabulary in order of id."""
    pieces = []
    whole = dataset.folder / vocabulary.file
    for path in [whole] if whole.suffix == ".parquet" else dataset.files_in(vocabulary.file):
        with open_parquet(path) as file:
            pieces.append(Piece(path, 0, file.metadata.num_rows))
    return pieces


def _ids_in(dataset: Dataset, vocabulary: Vocabulary, values: pa.Array) -> NDArray[np.int64]:
    return _opened(dataset.folder / VOCABULARY_FOLDER, vocabulary.file).ids(values)


@lru_cache(maxsize=64)
def _opened(folder: Path, file: str) -> VocabularyLookup:
    return VocabularyLookup.load(on_this_node(folder).parent / file)


def _removed(
    workspace: Workspace,
    features: Sequence[str],
    expired: Sequence[Path],
    parent: Dataset,
    earlier: Mapping[str, Vocabulary],
) -> dict[str, NDArray[np.int64]]:
    """Return the ids of expired values by feature, ascending."""

    def ids(path: Path) -> dict[str, NDArray[np.int64]]:
        table, found = read_expired(path), {}
        for number, name in enumerate(features):
            values = table.filter(pc.equal(table["feature"], number))["value"].combine_chunks()
            if name in earlier and len(values):
                in_vocabulary = _ids_in(parent, earlier[name], values)
                found[name] = in_vocabulary[in_vocabulary > 0]
        return found

    by_file = workspace.runner.run(expired, ids)
    parts = {name: [found[name] for found in by_file if name in found] for name in features}
    return {name: np.sort(np.concatenate(of_feature)) for name, of_feature in parts.items() if of_feature}


def _rank_given(folder: Path, feature: int, values: Sequence[str], found: Sequence[Piece]) -> Piece:
    """Write given values with their counts, in their order, as if they were found so."""
    tables = [_RANKED.empty_table()]
    for piece in found:
        with open_parquet(piece.path) as file:
            tables.append(file.read())
    ranked = pa.concat_tables(tables)
    counts = dict(zip(ranked["value"].to_pylist(), ranked["count"].to_pylist(), strict=True))
    path = _rank_path(folder, feature, _GIVEN)
    with new_parquet(path, _RANKED) as writer:
        writer.write_table(pa.table([list(values), [counts.get(value, 0) for value in values]], schema=_RANKED))
    return Piece(path, 0, len(values))


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
    pieces: Mapping[str, Sequence[Piece]],
    sizes: Mapping[str, int],
    removed: Mapping[str, NDArray[np.int64]],
) -> dict[str, int]:
    """Write the values of features with ids, in one file, or in a file a part for long vocabularies; then the indexes.

    Return the content hash of each feature's vocabulary.
    """
    files: list[_Numbering] = []
    for name, of_feature in pieces.items():
        path = workspace.folder / vocabulary_file(name, sizes[name])
        # Spark draws its ranges by chance, so files and row groups are cut anew: a new run writes the same bytes.
        for index, start in enumerate(range(0, max(1, sizes[name]), VALUES_PER_FILE)):
            part = path if path.suffix else path / f"part-{index:05d}.parquet"
            cut = cut_pieces(of_feature, start, start + VALUES_PER_FILE)
            files.append(_Numbering(name, part, cut, start + 1, removed.get(name, np.empty(0, np.int64))))

    words = dict.fromkeys(pieces, 0)
    for file, word in zip(files, run_brief_tasks(workspace.runner, files, _write_ids), strict=True):
        words[file.feature] = (words[file.feature] + word) % 2**64
    paths = [workspace.folder / vocabulary_file(name, sizes[name]) for name in pieces]
    run_brief_tasks(workspace.runner, paths, write_index)
    return words


@dataclass(frozen=True)
class _Numbering:
    """A vocabulary file to write: the values of `pieces`, in order, with ids from `first_id`."""

    feature: str
    path: Path
    pieces: Sequence[Piece]
    first_id: int
    removed: NDArray[np.int64] = field(repr=False)
    """The ids, ascending, of values that are no longer listed, in this file or another one."""


def _write_ids(file: _Numbering) -> int:
    """Write a vocabulary file; return the content hash of its values."""
    next_id, word = file.first_id, 0
    with new_parquet(file.path, VOCABULARY_SCHEMA) as writer:
        ranked = (batch for piece in file.pieces for batch in read_piece(piece, _RANKED.names, ()))
        for table in cut_row_groups(ranked, VALUES_PER_ROW_GROUP):
            ids = np.arange(next_id, next_id + table.num_rows)
            values = table["value"].combine_chunks()
            if len(file.removed):
                values = pc.if_else(pa.array(np.isin(ids, file.removed)), "", values)
            writer.write_table(pa.table([values, pa.array(ids), table["count"]], schema=VOCABULARY_SCHEMA))
            word = (word + content_hash(values, next_id)) % 2**64
            next_id += table.num_rows
    return word
