"""Finds where users came from: the source of the page view nearest to an event."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.hashes import hash_key
from rayrec.features.lookup_table import UNKNOWN, LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.spark import spark_schema
from rayrec.preprocessing.runners.spark_runner import SparkRows
from rayrec.preprocessing.scratch_rows import batch_of, frame_of_rows
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts, whole_groups
from rayrec.preprocessing.vocabularies.hash_ranges import range_count, write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS
from rayrec.sources.outbrain.preprocessing.clicks import DISPLAY
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, SplitRows
from rayrec.sources.outbrain.preprocessing.users.users import TRAFFIC, read_views

SOURCES_SCHEMA = pa.schema(
    [pa.field(HASH, pa.int64(), False), pa.field(DISPLAY, pa.int64(), False), pa.field("source", pa.int8(), False)]
)
_KEY = ("user", "document_id", "day", "platform", "geo_location")
_ROWS = pa.schema(
    [
        ("user", pa.int64()),
        ("document_id", pa.int64()),
        ("day", pa.int64()),
        ("platform", pa.int8()),
        ("geo_location", pa.string()),
        ("timestamp", pa.int64()),
        ("source", pa.int8()),  # null in events
        (DISPLAY, pa.int64()),  # null in page views
    ]
)
_BATCH_ROWS = 131_072


def write_traffic(workspace: Workspace, rows: SplitRows, views: RowFiles, users: Path, folder: Path) -> None:
    """Write the table of traffic sources by display; displays without one are left out."""

    def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for whole in whole_groups(batches, "user", _BATCH_ROWS):
            yield _matched(whole)

    sources = [(files.segments(), partial(_read_events, users=users)) for files in rows.splits.values()]
    with frame_of_rows(workspace, "traffic sources", [*sources, (views.segments(), _read_views)], _ROWS) as listed:
        ranges = range_count(workspace.runner, rows.rows + views.rows)
        by_user = listed.repartition(ranges, "user").sortWithinPartitions("user")
        matched = by_user.mapInArrow(match, spark_schema(SOURCES_SCHEMA))
        write_table(workspace.runner, SparkRows(matched), rows.rows, (DISPLAY,), folder, SOURCES_SCHEMA)


def _read_events(segment: Segment, users: Path) -> Iterator[pa.RecordBatch]:
    """Yield the event of each display, if it has all that a page view is matched by."""
    columns = [DISPLAY, "uuid", "document_id", "timestamp", "platform", "geo_location"]
    for batch in read_piece(segment.piece, columns, ()):
        events = batch.take(pa.array(group_starts(batch[DISPLAY]))).drop_null()
        user = LookupTable.cached(users).find_texts(events["uuid"])
        assert UNKNOWN not in user, "every user of a row is in the table"
        yield _with_day(events, {"user": user})


def _read_views(segment: Segment) -> Iterator[pa.RecordBatch]:
    columns = ("user", "document_id", "timestamp", "platform", "geo_location", "traffic_source")
    for views in read_views(segment, TRAFFIC, columns):
        yield _with_day(views, {"source": views["traffic_source"]})


def _with_day(rows: pa.RecordBatch, others: dict[str, NDArray[np.int64] | pa.Array]) -> pa.RecordBatch:
    return batch_of(_ROWS, {**others, "day": rows["timestamp"].to_numpy() // DAY_MILLISECONDS}, rows)


def _matched(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the sources of the events among the rows of whole users; events without one are left out."""
    group, timestamp = _groups(rows), rows["timestamp"].to_numpy()
    is_event = rows["source"].is_null().to_numpy(zero_copy_only=False)
    views, events = np.flatnonzero(~is_event), np.flatnonzero(is_event)
    nearest = nearest_views(
        group[events], timestamp[events], group[views], timestamp[views], rows["source"].drop_null().to_numpy()
    )
    is_matched = nearest != UNKNOWN
    display = rows[DISPLAY].take(pa.array(events[is_matched]))
    source = rows["source"].take(pa.array(views[nearest[is_matched]]))
    hashes = pa.array(hash_key(display.to_numpy()))
    return pa.RecordBatch.from_arrays([hashes, display, source], schema=SOURCES_SCHEMA)


def _groups(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """(n,) a number for each combination of the key's columns."""
    group = np.zeros(len(rows), np.int64)
    for name in _KEY:
        column = rows[name]
        codes = column.dictionary_encode().indices.to_numpy() if pa.types.is_string(column.type) else column.to_numpy()
        _, code = np.unique(codes, return_inverse=True)
        _, group = np.unique(group * (code.max(initial=0) + 1) + code, return_inverse=True)
    return group


def nearest_views(
    event_group: NDArray[np.int64],
    event_time: NDArray[np.int64],
    view_group: NDArray[np.int64],
    view_time: NDArray[np.int64],
    view_source: NDArray[np.int8],
) -> NDArray[np.int64]:
    """(m,) the page view of each event's group that is nearest in time; UNKNOWN if the group has none.

    Of equally near views the earlier, of equal times that with the smaller source.
    """
    if not len(view_group):
        return np.full(len(event_group), UNKNOWN)
    order = np.lexsort((view_source, view_time, view_group))
    group, time = view_group[order], view_time[order]
    _, rank = np.unique(np.concatenate((time, event_time)), return_inverse=True)
    span = len(rank)
    key = group * span + rank[: len(group)]
    after = np.searchsorted(key, event_group * span + rank[len(group) :])
    # The first of the views at the last time before: it has the smallest source.
    before = np.searchsorted(key, key[np.maximum(after - 1, 0)])
    after_inside = np.minimum(after, len(group) - 1)
    has_after = (after < len(group)) & (group[after_inside] == event_group)
    has_before = (after > 0) & (group[before] == event_group)
    gap_after, gap_before = time[after_inside] - event_time, event_time - time[before]
    takes_before = has_before & (~has_after | (gap_before <= gap_after))
    return np.where(has_before | has_after, order[np.where(takes_before, before, after_inside)], UNKNOWN)
