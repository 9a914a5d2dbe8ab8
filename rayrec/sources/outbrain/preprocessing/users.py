"""The users of rows, and their page views: only those that a feature is made of are stored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import UNKNOWN, LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.engine import Source, partition_by_hash
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import Segment, batch_of, read_piece
from rayrec.preprocessing.sorted_rows import range_count, write_sorted
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.blocks import RawBlock, RowReader
from rayrec.raw.input_files import Chunk
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.preprocessing.clicks import EVENT_SCHEMA
from rayrec.sources.outbrain.preprocessing.row_files import (
    Partitioned,
    RowFiles,
    shuffle_rows,
)
from rayrec.sources.outbrain.statistics import ASPECTS

USER_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("uuid", pa.string(), False),
        pa.field("first_event", pa.int64()),  # null if no event has a time
        pa.field("landing", pa.list_(pa.int64()), False),  # landing documents of events, ascending
    ]
)
_EVENTS = pa.schema([(HASH, pa.int64()), *EVENT_SCHEMA])
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


def write_users(workspace: Workspace, events: RowFiles, folder: Path) -> None:
    """Write the table of the users of rows (`USER_SCHEMA`)."""
    ranges = range_count(events.rows)

    def read(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, EVENT_SCHEMA.names, ()):
            known = batch.filter(batch["uuid"].is_valid())
            hashes = hash_texts(known["uuid"])
            yield partition_by_hash(hashes, ranges), batch_of(_EVENTS, {HASH: hashes}, known)

    def write(_: int, rows: Mapping[str, pa.Table]) -> int:
        return write_sorted(query(_USERS, **rows), folder, USER_SCHEMA)

    shuffle_rows(workspace, "users", {"events": Source(events.segments(), _EVENTS, read)}, ranges, write)


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


def read_views(segment: Segment, purpose: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the page views of a segment that are kept for a purpose."""
    for batch in read_piece(segment.piece, [*columns, "purpose"], ()):
        is_kept = batch["purpose"].to_numpy() & purpose != 0
        yield batch.select(list(columns)).filter(pa.array(is_kept))


def user_ranges(users: LookupTable, user: NDArray[np.int64], ranges: int) -> NDArray[np.int64]:
    """(n,) the ranges of rows of the table of users, of which there are `ranges` of equal width, ascending."""
    return user * ranges // max(len(users), 1)
