"""Counts how often every categorical value occurred in a dataset and in those that it extends.

The counts decide which values a vocabulary lists. They stay in the dataset, in `counts/`, so that a value is listed as
soon as it has occurred often enough over all days, and leaves when it has not occurred for long.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.config.preprocess import seconds_of
from rayrec.features.hashes import hash_texts
from rayrec.features.table_parts import HASH
from rayrec.ingest.dataset import COUNTS_FOLDER, Dataset
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows
from rayrec.preprocessing.sorted_rows import cut_row_groups, whole_groups
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.vocabularies.hash_ranges import ROW_COUNT, row_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.files import remove
from rayrec.store.parquet import new_parquet_files, open_parquet

_ROWS_PER_BATCH = 131_072
_ROWS_PER_ROW_GROUP = 2**16
_ROWS_PER_FILE = 2**22
"""Counts of single segments that go to one file; the same on every cluster, so that the files are."""
_MOST_FILES = 4_096
_SUMS = ("count", "new", "last")
_COUNTED = pa.schema([
    (HASH, pa.int64()), ("feature", pa.int32()), ("value", pa.string()), *((name, pa.int64()) for name in _SUMS)
])  # fmt: skip
_STORED = pa.schema([
    pa.field("feature", pa.dictionary(pa.int32(), pa.string()), False), pa.field("value", pa.string(), False),
    pa.field("count", pa.int64(), False), pa.field("last", pa.int64(), False),
])  # fmt: skip
_EXPIRED = pa.schema([("feature", pa.int32()), ("value", pa.string())])


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


class CountFiles(NamedTuple):
    """Files of counted values, and of values that were counted before and have expired."""

    files: list[Path]
    expired: list[Path]


def count_values(
    workspace: Workspace,
    read: ReadRows,
    segments: Sequence[Segment],
    listings: Mapping[str, Listing],
    growth: GrowthRules,
) -> CountFiles:
    """Write the counts of all values in the rows of `segments`, and before, to `counts/` of the dataset.

    A file has rows (feature, value, count, last), `last` being the moment of the dataset in which the value occurred
    last. Missing values and empty ones are not counted.
    """
    features, folder, gone = list(listings), workspace.folder / COUNTS_FOLDER, workspace.scratch / "expired"
    earlier = [] if growth.parent is None else growth.parent.files_in(COUNTS_FOLDER)
    moment, first_moment = growth.moment, growth.first_moment
    remove(gone)  # what an attempt that died left

    def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = f"part-{partition:05d}"
        yield row_count(_write(_summed(batches, moment), folder / name, gone / name, features, first_moment))

    total = count_rows(segments)
    with counted_rows(workspace.runner, workspace.progress, "count values", total) as counter:

        def count(item: Segment | Path) -> Iterator[pa.RecordBatch]:
            if isinstance(item, Path):
                yield from _counted_before(item, features)
            else:
                yield from _counted(item, read, list(listings.values()))
                counter.add(item.piece.rows)

        items: list[Segment | Path] = [*segments, *earlier]
        counted = workspace.runner.rows(items, count, _COUNTED)
        rows = total * len(listings) + sum(_rows_in(path) for path in earlier)
        partitioned = counted.partition_by_hash(max(1, min(_MOST_FILES, -(-rows // _ROWS_PER_FILE))))
        partitioned.sort_within(HASH, "feature", "value").results(write, ROW_COUNT)
    return CountFiles(sorted(folder.glob("*.parquet")), sorted(gone.glob("*.parquet")))


def read_counts(path: Path, features: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the values of a file by feature: its number in `features`, and a table (value, count, last)."""
    with open_parquet(path) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            column = table["feature"].combine_chunks()
            names, codes = column.dictionary.to_pylist(), column.indices.to_numpy()
            for code, name in enumerate(names):
                if name in features:
                    of_feature = table.filter(pa.array(codes == code)).select(["value", "count", "last"])
                    yield features.index(name), of_feature.combine_chunks()


def read_expired(path: Path) -> pa.Table:
    """Return the expired values of a file: a table (feature, value), features by their number."""
    with open_parquet(path) as file:
        return file.read()


def distinct_values(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return distinct values of a column or its lists as text, null not among them, and how often (0, too) they are in
    it.
    """
    if not pa.types.is_dictionary(column.type):
        column = (column.flatten() if pa.types.is_list(column.type) else column).dictionary_encode()
    counts = np.bincount(column.indices.drop_null().to_numpy(), minlength=len(column.dictionary))
    return column.dictionary.cast(pa.string()), pa.array(counts, pa.int64())


def _counted(segment: Segment, read: ReadRows, listings: Sequence[Listing]) -> Iterator[pa.RecordBatch]:
    """Yield the distinct values of a segment by feature, with their counts."""
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
        yield from _batches(number, table["value"], table["count_sum"], table["count_sum"], np.zeros(len(table)))


def _counted_before(path: Path, features: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the counts in a file of the dataset that is extended."""
    for number, table in read_counts(path, features):
        yield from _batches(number, table["value"], table["count"], np.zeros(len(table)), table["last"])


def _batches(feature: int, values: pa.ChunkedArray, *sums: pa.ChunkedArray) -> list[pa.RecordBatch]:
    values = values.combine_chunks()
    columns = [pa.array(hash_texts(values)), pa.array(np.full(len(values), feature, np.int32)), values]
    columns += [pa.array(column).cast(pa.int64()) if isinstance(column, np.ndarray) else column for column in sums]
    batches: list[pa.RecordBatch] = pa.table(columns, schema=_COUNTED).combine_chunks().to_batches()
    return batches


def _summed(batches: Iterator[pa.RecordBatch], moment: int) -> Iterator[pa.Table]:
    """Yield the tables (feature, value, count, last), a row for each value, of rows sorted by hash, feature and
    value.
    """
    for batch in whole_groups(batches, HASH, _ROWS_PER_BATCH):
        rows, keys = pa.Table.from_batches([batch]), [HASH, "feature", "value"]
        sums = rows.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in _SUMS])
        # Arrow gives groups in no order of their own.
        sums = sums.sort_by([(name, "ascending") for name in keys])
        last = pc.if_else(pc.greater(sums["new_sum"], 0), pa.scalar(moment), sums["last_sum"])
        columns = [sums["feature"], sums["value"], sums["count_sum"], last]
        yield pa.table(columns, names=["feature", "value", "count", "last"])


def _write(sums: Iterator[pa.Table], path: Path, gone: Path, features: Sequence[str], first: int | None) -> int:
    """Write values to the files PATH-*, and those whose last moment is before `first` to GONE-*; return the rows."""
    rows, dictionary = 0, pa.array(features, pa.string())
    with (
        new_parquet_files(path, _STORED, _ROWS_PER_FILE, compression="lz4") as (keep, _),
        new_parquet_files(gone, _EXPIRED, _ROWS_PER_FILE) as (drop, _),
    ):

        def kept() -> Iterator[pa.RecordBatch]:
            for table in sums:
                is_old = pc.less(table["last"], -(2**63) if first is None else first)
                for batch in table.filter(is_old).select(_EXPIRED.names).to_batches():
                    drop(batch)
                yield from table.filter(pc.invert(is_old)).to_batches()

        # How sums come in tables depends on the tasks that counted; row groups do not.
        for group in cut_row_groups(kept(), _ROWS_PER_ROW_GROUP):
            (batch,) = group.combine_chunks().to_batches()
            names = pa.DictionaryArray.from_arrays(batch["feature"], dictionary)
            keep(pa.RecordBatch.from_arrays([names, *batch.columns[1:]], schema=_STORED))
            rows += batch.num_rows
    return rows


def _rows_in(path: Path) -> int:
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)
