"""The users of rows: the only ones whose page views count, and what of these they are asked about."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.features.keyed_table import HASH, KeyedTable, hash_texts
from rayrec.preprocessing.displays.clicks import DISPLAY, ClickRows
from rayrec.preprocessing.hash_ranges import in_hash_ranges, range_count, write_sorted
from rayrec.preprocessing.runs import run_starts
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks
from rayrec.preprocessing.workspace import Workspace

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


def write_users(workspace: Workspace, rows: ClickRows, statistics: Path, folder: Path) -> None:
    """Write the table of users (`USER_SCHEMA`); `statistics`: the folder that holds the ads."""
    from pyspark.sql import functions as f

    spark = workspace.spark
    segments = [(segment, name == "validation") for name, files in rows.splits.items() for segment in files.segments()]
    total = sum(files.rows for files in rows.splits.values())
    with counted_rows(spark, workspace.progress, "users", total) as counter:

        def read(item: tuple[Segment, bool]) -> Iterator[pa.RecordBatch]:
            yield from _read(*item, statistics)
            counter.add(item[0].piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            written = write_sorted(batches, folder, USER_SCHEMA)
            yield pa.RecordBatch.from_arrays([pa.array([written])], names=["rows"])

        users = (
            frame_of_tasks(spark, segments, read, _COLUMNS)
            .groupBy(HASH, "uuid")
            .agg(
                f.min("timestamp").alias("first_event"),
                f.max("is_validated").alias("is_validated"),
                f.sort_array(f.collect_set("landing")).alias("landing"),
                f.sort_array(f.collect_set("promoted")).alias("promoted"),
            )
        )
        ordered = in_hash_ranges(users, range_count(spark, total)).sortWithinPartitions(HASH, "uuid")
        collect_rows(ordered.mapInArrow(write, "rows long"))


def _read(segment: Segment, is_validated: bool, statistics: Path) -> Iterator[pa.RecordBatch]:
    """Events with a user, once a display; of `validation` every row, for its ad document."""
    ads = KeyedTable.cached(statistics / "ads")
    columns = (DISPLAY, "ad_id", "uuid", "timestamp", "document_id")
    for batch in read_piece(segment.piece, columns, ()):
        kept = np.zeros(len(batch), bool)
        kept[run_starts(batch[DISPLAY])] = True
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
            names=[HASH, "uuid", "timestamp", "is_validated", "landing", "promoted"],
        )
