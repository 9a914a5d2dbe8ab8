"""The users of rows: the only ones whose page views count."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rayrec.features.keyed_table import HASH, hash_texts
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts
from rayrec.preprocessing.vocabularies.hash_ranges import write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.preprocessing.clicks import DISPLAY, events
from rayrec.sources.outbrain.preprocessing.row_files import SplitRows, batch_of, frame_of_rows, spark_schema
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables

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


def write_users(workspace: Workspace, rows: SplitRows, tables: ParsedTables, folder: Path) -> None:
    """Write the table of the users of rows (`USER_SCHEMA`)."""
    from pyspark.sql import functions as f

    sources = [(files, _read_events) for files in rows.splits.values()]
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
        write_table(users, rows.rows, ("uuid",), folder, USER_SCHEMA)


def _without_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events that count for their times alone."""
    for batch in batches:
        known = batch.filter(batch["uuid"].is_valid())
        yield batch_of(_EVENTS, {HASH: hash_texts(known["uuid"])}, known)


def _read_events(segment: Segment) -> Iterator[pa.RecordBatch]:
    """The events of rows that have a user, once for each display."""
    for batch in read_piece(segment.piece, (DISPLAY, "uuid", "timestamp", "document_id"), ()):
        events = batch.take(pa.array(group_starts(batch[DISPLAY])))
        known = events.filter(events["uuid"].is_valid())
        columns = {"landing": known["document_id"], "has_rows": pa.repeat(True, len(known))}
        yield batch_of(_EVENTS, {HASH: hash_texts(known["uuid"]), **columns}, known)
