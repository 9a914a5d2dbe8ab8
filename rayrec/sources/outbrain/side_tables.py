"""The tables that features are looked up in: of documents and ads, click-through rates, and users."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import HASH, UNKNOWN, LookupTable
from rayrec.preprocessing.lookups import (
    KeyedRows,
    count_columns,
    range_count,
    shuffle_rows,
    sums_by_fold,
    with_folds,
    write_sorted,
    write_table,
)
from rayrec.preprocessing.segments import Piece, Segment, batch_of, count_rows, make_segments, read_piece, write_piece
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.raw.input_files import Chunk
from rayrec.raw.rows import RawBlock, RowReader
from rayrec.sources.outbrain.clicks import CLICKED, EVENT_SCHEMA, IS_SHOWN
from rayrec.sources.outbrain.features import FOLD, AdRows, keys_of
from rayrec.sources.outbrain.statistics import (
    AD_SCHEMA,
    ASPECTS,
    DOCUMENT_SCHEMA,
    KEY,
    PLURALS,
    PROFILE_SCHEMA,
    Aspect,
    RateKey,
    Statistics,
)
from rayrec.sources.outbrain.tables import OutbrainTable
from rayrec.store.paths import KeptPath

# Documents and ads: what several raw tables say of each.

LISTED: dict[Aspect, int] = {"category": 3, "topic": 3, "entity": 6}
"""The longest list of a feature."""
_KNOWN = """
with known as (
    -- Of lines with the same document the smallest, null before any value.
    select * from (
        select distinct on (document_id) * from meta
        order by document_id, source_id nulls first, publisher_id nulls first, publish_time nulls first
    ) where source_id is not null
)"""
_SOURCES = f"{_KNOWN} select source_id, count(*) as documents, max(publisher_id) as publisher from known group by all"
_FACTS = """
with source as (select source_id, sum(documents) as documents, max(publisher) as publisher from sources group by all)
select coalesce(sum(documents), 0)::bigint as documents, greatest(max(publisher), 0) as largest_publisher,
    coalesce(list(source_id order by source_id) filter (publisher is null), []) as sources_without_publisher
from source
"""
"""What `DocumentRows` says of all documents."""
_OF_ASPECT = """
    select hash, document_id, {number} as aspect, {aspect}_id as value, max(confidence_level) as confidence
    from {aspect} group by all"""
_LISTS = """
    coalesce(list({{value: value, confidence: confidence, weight: 0.0}} order by value)
        filter (aspect = {number}), []) as {aspect},
    coalesce(list(value order by confidence desc, value) filter (aspect = {number}), [])[:{listed}] as {aspect}_list"""
_DOCUMENTS = f"""
{_KNOWN}, once as (
    -- Of a repeated value the surest.
    {" union all ".join(_OF_ASPECT.format(number=number, aspect=aspect) for number, aspect in enumerate(ASPECTS))}
), lists as (
    select hash, document_id,
        {",".join(_LISTS.format(number=n, aspect=a, listed=LISTED[a]) for n, a in enumerate(ASPECTS))}
    from once group by all
)
select hash, document_id, source_id, publisher_id, publish_time,
    {", ".join(f"coalesce({name}, []) as {name}" for name in DOCUMENT_SCHEMA.names[5:])}
from known full join lists using (hash, document_id)
order by hash, document_id
"""
VALUE_SCHEMA = pa.schema([pa.field(name, pa.int64(), False) for name in (HASH, "value", "documents")])
"""The table of an aspect's values: in how many documents each is."""
_COUNTED = pa.schema([(HASH, pa.int64()), ("aspect", pa.int8()), ("value", pa.int64())])
_FREQUENCIES = """
select hash, value, count(*) as documents from counted where aspect = {number} group by all order by hash, value
"""
_ADS = """
-- Of lines with the same ad the smallest, null before any value.
select distinct on (ad_id) * from ads
order by hash, ad_id, document_id nulls first, campaign_id nulls first, advertiser_id nulls first
"""


class DocumentRows(NamedTuple):
    """What the tables of documents say of each; and a table of each aspect's values."""

    folder: KeptPath
    """Holds a table (`VALUE_SCHEMA`) for each aspect."""
    rows: list[Piece]
    """Documents by ascending hash, with 0 in place of the weights of their values; no hash is in two files."""
    values: dict[str, int]
    """Number of distinct values by aspect."""
    documents: int
    """Number of documents with a source."""
    largest_publisher: int
    sources_without_publisher: list[int]
    """Sources none of whose documents has a publisher, ascending."""


def write_document_rows(workspace: Workspace, tables: Mapping[str, Sequence[Piece]], folder: Path) -> DocumentRows:
    """Bring together what the tables say of each document, and count the documents of each value."""
    named = {"meta": OutbrainTable.DOCUMENTS_META}
    named |= {aspect: OutbrainTable(f"documents_{PLURALS[aspect]}") for aspect in ASPECTS}
    sources = {}
    for name, table in named.items():
        schema = pa.schema([pa.field(HASH, pa.int64()), *table.layout.schema])
        sources[name] = KeyedRows.of_files(tables[table.value], schema, "document_id")

    def write(partition: int, rows: Mapping[str, pa.Table]) -> tuple[list[Piece], pa.Table]:
        path = folder / f"rows-{partition:06d}.parquet"
        pieces = write_piece(path, DOCUMENT_SCHEMA, query(_DOCUMENTS, **rows))
        return pieces, query(_SOURCES, meta=rows["meta"]).read_all()

    written = shuffle_rows(workspace, "list documents", sources, write)
    (facts,) = query(_FACTS, sources=pa.concat_tables(found for _, found in written)).read_all().to_pylist()
    rows = [piece for pieces, _ in written for piece in pieces]
    return DocumentRows(folder, rows, _write_value_tables(workspace, rows, folder), **facts)


def _write_value_tables(workspace: Workspace, documents: Sequence[Piece], folder: Path) -> dict[str, int]:
    """Write a table (`VALUE_SCHEMA`) for each aspect into a folder of its name; return their sizes."""

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, ASPECTS):
            for number, aspect in enumerate(ASPECTS):
                value = batch[aspect].flatten().field("value")
                columns = {HASH: hash_key(value.to_numpy()), "aspect": np.full(len(value), number), "value": value}
                yield batch_of(_COUNTED, columns)

    def write(_: int, rows: Mapping[str, pa.Table]) -> list[int]:
        counted = {aspect: _FREQUENCIES.format(number=number) for number, aspect in enumerate(ASPECTS)}
        return [write_sorted(query(sql, **rows), folder / aspect, VALUE_SCHEMA) for aspect, sql in counted.items()]

    sources = {"counted": KeyedRows(make_segments(documents), _COUNTED, read)}
    sizes = shuffle_rows(workspace, "count document values", sources, write)
    return dict(zip(ASPECTS, map(sum, zip(*sizes, strict=True)), strict=True))


def inverse_frequency(folder: Path, aspect: Aspect, value: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    """Return (n,) ln(documents / documents that have the value), at least 0, by the aspect's table in `folder`."""
    if documents == 0:
        return np.zeros(len(value))
    table = LookupTable.cached(folder / aspect)
    frequency = table.numbers("documents", table.find({"value": value})).values
    return np.maximum(np.log(documents / frequency), 0.0)


def write_documents(workspace: Workspace, found: DocumentRows, folder: Path) -> None:
    """Write the table of documents: all that documents_meta or the table of an aspect names."""
    with counted_rows(
        workspace.engine, workspace.progress, "documents", sum(piece.rows for piece in found.rows)
    ) as counter:

        def run(piece: Piece) -> None:
            weighed = (_weighed(documents, found) for documents in read_piece(piece, DOCUMENT_SCHEMA.names))
            write_sorted(weighed, folder, DOCUMENT_SCHEMA)
            counter.add(piece.rows)

        workspace.engine.run(found.rows, run)


def _weighed(documents: pa.RecordBatch, found: DocumentRows) -> pa.RecordBatch:
    """Return rows of the table: with the weights of values, and a publisher for each source."""
    columns: dict[str, pa.Array] = {}
    # Sources without a publisher get numbers that follow the largest.
    lacking = pa.array(found.sources_without_publisher, pa.int64())
    number = pc.index_in(documents["source_id"], value_set=lacking, skip_nulls=True)
    own_publisher = pc.add(number.cast(pa.int64()), found.largest_publisher + 1)
    columns["publisher_id"] = pc.coalesce(documents["publisher_id"], own_publisher)
    for aspect in ASPECTS:
        pairs, offsets = documents[aspect].flatten(), documents[aspect].offsets
        value, confidence = pairs.field("value"), pairs.field("confidence")
        weight = inverse_frequency(found.folder, aspect, value.to_numpy(), found.documents) * confidence.to_numpy()
        fields = list(DOCUMENT_SCHEMA.field(aspect).type.value_type)
        elements = pa.StructArray.from_arrays([value, confidence, pa.array(weight)], fields=fields)
        columns[aspect] = pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), elements)
    return batch_of(DOCUMENT_SCHEMA, columns, documents)


def write_ads(workspace: Workspace, tables: Mapping[str, Sequence[Piece]], folder: Path) -> None:
    """Write the table of ads."""
    ads = KeyedRows.of_files(tables["promoted_content"], AD_SCHEMA, "ad_id")
    write_table(workspace, "ads", {"ads": ads}, folder, AD_SCHEMA, lambda rows: query(_ADS, **rows))


# Rows, clicks and distinct ads of `train` by key, with the sums of each fold. Keys follow from a row's ad. So rows are
# counted by ad, and these counts, of which there are far fewer, by key.

_KEPT_WHOLE = ("ad", "document")
"""Keys whose number of rows is a feature, however few the rows are."""
_COUNTS = ("views", "clicks")
_UNITS = 2.0**36
"""Confidences are added as integers, in multiples of 1 / _UNITS."""
_CLICKS = pa.schema([(HASH, pa.int64()), ("ad_id", pa.int64()), (FOLD, pa.int8()), (CLICKED, pa.int64())])


def write_rates(
    workspace: Workspace, train: Sequence[Piece], folds: int, keys: Sequence[RateKey], statistics: Path, folder: Path
) -> None:
    """Write the tables of rates of rows with the sums by fold, a folder for each key.

    `statistics`: the folder with the tables of documents and ads.
    """
    names = count_columns(_COUNTS, folds)
    by_ad = pa.schema([(name, pa.int64()) for name in ("ad_id", *names)])
    # A confidence is that of all views together, in `_UNITS`.
    by_key = pa.schema([("kind", pa.int8()), *((n, pa.int64()) for n in (HASH, KEY, "confidence", *names))])

    def count(partition: int, rows: Mapping[str, pa.Table]) -> list[Piece]:
        """Write the counts of some ads."""
        each = "(select ad_id, fold, 1 as views, clicked as clicks from clicks)"
        counts = query(f"select ad_id, {sums_by_fold(_COUNTS, folds)} from {each} group by ad_id", **rows)
        return write_piece(folder / f"ads-{partition:06d}.parquet", by_ad, counts)

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        """Yield the counts of ads by key."""
        for counts in read_piece(segment.piece, by_ad.names):
            rows = AdRows(Statistics.cached(statistics), counts)
            for kind, key in enumerate(keys):
                of_rows = keys_of(rows, key)
                valid = np.flatnonzero(of_rows.value.valid)
                value, sums = of_rows.value.values[valid], counts.take(pa.array(of_rows.owner[valid]))
                columns = {
                    "kind": np.full(len(valid), kind),
                    HASH: hash_key(value),
                    KEY: value,
                    "confidence": np.round(of_rows.confidence[valid] * _UNITS).astype(np.int64)
                    * sums["views"].to_numpy(),
                }
                yield batch_of(by_key, columns, sums)

    def write(_: int, rows: Mapping[str, pa.Table]) -> None:
        sums = ", ".join(f"sum({name})::bigint as {name}" for name in names)
        for kind, key in enumerate(keys):
            # Keys with too few rows for a rate are left out.
            least = 0 if key.name in _KEPT_WHOLE else key.least
            of_keys = query(
                f"""
                select hash, {KEY}, count(*) as ads, {sums},
                    sum(confidence)::double / ({_UNITS}::double * sum(views)) as confidence
                from keyed where kind = {kind}
                group by hash, {KEY} having sum(views) > {least}
                order by hash, {KEY}
                """,
                **rows,
            )
            write_sorted(of_keys, folder / key.name, with_folds(key.schema, _COUNTS, folds))

    clicks = KeyedRows.of_files(train, _CLICKS, "ad_id")
    pieces = shuffle_rows(workspace, "click-through rates", {"clicks": clicks}, count)
    keyed = KeyedRows(make_segments(chain(*pieces)), by_key, read)
    # As many ranges as if each row were counted by key.
    shuffle_rows(workspace, "click-through rates", {"keyed": keyed}, write, range_count(count_rows(clicks.segments)))


# The users of rows, their page views, and the interests that follow from these. Of the page views only those are stored
# that a feature is made of.

USER_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("uuid", pa.string(), False),
        pa.field("first_event", pa.int64()),  # null if no event has a time
        pa.field("landing", pa.list_(pa.int64()), False),  # landing documents of events, ascending
    ]
)
_EVENTS = pa.schema(
    [(HASH, pa.int64()), *(EVENT_SCHEMA.field(n) for n in ("uuid", "document_id", "timestamp", IS_SHOWN))]
)
_USERS = """
-- The first event is that of all events, also of displays without rows.
select hash, uuid, min(timestamp) as first_event,
    coalesce(list(distinct document_id order by document_id) filter (is_shown and document_id is not null), [])
        as landing
from events group by hash, uuid having bool_or(is_shown) order by hash, uuid
"""
PROFILE, TRAFFIC = 1, 2
"""Bits of the column `purpose`: a page view is kept for the user's profile, or for the traffic source of an event."""
USER = "user_row"
"""The row of a user in the table of users."""
VIEW_SCHEMA = pa.schema(
    [
        pa.field(USER, pa.int64(), False),
        *list(OutbrainTable.PAGE_VIEWS.layout.schema)[1:],
        pa.field("purpose", pa.int8(), False),
    ]
)
_VIEWED = pa.schema([(HASH, pa.int64()), (USER, pa.int64()), ("document_id", pa.int64())])
_INTERESTS = pa.schema(
    [
        (USER, pa.int64()),
        ("document_id", pa.int64()),
        ("views", pa.int64()),  # null but in rows of _DOCUMENT
        ("aspect", pa.int8()),
        ("value", pa.int64()),
        ("confidence", pa.float64()),
        ("inverse_frequency", pa.float64()),
    ]
)
_DOCUMENT = -1
"""The `aspect` of the document itself, beside the positions in ASPECTS."""
_VIEWS_OF = f"select {USER}, document_id, count(*) as views from viewed group by all"
_INTEREST = """
    coalesce(list({{value: value, weight: weight}} order by value) filter (aspect = {number}), []) as {aspect},
    coalesce(sqrt(sum(weight * weight order by value) filter (aspect = {number})), 0) as {aspect}_norm"""
_PROFILES = f"""
with counted as (
    -- Added in one order, because sums of floats depend on it.
    select {USER}, aspect, value, sum(views)::bigint as views, count(*)::double as documents,
        any_value(inverse_frequency) as inverse, sum(confidence order by document_id) as confidence
    from interests group by {USER}, aspect, value
), weighed as (select *, documents * inverse * (confidence / documents) as weight from counted)
select {USER}, sum(views)::bigint as views, list(value order by value) filter (aspect = {_DOCUMENT}) as viewed,
    {",".join(_INTEREST.format(number=number, aspect=aspect) for number, aspect in enumerate(ASPECTS))}
from weighed group by {USER} order by {USER}
"""


def write_users(workspace: Workspace, events: Sequence[Piece], folder: Path) -> None:
    """Write the table of the users of rows (`USER_SCHEMA`)."""
    known = KeyedRows.of_files(events, _EVENTS, "uuid")
    write_table(workspace, "users", {"events": known}, folder, USER_SCHEMA, lambda rows: query(_USERS, **rows))


@dataclass(frozen=True)
class ViewReader:
    """Reads chunks of page views and keeps those of use, with the user's row in the table instead of the name."""

    reader: RowReader
    users: Path
    """Folder of the table of users."""
    documents: Path
    """Folder of the table of documents."""
    schema: pa.Schema = VIEW_SCHEMA
    dictionaries: tuple[str, ...] = ("platform", "geo_location", "traffic_source", "purpose")

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Yield the blocks of a chunk; lines that are not kept count as good."""
        users, documents = LookupTable.cached(self.users), LookupTable.cached(self.documents)
        for block in self.reader.read(chunk):
            user = users.find_texts(block.rows["uuid"])
            known = np.flatnonzero(user != UNKNOWN)
            views, user = block.rows.take(pa.array(known)), user[known]
            purpose = _purposes(users, documents, user, views)
            rows = batch_of(VIEW_SCHEMA, {USER: user, "purpose": purpose}, views)
            kept = purpose != 0
            yield replace(block, rows=rows.filter(pa.array(kept)), lines=block.lines[known[kept]])


def _purposes(
    users: LookupTable, documents: LookupTable, user: NDArray[np.int64], views: pa.RecordBatch
) -> NDArray[np.int8]:
    document = views["document_id"].to_numpy()
    first = users.numbers("first_event", user)
    counts = first.valid & (views["timestamp"].to_numpy() < first.values)
    found = documents.find({"document_id": document})
    counts &= np.logical_or.reduce([documents.lengths(aspect, found) > 0 for aspect in ASPECTS])
    is_landing = users.contains("landing", user, document)
    for name in ("platform", "geo_location", "traffic_source"):
        is_landing &= views[name].is_valid().to_numpy(zero_copy_only=False)
    return (counts * PROFILE + is_landing * TRAFFIC).astype(np.int8)


def read_views(segment: Segment, users: Path, purpose: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the page views of a segment that are kept for a purpose, with the hashes of their users.

    `schema`: `hash`, then columns of views, of which some may be missing.
    """
    names = [name for name in schema.names if name in VIEW_SCHEMA.names]
    for batch in read_piece(segment.piece, [*names, "purpose"]):
        kept = batch.filter(pa.array(batch["purpose"].to_numpy() & purpose != 0))
        yield batch_of(schema, {HASH: LookupTable.cached(users).numbers(HASH, kept[USER].to_numpy()).values}, kept)


@dataclass(frozen=True)
class ProfileJob:
    """The tables that profiles are made of."""

    users: Path
    documents: Path
    values: Path
    """Folders of the tables of users, of documents, and of the aspects' values."""
    num_documents: int


def write_profiles(workspace: Workspace, views: Sequence[Piece], job: ProfileJob, folder: Path) -> None:
    """Write the table of profiles."""
    read = partial(read_views, users=job.users, purpose=PROFILE, schema=_VIEWED)
    viewed = {"viewed": KeyedRows(make_segments(views), _VIEWED, read)}
    write_table(workspace, "user profiles", viewed, folder, PROFILE_SCHEMA, lambda rows: profiles(rows["viewed"], job))


def profiles(viewed: pa.Table, job: ProfileJob) -> Iterator[pa.RecordBatch]:
    """Yield the profiles of users, from all page views of theirs (`USER`, document_id)."""
    interests = pa.RecordBatchReader.from_batches(_INTERESTS, _interests(query(_VIEWS_OF, viewed=viewed), job))
    for batch in query(_PROFILES, interests=interests):
        names = LookupTable.cached(job.users).column("uuid", batch[USER].to_numpy(), pa.string())
        yield batch_of(PROFILE_SCHEMA, {HASH: hash_texts(names), "uuid": names}, batch)


def _interests(counted: Iterable[pa.RecordBatch], job: ProfileJob) -> Iterator[pa.RecordBatch]:
    """Yield the values of the documents that users viewed, and the documents themselves with their views."""
    documents = LookupTable.cached(job.documents)
    for viewed in counted:
        own = {"aspect": np.full(len(viewed), _DOCUMENT), "value": viewed["document_id"]}
        yield batch_of(_INTERESTS, own, viewed)
        found = documents.find({"document_id": viewed["document_id"].to_numpy()})
        for number, aspect in enumerate(ASPECTS):
            lists = documents.lists(aspect, found)
            value = lists.field("value")
            columns = {
                "aspect": np.full(len(value), number),
                "value": value,
                "confidence": lists.field("confidence", np.float64),
                "inverse_frequency": inverse_frequency(job.values, aspect, value, job.num_documents),
            }
            yield batch_of(_INTERESTS, columns, viewed.select([USER, "document_id"]).take(pa.array(lists.owner)))
