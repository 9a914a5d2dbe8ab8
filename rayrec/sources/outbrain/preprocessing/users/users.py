"""The users of rows, and their page views: only those that a feature is made of are stored."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.hashes import hash_texts
from rayrec.features.lookup_table import UNKNOWN, LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.spark import spark_schema
from rayrec.preprocessing.runners.spark_runner import SparkRows
from rayrec.preprocessing.scratch_rows import batch_of, frame_of_rows
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts
from rayrec.preprocessing.vocabularies.hash_ranges import write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.blocks import RawBlock, RowReader
from rayrec.raw.input_files import Chunk
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.preprocessing.clicks import DISPLAY, events
from rayrec.sources.outbrain.preprocessing.parsed_tables import ParsedTables
from rayrec.sources.outbrain.preprocessing.row_files import SplitRows
from rayrec.sources.outbrain.statistics import ASPECTS

USER_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("uuid", pa.string(), False),
        pa.field("first_event", pa.int64()),  # null if no event has a time
        pa.field("landing", pa.list_(pa.int64()), False),  # landing documents of events, ascending
    ]
)
_EVENTS = pa.schema(
    [
        (HASH, pa.int64()),
        ("uuid", pa.string()),
        ("timestamp", pa.int64()),
        ("landing", pa.int64()),
        ("has_rows", pa.bool_()),
    ]
)
PROFILE, TRAFFIC = 1, 2
"""Bits of the column `purpose`: a page view is kept for the user's profile, or for the traffic source of an event."""
VIEW_SCHEMA = pa.schema(
    [
        pa.field("user", pa.int64(), False),  # row of the table of users
        *list(OutbrainTable.PAGE_VIEWS.layout.schema)[1:],
        pa.field("purpose", pa.int8(), False),
    ]
)


def write_users(workspace: Workspace, rows: SplitRows, tables: ParsedTables, folder: Path) -> None:
    """Write the table of the users of rows (`USER_SCHEMA`)."""
    from pyspark.sql import functions as f

    sources = [(files.segments(), _read_events) for files in rows.splits.values()]
    with frame_of_rows(workspace, "users", sources, _EVENTS) as listed:
        # The first event is that of all events, also of displays without rows.
        every_event = events(workspace, tables).select("uuid", "timestamp")
        users = (
            listed.unionByName(every_event.mapInArrow(_without_rows, spark_schema(_EVENTS)))
            .groupBy(HASH, "uuid")
            .agg(
                f.min("timestamp").alias("first_event"),
                f.sort_array(f.collect_set("landing")).alias("landing"),
                f.max("has_rows").alias("has_rows"),
            )
            .filter("has_rows")
        )
        write_table(workspace.runner, SparkRows(users), rows.rows, ("uuid",), folder, USER_SCHEMA)


def _without_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the events that count for their times alone."""
    for batch in batches:
        known = batch.filter(batch["uuid"].is_valid())
        yield batch_of(_EVENTS, {HASH: hash_texts(known["uuid"])}, known)


def _read_events(segment: Segment) -> Iterator[pa.RecordBatch]:
    """Yield the events of rows that have a user, once for each display."""
    for batch in read_piece(segment.piece, (DISPLAY, "uuid", "timestamp", "document_id"), ()):
        events = batch.take(pa.array(group_starts(batch[DISPLAY])))
        known = events.filter(events["uuid"].is_valid())
        columns = {"landing": known["document_id"], "has_rows": pa.repeat(True, len(known))}
        yield batch_of(_EVENTS, {HASH: hash_texts(known["uuid"]), **columns}, known)


@dataclass(frozen=True)
class ViewReader:
    """Reads chunks of page views and keeps those of use, with the user's number instead of the name."""

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
            columns = [*(views[name] for name in VIEW_SCHEMA.names[1:-1]), pa.array(purpose)]
            rows = pa.RecordBatch.from_arrays([pa.array(user), *columns], schema=VIEW_SCHEMA)
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
