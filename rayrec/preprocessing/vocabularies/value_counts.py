"""Counts how often every categorical value occurred in a dataset and in those that it extends.

The counts decide which values a vocabulary lists. They stay in the dataset, in `counts/`, so that a value is listed as
soon as it has occurred often enough over all days, and leaves when it has not occurred for long.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.preprocess import seconds_of
from rayrec.features.hashes import hash_texts
from rayrec.features.table_parts import HASH
from rayrec.ingest.dataset import COUNTS_FOLDER, Dataset
from rayrec.preprocessing.engines.engine import Source, partition_by_hash
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows
from rayrec.preprocessing.sorted_rows import cut_row_groups
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace
from rayrec.store.files import remove
from rayrec.store.parquet import new_parquet_files, open_parquet

_ROWS_PER_ROW_GROUP = 2**16
_ROWS_PER_FILE = 2**22
"""Counts of single segments that go to one file; the same on every cluster, so that the files are."""
_MOST_FILES = 4_096
_COUNTED = pa.schema([
    (HASH, pa.int64()), ("feature", pa.int32()), ("value", pa.string()), ("count", pa.int64()), ("last", pa.int64())
])  # fmt: skip
_STORED = pa.schema([
    pa.field("feature", pa.dictionary(pa.int32(), pa.string()), False), pa.field("value", pa.string(), False),
    pa.field("count", pa.int64(), False), pa.field("last", pa.int64(), False),
])  # fmt: skip
_EXPIRED = pa.schema([("feature", pa.int32()), ("value", pa.string())])
_SUMS = """
select feature, value, sum(count)::bigint as count, max(last) as last from counted group by hash, feature, value
"""


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
    remove(gone)  # what an attempt that died left
    total = count_rows(segments)
    rows = total * len(listings) + sum(_rows_in(path) for path in earlier)
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

        # ... and one adds up the counts of a range of hashes, among them those of earlier datasets.
        def write(partition: int, counted: Mapping[str, pa.Table]) -> None:
            rows, name = pa.concat_tables(counted.values()), f"part-{partition:05d}"
            first = growth.first_moment
            kept = "" if first is None else f"having max(last) >= {first}"
            _write(query(f"{_SUMS} {kept} order by hash, feature, value", counted=rows), folder / name, features)
            if first is not None:
                old = query(f"{_SUMS} having max(last) < {first} order by hash, feature, value", counted=rows)
                with new_parquet_files(gone / name, _EXPIRED, _ROWS_PER_FILE) as (drop, _):
                    for batch in old:
                        drop(batch.select(_EXPIRED.names))

        sources: dict[str, Source[Any]] = {
            "now": Source(segments, _COUNTED, count),
            "before": Source(earlier, _COUNTED, count_before),
        }
        workspace.engine.shuffle(sources, files, write)
    return CountFiles(sorted(folder.glob("*.parquet")), sorted(gone.glob("*.parquet")))


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


def read_expired(path: Path) -> pa.RecordBatch:
    """Return the expired values of a file: (feature, value), features by their number."""
    with open_parquet(path) as file:
        (rows,) = file.read().combine_chunks().to_batches()
    return rows


def distinct_values(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return distinct values of a column or its lists as text, null not among them, and how often (0, too) they are in
    it.
    """
    if not pa.types.is_dictionary(column.type):
        column = (column.flatten() if pa.types.is_list(column.type) else column).dictionary_encode()
    counts = np.bincount(column.indices.drop_null().to_numpy(), minlength=len(column.dictionary))
    return column.dictionary.cast(pa.string()), pa.array(counts, pa.int64())


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
        found = [part for name in listing.columns for part in partial[name]]
        values = pa.chunked_array([v for v, _ in found], pa.string())
        counts = pa.chunked_array([c for _, c in found], pa.int64())
        is_listed = pc.and_(pc.greater(counts, 0), pc.not_equal(values, ""))
        if listing.values is not None:
            is_listed = pc.and_(is_listed, pc.is_in(values, pa.array(listing.values, pa.string())))
        table = pa.table({"value": values, "count": counts}).filter(is_listed)
        sums = table.group_by("value", use_threads=False).aggregate([("count", "sum")])
        yield number, sums["value"].combine_chunks(), sums["count_sum"].combine_chunks()


def _write(sums: Iterable[pa.RecordBatch], path: Path, features: Sequence[str]) -> None:
    """Write values to the files PATH-*."""
    names = pa.array(features, pa.string())
    with new_parquet_files(path, _STORED, _ROWS_PER_FILE, compression="lz4") as (write, _):
        for group in cut_row_groups(sums, _ROWS_PER_ROW_GROUP):
            (batch,) = group.combine_chunks().to_batches()
            feature = pa.DictionaryArray.from_arrays(batch["feature"], names)
            write(pa.RecordBatch.from_arrays([feature, *batch.columns[1:]], schema=_STORED))


def _rows_in(path: Path) -> int:
    with open_parquet(path) as file:
        return int(file.metadata.num_rows)
