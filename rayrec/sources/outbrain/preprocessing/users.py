"""The users of rows, their page views, and the interests that follow from these.

Of the page views only those are stored that a feature is made of.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import UNKNOWN, LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.keyed_rows import KeyedRows, write_table
from rayrec.preprocessing.segments import Piece, Segment, batch_of, make_segments, read_piece
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.input_files import Chunk
from rayrec.raw.rows import RawBlock, RowReader
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.preprocessing.clicks import EVENT_SCHEMA, IS_SHOWN
from rayrec.sources.outbrain.preprocessing.documents import inverse_frequency
from rayrec.sources.outbrain.statistics import ASPECTS, PROFILE_SCHEMA

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
_COUNTED = f"select {USER}, document_id, count(*) as views from viewed group by all"
_OF_ASPECT = """
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
    {",".join(_OF_ASPECT.format(number=number, aspect=aspect) for number, aspect in enumerate(ASPECTS))}
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
    interests = pa.RecordBatchReader.from_batches(_INTERESTS, _interests(query(_COUNTED, viewed=viewed), job))
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
