"""Lines of the clicks with the event of their display: the rows of every split, sorted by display."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.preprocessing.runners.spark_runner import frame_of_tasks
from rayrec.preprocessing.scratch_rows import batch_of, frame_of_rows
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.vocabularies.hash_ranges import range_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.random.splitmix64 import uniform
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.features.ad_rows import FOLD
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS, EVENT_FIELDS, OutbrainTable
from rayrec.sources.outbrain.preprocessing.parsed_tables import ParsedTables
from rayrec.sources.outbrain.preprocessing.row_files import SplitRows, write_by_split

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
        *EVENT_FIELDS,
        pa.field(FOLD, pa.int8()),  # null but in `train`
    ]
)
"""Rows of a split, in the order of displays and within one in that of the input."""
_DICTIONARIES = (CLICKED, "platform", "geo_location", FOLD)
_CLICKS = pa.schema(
    [
        (DISPLAY, pa.int64()),
        ("ad_id", pa.int64()),
        (CLICKED, pa.float32()),
        ("is_test", pa.bool_()),
        ("position", pa.int64()),
    ]
)


def write_click_rows(
    workspace: Workspace, tables: ParsedTables, config: DisplayPreprocessConfig, folder: Path
) -> SplitRows:
    """Join clicks with events, one row for each line of the clicks, and divide the displays into splits."""
    from pyspark.sql import functions as f

    train, test = tables.of(OutbrainTable.CLICKS_TRAIN), tables.of(OutbrainTable.CLICKS_TEST)
    sources = [(files.segments(), partial(_read_clicks, is_test=files is test)) for files in (train, test)]
    with frame_of_rows(workspace, "join clicks and events", sources, _CLICKS) as clicks:
        joined = clicks.join(events(workspace, tables), DISPLAY, "left")
        ranges = range_count(workspace.runner, train.rows + test.rows)
        # The rows of a display lie in one range.
        partitioned = joined.repartitionByRange(ranges, f.col(DISPLAY)) if ranges > 1 else joined.coalesce(1)
        ordered = partitioned.sortWithinPartitions(DISPLAY, "is_test", "position")
        divide = partial(_divide, config=config)
        return write_by_split(ordered, folder, SPLITS, CLICK_SCHEMA, _DICTIONARIES, CLICKED, divide)


def events(workspace: Workspace, tables: ParsedTables) -> "DataFrame":
    """Return one event for each display."""
    from pyspark.sql import functions as f

    schema = OutbrainTable.EVENTS.layout.schema

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        yield from read_piece(segment.piece, schema.names, ())

    listed = frame_of_tasks(workspace.spark, tables.of(OutbrainTable.EVENTS).segments(), read, schema)
    # Of lines with the same display the smallest, null before any value.
    return listed.groupBy(DISPLAY).agg(f.min(f.struct(*schema.names[1:])).alias("event")).select(DISPLAY, "event.*")


def _read_clicks(segment: Segment, is_test: bool) -> Iterator[pa.RecordBatch]:
    first = segment.first
    for batch in read_piece(segment.piece, [DISPLAY, "ad_id", *([] if is_test else [CLICKED])], ()):
        columns = {"is_test": np.full(len(batch), is_test), "position": np.arange(first, first + len(batch))}
        if is_test:
            columns[CLICKED] = np.zeros(len(batch), np.float32)
        yield batch_of(_CLICKS, columns, batch)
        first += len(batch)


def _divide(batch: pa.RecordBatch, config: DisplayPreprocessConfig) -> tuple[NDArray[np.integer], pa.RecordBatch]:
    """Return the split of each row, and the rows with their folds."""
    display = batch[DISPLAY].to_numpy()
    is_timed = batch["timestamp"].is_valid().to_numpy(zero_copy_only=False)
    day = batch["timestamp"].fill_null(0).to_numpy() // DAY_MILLISECONDS
    is_held_out = is_timed & (
        (day >= config.split.held_out_from_day) | (uniform(display, config.seed) < config.split.held_out_share)
    )
    split = np.where(is_held_out, _VALIDATION, _TRAIN)
    split[batch["is_test"].to_numpy(zero_copy_only=False)] = _SUBMISSION
    # A draw may round to 1.
    fold = np.minimum(uniform(display, config.seed + 1) * config.rates.folds, config.rates.folds - 1).astype(np.int8)
    return split, batch_of(CLICK_SCHEMA, {FOLD: pa.array(fold, mask=split != _TRAIN)}, batch)
