"""Second stage: count every categorical value and number the frequent ones by rank, without a column ever in one place.

A task counts the values of its rows in Arrow; counts are added up by (feature, value), and one task for each feature
sorts those that are listed by (descending count, value), on its disk where there are many. A vocabulary that goes on
from an earlier one begins with it: new values come after the old ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import Vocabulary
from rayrec.features.vocabulary import (
    VALUES_PER_FILE,
    VOCABULARY_SCHEMA,
    content_hash,
    read_vocabulary,
    write_whole_vocabulary,
)
from rayrec.ingest.dataset import COUNTS_FOLDER, VOCABULARY_FOLDER, Dataset
from rayrec.preprocessing.engines.engine import Source
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import ReadRows, Segment
from rayrec.preprocessing.vocabularies.value_counts import (
    CountFiles,
    GrowthRules,
    Listing,
    count_values,
    read_counts,
    read_expired,
)
from rayrec.preprocessing.workspace import Stages, Workspace
from rayrec.store.paths import file_name

_FOUND = pa.schema([("value", pa.string()), ("count", pa.int64())])
_EXPIRED = pa.schema([("value", pa.string())])


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
        rows = read_expired(path)
        yield rows["feature"].to_numpy(), rows.select(_EXPIRED.names)

    def write(number: int, rows: Mapping[str, pa.Table]) -> Vocabulary:
        name = features[number]
        return _write_vocabulary(folder, name, every[number], before.get(name), rows)

    workspace.progress.stage("number values")
    sources = {
        "found": Source(counts.files, _FOUND, frequent),
        "expired": Source(counts.expired if before else [], _EXPIRED, expired),
    }
    return dict(zip(features, workspace.engine.shuffle(sources, len(features), write), strict=True))


def _write_vocabulary(
    folder: Path, name: str, listing: Listing, before: tuple[Path, int] | None, rows: Mapping[str, pa.Table]
) -> Vocabulary:
    """Write the vocabulary of a feature.

    `before`: the one that it goes on from, and its size. `rows`: the values that are frequent (value, count), and those
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


def _values_by_id(vocabulary: Path) -> pa.RecordBatchReader:
    """Return the rows of a vocabulary in the order of ids."""
    schema = pa.schema([("id", pa.int64()), ("value", pa.large_string()), ("count", pa.int64())])
    batches = (batch.select(schema.names) for batch in read_vocabulary(vocabulary, schema.names))
    return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for batch in batches))
