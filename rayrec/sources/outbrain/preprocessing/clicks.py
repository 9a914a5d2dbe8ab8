"""Lines of the clicks with the event of their display: the rows of every split, sorted by display."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayrec.config import Config
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.vocabularies.hash_ranges import range_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.random.splitmix64 import uniform
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.features.rows import FOLD
from rayrec.sources.outbrain.layout import DAY_MILLISECONDS, Table
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, new_rows
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUBMISSION = "submission"
SPLITS = ("train", "validation", SUBMISSION)
_TRAIN, _VALIDATION, _SUBMISSION = range(3)
DISPLAY, CLICKED = "display_id", "clicked"
CLICK_SCHEMA = pa.schema(
    [
        pa.field(DISPLAY, pa.int64(), False),
        pa.field("ad_id", pa.int64(), False),
        pa.field(CLICKED, pa.float32(), False),  # 0 in `submission`
        pa.field("uuid", pa.string()),
        pa.field("document_id", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("platform", pa.int8()),
        pa.field("geo_location", pa.string()),
        pa.field(FOLD, pa.int8()),  # of rows of `train`
    ]
)
CLICK_DICTIONARIES = (CLICKED, "platform", "geo_location", FOLD)
_EVENT = ("uuid", "document_id", "timestamp", "platform", "geo_location")
_CLICKS = "display_id long, ad_id long, clicked float, is_given boolean, position long"


class ClickRows(Config):
    """Rows (`CLICK_SCHEMA`) by split, in order of display and within one in that of the input."""

    splits: dict[str, RowFiles]
    clicked: int
    """Clicked rows of `train`."""


def write_click_rows(
    workspace: Workspace, tables: ParsedTables, config: DisplayPreprocessConfig, folder: Path
) -> ClickRows:
    """Join clicks with events, one row a line of clicks, and deal the displays to splits."""
    from pyspark.sql import functions as f

    spark = workspace.spark
    clicks = [(segment, True) for segment in tables.of(Table.CLICKS_TRAIN).segments()]
    clicks += [(segment, False) for segment in tables.of(Table.CLICKS_TEST).segments()]
    rows = sum(segment.piece.rows for segment, _ in clicks)
    with counted_rows(spark, workspace.progress, "join clicks and events", rows) as counter:

        def read(item: tuple[Segment, bool]) -> Iterator[pa.RecordBatch]:
            yield from _read_clicks(*item)
            counter.add(item[0].piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_rows(batches, config, folder)

        given = events(workspace, tables, placed=config.drops_events)
        joined = frame_of_tasks(spark, clicks, read, _CLICKS).join(given, DISPLAY, "left")
        ranges = range_count(spark, rows)
        # A display lies in one range.
        dealt = joined.repartitionByRange(ranges, f.col(DISPLAY)) if ranges > 1 else joined.coalesce(1)
        ordered = dealt.sortWithinPartitions(DISPLAY, "is_given", "position")
        columns = "split byte, partition int, path string, rows long, clicked long"
        found = sorted(collect_rows(ordered.mapInArrow(write, columns)))
    splits = {
        name: RowFiles.of((Path(path), rows) for split, _, path, rows, _ in found if split == number)
        for number, name in enumerate(SPLITS)
    }
    return ClickRows(splits=splits, clicked=sum(clicked for split, *_, clicked in found if split == _TRAIN))


def events(workspace: Workspace, tables: ParsedTables, *, placed: bool) -> "DataFrame":
    """One event a display; `placed`: only those with a platform and a place."""
    from pyspark.sql import functions as f

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        yield from read_piece(segment.piece, (DISPLAY, *_EVENT), ())

    columns = "display_id long, uuid string, document_id long, timestamp long, platform byte, geo_location string"
    listed = frame_of_tasks(workspace.spark, tables.of(Table.EVENTS).segments(), read, columns)
    # Of lines with the same display the smallest, null before any value.
    kept = listed.groupBy(DISPLAY).agg(f.min(f.struct(*_EVENT)).alias("event")).select(DISPLAY, "event.*")
    return kept.filter("platform is not null and geo_location is not null") if placed else kept


def _read_clicks(segment: Segment, is_labelled: bool) -> Iterator[pa.RecordBatch]:
    columns = [DISPLAY, "ad_id", *([CLICKED] if is_labelled else [])]
    first = segment.first
    for batch in read_piece(segment.piece, columns, ()):
        clicked = batch[CLICKED].cast(pa.float32()) if is_labelled else pa.array(np.zeros(len(batch), np.float32))
        positions = pa.array(np.arange(first, first + len(batch)))
        is_given = pa.array(np.full(len(batch), not is_labelled))
        first += len(batch)
        yield pa.RecordBatch.from_arrays(
            [batch[DISPLAY], batch["ad_id"], clicked, is_given, positions],
            names=[DISPLAY, "ad_id", CLICKED, "is_given", "position"],
        )


def _write_rows(
    batches: Iterator[pa.RecordBatch], config: DisplayPreprocessConfig, folder: Path
) -> Iterator[pa.RecordBatch]:
    """Write a range of displays, a file a split; gives what each holds."""
    partition = partition_number()
    paths = [folder / f"{name}-{partition:06d}.parquet" for name in SPLITS]
    rows, clicked = [0] * len(SPLITS), 0.0
    with ExitStack() as stack:
        writers: list[pq.ParquetWriter] = [
            stack.enter_context(new_rows(path, CLICK_SCHEMA, CLICK_DICTIONARIES)) for path in paths
        ]
        for batch in batches:
            split, fold = _deal(batch, config)
            named = dict(zip(batch.schema.names, batch.columns, strict=True)) | {FOLD: fold}
            whole = pa.RecordBatch.from_arrays([named[f.name].cast(f.type) for f in CLICK_SCHEMA], schema=CLICK_SCHEMA)
            for number, writer in enumerate(writers):
                part = whole.filter(pa.array(split == number))
                if part.num_rows:
                    writer.write_batch(part)
                rows[number] += part.num_rows
                if number == _TRAIN:
                    clicked += pc.sum(part[CLICKED]).as_py() or 0.0
    yield pa.RecordBatch.from_arrays(
        [
            pa.array(range(len(SPLITS)), pa.int8()),
            pa.array([partition] * len(SPLITS), pa.int32()),
            pa.array(map(str, paths), pa.string()),
            pa.array(rows),
            pa.array([int(clicked), 0, 0]),
        ],
        names=["split", "partition", "path", "rows", "clicked"],
    )


def _deal(batch: pa.RecordBatch, config: DisplayPreprocessConfig) -> tuple[np.ndarray, pa.Array]:
    """Split and fold of each row."""
    display = batch[DISPLAY].to_numpy()
    is_timed = batch["timestamp"].is_valid().to_numpy(zero_copy_only=False)
    day = batch["timestamp"].fill_null(0).to_numpy() // DAY_MILLISECONDS
    is_held_out = is_timed & (
        (day >= config.split.held_out_from_day) | (uniform(display, config.seed) < config.split.held_out_share)
    )
    split = np.where(is_held_out, _VALIDATION, _TRAIN)
    split[batch["is_given"].to_numpy(zero_copy_only=False)] = _SUBMISSION
    # A draw may round to 1.
    fold = np.minimum(uniform(display, config.seed + 1) * config.rates.folds, config.rates.folds - 1).astype(np.int8)
    return split, pa.array(fold, mask=split != _TRAIN)
