"""The users of rows: the only ones whose page views count, and what of these they are asked about."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.keyed_table import HASH, KeyedTable, hash_texts
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts
from rayrec.preprocessing.spark_tasks import counted_rows, frame_of_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.preprocessing.clicks import DISPLAY, ClickRows, events
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables

USER_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("uuid", pa.string(), False),
        pa.field("first_event", pa.int64()),  # null where no event has a time
        pa.field("is_validated", pa.bool_(), False),  # whether a row of `validation` is of the user
        pa.field("landing", pa.list_(pa.int64()), False),  # landing documents of events, ascending
        pa.field("promoted", pa.list_(pa.int64()), False),  # ad documents of rows of `validation`, ascending
    ]
)
_COLUMNS = "hash long, uuid string, timestamp long, is_validated boolean, landing long, promoted long"
_NAMES = [HASH, "uuid", "timestamp", "is_validated", "landing", "promoted"]


def write_users(
    workspace: Workspace, rows: ClickRows, tables: ParsedTables, statistics: Path, original: bool, folder: Path
) -> None:
    """Write the table of the users of rows (`USER_SCHEMA`); `statistics`: the folder that holds the ads."""
    from pyspark.sql import functions as f

    spark = workspace.spark
    segments = [(segment, name == "validation") for name, files in rows.splits.items() for segment in files.segments()]
    total = sum(files.rows for files in rows.splits.values())
    with counted_rows(spark, workspace.progress, "users", total) as counter:

        def read(item: tuple[Segment, bool]) -> Iterator[pa.RecordBatch]:
            yield from _read(*item, statistics)
            counter.add(item[0].piece.rows)

        # The first event is that of all events, also of displays that have no rows.
        every_event = events(workspace, tables, placed=original).select("uuid", "timestamp")
        times = every_event.mapInArrow(_with_hash, _COLUMNS)
        users = (
            frame_of_tasks(spark, segments, read, _COLUMNS)
            .unionByName(times)
            .groupBy(HASH, "uuid")
            .agg(
                f.min("timestamp").alias("first_event"),
                f.max("is_validated").alias("is_validated"),
                f.sort_array(f.collect_set("landing")).alias("landing"),
                f.sort_array(f.collect_set("promoted")).alias("promoted"),
            )
            .filter("is_validated is not null")
        )
        write_table(users, total, ("uuid",), folder, USER_SCHEMA)


def _with_hash(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events as rows are read, but for what only rows have."""
    for batch in batches:
        known = batch.filter(batch["uuid"].is_valid())
        uuid = known["uuid"]
        missing = [pa.nulls(len(known), kind) for kind in (pa.bool_(), pa.int64(), pa.int64())]
        columns = [pa.array(hash_texts(uuid)), uuid, known["timestamp"], *missing]
        yield pa.RecordBatch.from_arrays(columns, names=_NAMES)


def _read(segment: Segment, is_validated: bool, statistics: Path) -> Iterator[pa.RecordBatch]:
    """Events with a user, once a display; of `validation` every row, for its ad document."""
    ads = KeyedTable.cached(statistics / "ads")
    columns = (DISPLAY, "ad_id", "uuid", "timestamp", "document_id")
    for batch in read_piece(segment.piece, columns, ()):
        kept = np.zeros(len(batch), bool)
        kept[group_starts(batch[DISPLAY])] = True
        kept |= is_validated
        kept &= batch["uuid"].is_valid().to_numpy(zero_copy_only=False)
        part = batch.filter(pa.array(kept))
        promoted = pa.nulls(len(part), pa.int64())
        if is_validated:
            found = ads.numbers("document_id", ads.find({"ad_id": part["ad_id"].to_numpy()}))
            promoted = pa.array(found.values, pa.int64(), mask=~found.valid)
        flags = pa.array(np.full(len(part), is_validated))
        hashes = pa.array(hash_texts(part["uuid"]))
        yield pa.RecordBatch.from_arrays(
            [hashes, part["uuid"], part["timestamp"], flags, part["document_id"], promoted],
            names=_NAMES,
        )
