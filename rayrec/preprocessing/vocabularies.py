"""Second stage: count every categorical value and number the frequent ones by rank, without a column ever in one place.

A task counts the values of its rows in Arrow; counts are added up by (feature, value), and one task for each feature
sorts those that are listed by (descending count, value), on its disk where there are many. The counts stay in the
dataset, in `counts/`: in a dataset that extends it a value is listed as soon as it has occurred often enough over all
days, and leaves when it has not occurred for long. There the vocabulary begins with the earlier one: new values come
after the old ones.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.preprocess import seconds_of
from rayrec.config.transforms import Vocabulary
from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import HASH
from rayrec.features.vocabulary import (
    VALUES_PER_FILE,
    VOCABULARY_SCHEMA,
    content_hash,
    read_vocabulary,
    write_whole_vocabulary,
)
from rayrec.ingest.dataset import COUNTS_FOLDER, VOCABULARY_FOLDER, Dataset, FoundKeys
from rayrec.preprocessing.engine import ShuffleInput, partition_by_hash
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows, cut_row_groups
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Stages, Workspace, counted_rows
from rayrec.store.files import remove
from rayrec.store.parquet import new_parquet_files, open_parquet
from rayrec.store.paths import file_name

_ROWS_PER_ROW_GROUP = 2**16
_ROWS_PER_FILE = 2**22
"""Counts of single segments that go to one file; the same on every cluster, so that the files are."""
_MOST_FILES = 4_096
_COUNTED = pa.schema([
    (HASH, pa.int64()), ("feature", pa.int32()), ("value", pa.string()), ("count", pa.int64()), ("last", pa.int64())
])  # fmt: skip
_HELD_OUT = pa.schema([
    (HASH, pa.int64()), ("feature", pa.int32()), ("count", pa.int64()), ("place", pa.int32())
])  # fmt: skip
_STORED = pa.schema([
    pa.field("feature", pa.dictionary(pa.int32(), pa.string()), False), pa.field("value", pa.string(), False),
    pa.field("count", pa.int64(), False), pa.field("last", pa.int64(), False),
])  # fmt: skip
_EXPIRED = pa.schema([("feature", pa.int32()), ("value", pa.string())])
_FOUND = pa.schema([("value", pa.string()), ("count", pa.int64())])
_EXPIRED_VALUES = pa.schema([("value", pa.string())])
_SUMS = """
select feature, value, sum(count)::bigint as count, max(last) as last from counted group by hash, feature, value
"""
_KNOWN = """
with train as (
    select hash, feature, count from counted semi join held_out using (hash, feature)
    union all
    select hash, feature, -count from held_out where {are_counted}
), known as (
    select hash, feature from train group by hash, feature having sum(count) > 0
)
select place, sum(count)::bigint as rows, sum(if(known.hash is null, 0, count))::bigint as found
from held_out left join known using (hash, feature)
group by place
"""
"""Counts rows by the hashes of their values: that two values have one is too rare to matter here."""


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


@dataclass(frozen=True)
class GrowthRules:
    """Rules by which the vocabularies of a dataset extend those of its parent."""

    moment: int = 0
    """When its rows happened, in seconds since 1970, or from any other start where rows have no time."""
    parent: Dataset | None = None
    """The dataset that it extends; None begins anew."""
    expire_after: str | None = None
    """How long a value may not occur before it leaves its vocabulary, such as `30d`; None keeps all."""
    compact: bool = False
    """Whether values are numbered anew, by the counts of all days."""

    @property
    def first_moment(self) -> int | None:
        """Time before which a value must have occurred last to be expired; None if none has."""
        if self.expire_after is None or self.parent is None:
            return None
        return self.moment - seconds_of(self.expire_after)


class HeldOut(NamedTuple):
    """The rows of held-out splits, to tell how many of them have a value that no row of `train` has."""

    items: Sequence[Any]
    """Items whose rows the tasks read."""
    read: Callable[[Any, Sequence[str]], Iterator[tuple[str, pa.RecordBatch]]]
    """Yields columns of the rows of an item, text dictionary encoded, each batch with the name of its split."""
    splits: tuple[str, ...]
    """Names of splits; the empty one is of rows that no split has."""
    are_counted: bool = False
    """True if the vocabularies count these values, too."""


KnownValues = dict[str, dict[str, FoundKeys]]
"""Rows that have a value, and those whose value `train` has, by held-out split and column."""


class CountFiles(NamedTuple):
    """Files of counted values, and of values that were counted before and have expired."""

    files: list[Path]
    expired: list[Path]
    known: KnownValues


def fit_vocabularies(
    workspace: Workspace,
    stages: Stages,
    read: ReadRows,
    segments: Sequence[Segment],
    listings: Mapping[str, Listing],
    growth: GrowthRules,
    held_out: HeldOut,
) -> tuple[dict[str, Vocabulary], KnownValues]:
    """Write the vocabularies of features into the dataset folder, fitted on the rows of `segments` and those before;
    return them, and how many held-out rows have a value that `train` has.

    Ids go from 1 by descending count, ties by ascending value (the order of the UTF-8 bytes), so they depend on the
    rows alone. Missing values and empty ones are not listed. With a parent the ids of its values stay, unless they are
    to be compact: what is listed now follows, and the empty text takes the place of a value that has expired. To count
    and to list are a stage each.
    """
    if not listings:
        (workspace.folder / VOCABULARY_FOLDER).mkdir(parents=True, exist_ok=True)
        return {}, {}
    counts = stages.run(
        "counts",
        CountFiles,
        lambda _: count_values(workspace, read, segments, listings, growth, held_out),
        workspace.folder / COUNTS_FOLDER,
    )
    vocabularies = stages.run(
        "vocabularies",
        dict[str, Vocabulary],
        lambda _: _list_values(workspace, listings, counts, None if growth.compact else growth.parent),
        workspace.folder / VOCABULARY_FOLDER,
    )
    return vocabularies, counts.known


def count_values(
    workspace: Workspace,
    read: ReadRows,
    segments: Sequence[Segment],
    listings: Mapping[str, Listing],
    growth: GrowthRules,
    held_out: HeldOut,
) -> CountFiles:
    """Write the counts of all values in the rows of `segments`, and before, to `counts/` of the dataset.

    A file has rows (feature, value, count, last), `last` being the moment of the dataset in which the value occurred
    last. Missing values and empty ones are not counted. Values of `held_out` are looked for among those of `train`,
    however rare, but for those of lists and of rules that list their values.
    """
    features, folder, gone = list(listings), workspace.folder / COUNTS_FOLDER, workspace.scratch / "expired"
    earlier = [] if growth.parent is None else growth.parent.files_in(COUNTS_FOLDER)
    remove(gone)  # what an attempt that died left
    total = count_rows(segments)
    # A number for each column of each held-out split.
    searched = [(n, column) for n, of in enumerate(listings.values()) if of.values is None for column in of.columns]
    places = [(split, column) for split in held_out.splits for _, column in searched]
    rows = total * len(listings)
    for path in earlier:
        with open_parquet(path) as file:
            rows += file.metadata.num_rows
    files = max(1, min(_MOST_FILES, -(-rows // _ROWS_PER_FILE)))
    with counted_rows(workspace.engine, workspace.progress, "count values", total) as counter:
        # A task counts the values of its rows, so that a value is shuffled once for each task ...
        def count(segment: Segment) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
            for number, values, counts in _counted(segment, read, list(listings.values())):
                yield hashed(np.full(len(values), number), values, counts, np.full(len(values), growth.moment))
            counter.add(segment.piece.rows)

        def count_before(path: Path) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
            for numbers, before in read_counts(path, features):
                yield hashed(numbers, before["value"], before["count"], before["last"])

        def hashed(
            numbers: NDArray[np.int64], values: pa.StringArray, *counts: Any
        ) -> tuple[NDArray[np.int64], pa.RecordBatch]:
            hashes = hash_texts(values)
            columns = [pa.array(column).cast(kind) for column, kind in zip(
                (hashes, numbers, values, *counts), _COUNTED.types, strict=True
            )]  # fmt: skip
            return partition_by_hash(hashes, files), pa.RecordBatch.from_arrays(columns, schema=_COUNTED)

        def count_held_out(item: Any) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
            columns = list(dict.fromkeys(column for _, column in searched))
            partial: dict[tuple[str, str], list[tuple[pa.Array, pa.Array]]] = {}
            for split, batch in held_out.read(item, columns):
                for name in columns:
                    if not pa.types.is_list(batch[name].type):
                        partial.setdefault((split, name), []).append(distinct_values(batch[name]))
            for (split, name), found in partial.items():
                values, counts = _summed(found)
                hashes = hash_texts(values)
                for number in (number for number, column in searched if column == name):
                    place = np.full(len(values), places.index((split, name)), np.int32)
                    arrays = [hashes, np.full(len(values), number, np.int32), counts, place]
                    yield partition_by_hash(hashes, files), pa.RecordBatch.from_arrays(arrays, schema=_HELD_OUT)

        # ... and one adds up the counts of a range of hashes, among them those of earlier datasets.
        def write(partition: int, counted: Mapping[str, pa.Table]) -> list[tuple[int, int, int]]:
            rows, name = pa.concat_tables([counted["now"], counted["before"]]), f"part-{partition:05d}"
            first = growth.first_moment
            kept = "" if first is None else f"having max(last) >= {first}"
            _write(query(f"{_SUMS} {kept} order by hash, feature, value", counted=rows), folder / name, features)
            if first is not None:
                old = query(f"{_SUMS} having max(last) < {first} order by hash, feature, value", counted=rows)
                with new_parquet_files(gone / name, _EXPIRED, _ROWS_PER_FILE) as (drop, _):
                    for batch in old:
                        drop(batch.select(_EXPIRED.names))
            sql = _KNOWN.format(are_counted=held_out.are_counted)
            known = query(sql, counted=rows, held_out=counted["held_out"]).read_all()
            return [(row["place"], row["rows"], row["found"]) for row in known.to_pylist()]

        sources: dict[str, ShuffleInput[Any]] = {
            "now": ShuffleInput(segments, _COUNTED, count),
            "before": ShuffleInput(earlier, _COUNTED, count_before),
            "held_out": ShuffleInput(held_out.items if places else [], _HELD_OUT, count_held_out),
        }
        found = workspace.engine.shuffle(sources, files, write)
    known: KnownValues = {split: {} for split in held_out.splits}
    for place, of_place, in_train in chain(*found):
        split, column = places[place]
        before = known[split].get(column, FoundKeys())
        known[split][column] = before + FoundKeys(rows=of_place, found=in_train)
    # In the order of the columns, whatever the order of values.
    known = {s: {c: of[c] for split, c in places if split == s and c in of} for s, of in known.items() if s and of}
    return CountFiles(sorted(folder.glob("*.parquet")), sorted(gone.glob("*.parquet")), known)


def _counted(
    segment: Segment, read: ReadRows, listings: Sequence[Listing]
) -> Iterator[tuple[int, pa.StringArray, pa.Int64Array]]:
    """Yield the distinct values of a segment with their counts, those of each listing with its number."""
    columns = list(dict.fromkeys(name for listing in listings for name in listing.columns))
    partial: dict[str, list[tuple[pa.Array, pa.Array]]] = {name: [] for name in columns}
    for batch in read(segment, columns, columns):
        for name in columns:
            partial[name].append(distinct_values(batch.column(name)))
    for number, listing in enumerate(listings):
        found = [counts for name in listing.columns for counts in partial[name]]
        yield number, *_summed(found, listing.values)


def distinct_values(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return distinct values of a column or its lists as text, null not among them, and how often (0, too) they are in
    it.
    """
    if not pa.types.is_dictionary(column.type):
        column = (column.flatten() if pa.types.is_list(column.type) else column).dictionary_encode()
    counts = np.bincount(column.indices.drop_null().to_numpy(), minlength=len(column.dictionary))
    return column.dictionary.cast(pa.string()), pa.array(counts, pa.int64())


def _summed(
    found: Sequence[tuple[pa.Array, pa.Array]], listed: Sequence[str] | None = None
) -> tuple[pa.StringArray, pa.Int64Array]:
    """Return the distinct values of what `distinct_values` found in several batches, and their counts.

    `listed`: the values that matter; None takes all but the empty text.
    """
    values = pa.chunked_array([v for v, _ in found], pa.string())
    counts = pa.chunked_array([c for _, c in found], pa.int64())
    is_listed = pc.and_(pc.greater(counts, 0), pc.not_equal(values, ""))
    if listed is not None:
        is_listed = pc.and_(is_listed, pc.is_in(values, pa.array(listed, pa.string())))
    table = pa.table({"value": values, "count": counts}).filter(is_listed)
    sums = table.group_by("value", use_threads=False).aggregate([("count", "sum")])
    return sums["value"].combine_chunks(), sums["count_sum"].combine_chunks()


def _write(sums: Iterable[pa.RecordBatch], path: Path, features: Sequence[str]) -> None:
    """Write values to the files PATH-*."""
    names = pa.array(features, pa.string())
    with new_parquet_files(path, _STORED, _ROWS_PER_FILE, compression="lz4") as (write, _):
        for group in cut_row_groups(sums, _ROWS_PER_ROW_GROUP):
            (batch,) = group.combine_chunks().to_batches()
            feature = pa.DictionaryArray.from_arrays(batch["feature"], names)
            write(pa.RecordBatch.from_arrays([feature, *batch.columns[1:]], schema=_STORED))


def read_counts(path: Path, features: Sequence[str]) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
    """Yield the values of a file that features of these names have: n numbers of features, and n rows (value, count,
    last).
    """
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            (rows,) = file.read_row_group(group).combine_chunks().to_batches()
            names = rows["feature"].dictionary.to_pylist()
            number = np.array([features.index(name) if name in features else -1 for name in names], np.int64)
            numbers = number[rows["feature"].indices.to_numpy()]
            yield numbers[numbers >= 0], rows.select(["value", "count", "last"]).filter(pa.array(numbers >= 0))


def _list_values(
    workspace: Workspace, listings: Mapping[str, Listing], counts: CountFiles, parent: Dataset | None
) -> dict[str, Vocabulary]:
    features, every, folder = list(listings), list(listings.values()), workspace.folder
    least = np.array([1 if listing.values else listing.min_count for listing in every])
    before: dict[str, tuple[Path, int]] = {}
    if parent is not None:
        for feature in parent.schema.categorical:
            if feature.vocabulary is not None:
                path = parent.folder / feature.vocabulary.file
                before[feature.table or feature.name] = path, feature.vocabulary.size

    def frequent(path: Path) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
        for numbers, counted in read_counts(path, features):
            is_frequent = counted["count"].to_numpy() >= least[numbers]
            yield numbers[is_frequent], counted.select(_FOUND.names).filter(pa.array(is_frequent))

    def expired(path: Path) -> Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]:
        with open_parquet(path) as file:
            (rows,) = file.read().combine_chunks().to_batches()
        yield rows["feature"].to_numpy(), rows.select(_EXPIRED_VALUES.names)

    def write(number: int, rows: Mapping[str, pa.Table]) -> Vocabulary:
        name = features[number]
        return _write_vocabulary(folder, name, every[number], before.get(name), rows)

    workspace.progress.stage("number values")
    sources = {
        "found": ShuffleInput(counts.files, _FOUND, frequent),
        "expired": ShuffleInput(counts.expired if before else [], _EXPIRED_VALUES, expired),
    }
    return dict(zip(features, workspace.engine.shuffle(sources, len(features), write), strict=True))


def _write_vocabulary(
    folder: Path, name: str, listing: Listing, before: tuple[Path, int] | None, rows: Mapping[str, pa.Table]
) -> Vocabulary:
    """Write the vocabulary of a feature.

    `before`: the one that it continues, and its size. `rows`: the values that are frequent (value, count), and those
    that have expired (value), both in no order.
    """

    def select(sql: str, **tables: pa.Table) -> pa.RecordBatchReader:
        """Return rows of a query over the frequent values that are `new`, as those of before do not list them."""
        if before is None:
            return query(sql, new=rows["found"], **tables)
        listed = f"with new as (from found anti join listed using (value)) {sql}"
        return query(listed, found=rows["found"], listed=_values_by_id(before[0]), **tables)

    # First the values of before, of which some may be gone, but keep their places.
    earlier: Iterable[pa.RecordBatch] = []
    size, added = 0, 0
    if before is not None:
        path, size = before
        earlier = _values_by_id(path)
        if rows["expired"].num_rows and listing.values is None:
            sql = "select id, if(value in (from expired), '', value) as value, count from listed order by id"
            earlier = query(sql, listed=earlier, expired=rows["expired"])
    # Then those that are new, or the given ones in their order.
    following: Iterable[pa.RecordBatch] = []
    if listing.values is None:
        ((added,),) = (batch["n"].to_pylist() for batch in select("select count(*) as n from new"))
        added = added if listing.max_size is None else max(0, min(added, listing.max_size - size))
        following = select(f"select value, count from new order by count desc, value limit {added}")
    elif before is None:
        added = len(listing.values)
        given = pa.table({"value": pa.array(listing.values, pa.string()), "n": range(added)})
        sql = "select value, coalesce(count, 0) as count from given left join new using (value) order by n"
        following = select(sql, given=given)

    word, next_id = 0, 1

    def numbered() -> Iterator[pa.RecordBatch]:
        nonlocal word, next_id
        for batch in chain(earlier, following):
            values = batch["value"].cast(pa.string())
            ids = pa.array(np.arange(next_id, next_id + len(values)))
            word = (word + content_hash(values, next_id)) % 2**64
            next_id += len(values)
            yield pa.RecordBatch.from_arrays([values, ids, batch["count"]], schema=VOCABULARY_SCHEMA)

    file = vocabulary_file(name, size + added)
    write_whole_vocabulary(numbered(), folder / file)
    assert next_id == size + added + 1
    return Vocabulary(file=file, size=size + added, content_hash=f"{word:016x}")


def vocabulary_file(feature: str, size: int) -> str:
    """Return the path of a feature's vocabulary, relative to the dataset: a file, or a folder of parts for a
    long one.
    """
    path = f"{VOCABULARY_FOLDER}/{file_name(feature)}"
    return f"{path}.parquet" if size <= VALUES_PER_FILE else path


def _values_by_id(vocabulary: Path) -> pa.RecordBatchReader:
    """Return the rows of a vocabulary in the order of ids."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.large_string()), ("count", pa.int64())])
    batches = (batch.select(schema.names) for batch in read_vocabulary(vocabulary, schema.names))
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in batches))
