"""Where users came from: the source of the page view that an event is, found by user, page, device, place and day."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.keyed_table import HASH, UNKNOWN, KeyedTable, hash_key
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts, whole_groups
from rayrec.preprocessing.spark_tasks import counted_rows, frame_of_tasks, run_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import range_count, write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.layout import DAY_MILLISECONDS
from rayrec.sources.outbrain.preprocessing.clicks import CLICK_DICTIONARIES, CLICK_SCHEMA, DISPLAY, ClickRows
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, new_rows
from rayrec.sources.outbrain.preprocessing.users.nearest_views import match_views
from rayrec.sources.outbrain.preprocessing.users.page_views import TRAFFIC, read_views

TRAFFIC_SOURCE = "traffic_source"
_SOURCES_SCHEMA = pa.schema(
    [pa.field(HASH, pa.int64(), False), pa.field(DISPLAY, pa.int64(), False), pa.field("sources", pa.list_(pa.int64()))]
)
_KEY = ("user", "document_id", "day", "platform", "geo_location")
_LONG = pa.schema(
    [
        ("user", pa.int64()),
        ("document_id", pa.int64()),
        ("day", pa.int64()),
        ("platform", pa.int8()),
        ("geo_location", pa.string()),
        ("timestamp", pa.int64()),
        ("source", pa.int8()),  # null of events
        (DISPLAY, pa.int64()),  # null of page views
    ]
)
_BATCH_ROWS = 131_072


def write_traffic(
    workspace: Workspace, rows: ClickRows, views: RowFiles, users: Path, original: bool, folder: Path
) -> None:
    """Write the table of sources by display: of the nearest page view, in the original of every matching one."""
    spark = workspace.spark
    items = [(segment, True) for files in rows.splits.values() for segment in files.segments()]
    items += [(segment, False) for segment in views.segments()]
    rows_of_displays = sum(files.rows for files in rows.splits.values())
    total = rows_of_displays + views.rows
    with counted_rows(spark, workspace.progress, "traffic sources", total) as counter:

        def read(item: tuple[Segment, bool]) -> Iterator[pa.RecordBatch]:
            segment, is_click = item
            yield from _read_events(segment, users) if is_click else _read_views(segment)
            counter.add(segment.piece.rows)

        def match(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for whole in whole_groups(batches, "user", _BATCH_ROWS):
                yield _matched(whole, original)

        columns = (
            "user long, document_id long, day long, platform byte, geo_location string, timestamp long, source byte, "
            "display_id long"
        )
        ranges = range_count(spark, total)
        by_user = frame_of_tasks(spark, items, read, columns).repartition(ranges, "user").sortWithinPartitions("user")
        matched = by_user.mapInArrow(match, "hash long, display_id long, sources array<long>")
        write_table(matched, rows_of_displays, (DISPLAY,), folder, _SOURCES_SCHEMA)


def _read_events(segment: Segment, users: Path) -> Iterator[pa.RecordBatch]:
    """The event of each display that has all that a page view is matched by."""
    columns = [DISPLAY, "uuid", "document_id", "timestamp", "platform", "geo_location"]
    for batch in read_piece(segment.piece, columns, ()):
        events = batch.take(pa.array(group_starts(batch[DISPLAY]))).drop_null()
        user = KeyedTable.cached(users).find_texts("uuid", events["uuid"])
        assert UNKNOWN not in user, "every user of a row is in the table"
        yield _long(events, user, pa.nulls(len(events), pa.int8()), events[DISPLAY])


def _read_views(segment: Segment) -> Iterator[pa.RecordBatch]:
    columns = ("user", "document_id", "timestamp", "platform", "geo_location", TRAFFIC_SOURCE)
    for views in read_views(segment, TRAFFIC, columns):
        yield _long(views, views["user"].to_numpy(), views[TRAFFIC_SOURCE], pa.nulls(len(views), pa.int64()))


def _long(rows: pa.RecordBatch, user: NDArray[np.int64], source: pa.Array, display: pa.Array) -> pa.RecordBatch:
    day = pa.array(rows["timestamp"].to_numpy() // DAY_MILLISECONDS)
    columns = [pa.array(user), rows["document_id"], day, rows["platform"], rows["geo_location"], rows["timestamp"]]
    return pa.RecordBatch.from_arrays([*columns, source, display], schema=_LONG)


def _matched(rows: pa.RecordBatch, original: bool) -> pa.RecordBatch:
    """The sources of the events among `_LONG` rows of whole users; events without any are left out."""
    group = _groups(rows)
    is_event = rows["source"].is_null().to_numpy(zero_copy_only=False)
    timestamp = rows["timestamp"].to_numpy()
    views, events = np.flatnonzero(~is_event), np.flatnonzero(is_event)
    source = rows["source"].drop_null().to_numpy()
    matches = match_views(
        group[events], timestamp[events], group[views], timestamp[views], source, nearest=not original
    )
    display = rows[DISPLAY].take(pa.array(events[matches.lengths > 0]))
    offsets = np.concatenate(([0], np.cumsum(matches.lengths[matches.lengths > 0]))).astype(np.int32)
    sources = pa.ListArray.from_arrays(pa.array(offsets), pa.array(matches.sources.astype(np.int64)))
    hashes = pa.array(hash_key(display.to_numpy()))
    return pa.RecordBatch.from_arrays([hashes, display, sources], names=[HASH, DISPLAY, "sources"])


def _groups(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """(n,) a number for each combination of the key's columns."""
    group = np.zeros(len(rows), np.int64)
    for name in _KEY:
        column = rows[name]
        codes = column.dictionary_encode().indices.to_numpy() if pa.types.is_string(column.type) else column.to_numpy()
        _, code = np.unique(codes, return_inverse=True)
        _, group = np.unique(group * (code.max(initial=0) + 1) + code, return_inverse=True)
    return group


def write_rows_with_sources(workspace: Workspace, rows: ClickRows, traffic: Path, folder: Path) -> ClickRows:
    """Rows with a column of their event's traffic source, in order; a row for each source that the table names."""
    schema = CLICK_SCHEMA.append(pa.field(TRAFFIC_SOURCE, pa.int8()))
    items = [(split, segment) for split, files in rows.splits.items() for segment in files.segments()]
    total = sum(files.rows for files in rows.splits.values())
    with counted_rows(workspace.spark, workspace.progress, "rows with traffic sources", total) as counter:

        def run(item: tuple[str, Segment]) -> tuple[str, Path, int]:
            split, segment = item
            path, written = folder / f"{split}-{segment.index:06d}.parquet", 0
            with new_rows(path, schema, (*CLICK_DICTIONARIES, TRAFFIC_SOURCE)) as writer:
                for batch in read_piece(segment.piece, CLICK_SCHEMA.names, ()):
                    whole = _with_sources(batch, KeyedTable.cached(traffic), schema)
                    writer.write_batch(whole)
                    written += len(whole)
            counter.add(segment.piece.rows)
            return split, path, written

        found = run_tasks(workspace.spark, items, run)
    splits = {name: RowFiles.of((path, n) for split, path, n in found if split == name) for name in rows.splits}
    return rows.model_copy(update={"splits": splits})


def _with_sources(batch: pa.RecordBatch, traffic: KeyedTable, schema: pa.Schema) -> pa.RecordBatch:
    lists = traffic.lists("sources", traffic.find({DISPLAY: batch[DISPLAY].to_numpy()}))
    lengths = np.maximum(lists.lengths, 1)
    owner = np.repeat(np.arange(len(batch)), lengths)
    sources, is_named = np.zeros(len(owner), np.int8), np.repeat(lists.lengths > 0, lengths)
    sources[is_named] = lists.field()
    column = pa.array(sources, mask=~is_named)
    return pa.RecordBatch.from_arrays([*batch.take(pa.array(owner)).columns, column], schema=schema)
