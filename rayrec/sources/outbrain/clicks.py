"""Lines of the clicks with the event of their display: the rows of every split, sorted by display."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.preprocessing.lookups import KeyedRows, range_count, shuffle_rows
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    batch_of,
    count_rows,
    joined,
    make_segments,
    numbered,
    read_segment,
    write_pieces,
)
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import Workspace
from rayrec.random.arrays import uniform
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.features import FOLD
from rayrec.sources.outbrain.tables import DAY_MILLISECONDS, EVENT_FIELDS, OutbrainTable

TRAIN, VALIDATION, SUBMISSION = SPLITS = ("train", "validation", "submission")
EVENTS = "events"
DISPLAY, CLICKED, IS_SHOWN, POSITION = "display_id", "clicked", "is_shown", "position"
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
EVENT_SCHEMA = pa.schema([*EVENT_FIELDS, pa.field(IS_SHOWN, pa.bool_(), False)])
"""One event of each display, and whether the display has rows."""
_JOINED = """
with clicks as (
    select *, false as is_test from clicks_train
    union all by name
    select *, 0 as clicked, true as is_test from clicks_test
),
event as (
    -- Of lines with the same display the smallest, null before any value.
    select distinct on (display_id) *, true as has_event from events
    order by display_id, uuid nulls first, document_id nulls first, timestamp nulls first, platform nulls first,
        geo_location nulls first
)
select *, ad_id is not null as is_shown,
    has_event and row_number() over (partition by display_id order by is_test, position) = 1 as is_event
from clicks full join event using (display_id)
order by display_id, is_test, position
"""
_SAMPLED = 64
"""Displays of a segment that tell where the ranges of displays are cut."""


class ClickRows(NamedTuple):
    """The files of the rows of every split, and of the events (`EVENT_SCHEMA`)."""

    splits: dict[str, list[Piece]]
    events: list[Piece]
    clicked: int
    """Number of clicked rows of `train`."""


def write_click_rows(
    workspace: Workspace, tables: Mapping[str, Sequence[Piece]], config: DisplayPreprocessConfig, folder: Path
) -> ClickRows:
    """Join clicks with events, one row for each line of the clicks, and divide the displays into splits."""

    def rows_of(table: OutbrainTable, *added: pa.Field) -> KeyedRows:
        schema = pa.schema([*table.layout.schema, *added])

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for positions, batch in numbered(segment, read_segment(segment, table.layout.schema.names)):
                yield batch_of(schema, {POSITION: positions}, batch)

        return KeyedRows(make_segments(tables.get(table.value, ())), schema, read)

    position = pa.field(POSITION, pa.int64())
    train, test = rows_of(OutbrainTable.CLICKS_TRAIN, position), rows_of(OutbrainTable.CLICKS_TEST, position)
    # Displays are sent by ranges of their ids, so that the files follow each other.
    bounds = _bounds(workspace, [*train.segments, *test.segments])

    def range_of(rows: pa.RecordBatch) -> NDArray[np.int64]:
        return np.searchsorted(bounds, rows[DISPLAY].to_numpy(), "right")

    def write(partition: int, rows: Mapping[str, pa.Table]) -> tuple[dict[str, list[Piece]], int]:
        clicked = Counter[str]()
        divided = _divided(query(_JOINED, **rows), config, clicked)
        schemas = {EVENTS: EVENT_SCHEMA, **dict.fromkeys(SPLITS, CLICK_SCHEMA)}
        files = {name: (folder / f"{name}-{partition:06d}.parquet", schema) for name, schema in schemas.items()}
        return write_pieces(files, divided), clicked[TRAIN]

    sources = {"clicks_train": train, "clicks_test": test, "events": rows_of(OutbrainTable.EVENTS)}
    written = shuffle_rows(workspace, "join clicks and events", sources, write, len(bounds) + 1, range_of)
    pieces = joined([of_range for of_range, _ in written])
    return ClickRows(events=pieces.pop(EVENTS), splits=pieces, clicked=sum(clicked for _, clicked in written))


def _bounds(workspace: Workspace, segments: Sequence[Segment]) -> NDArray[np.int64]:
    """Return (ranges - 1,) displays at which ranges of about as many rows begin, from a few of each segment."""
    ranges = range_count(count_rows(segments))

    def sample(segment: Segment) -> NDArray[np.int64]:
        ascending = np.sort(np.concatenate([batch[DISPLAY].to_numpy() for batch in read_segment(segment, [DISPLAY])]))
        return ascending[np.arange(_SAMPLED) * len(ascending) // _SAMPLED]

    if ranges == 1:
        return np.empty(0, np.int64)
    sampled = np.sort(np.concatenate(workspace.engine.run(segments, sample)))
    return sampled[np.arange(1, ranges) * len(sampled) // ranges]


def _divided(
    joined: Iterable[pa.RecordBatch], config: DisplayPreprocessConfig, clicked: Counter[str]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the events, and the rows of each split with their folds, from clicks with events; count clicked rows."""
    for batch in joined:
        yield EVENTS, batch_of(EVENT_SCHEMA, {}, batch.filter(batch["is_event"]))
        rows = batch.filter(batch[IS_SHOWN])
        display = rows[DISPLAY].to_numpy()
        day = rows["timestamp"].fill_null(0).to_numpy() // DAY_MILLISECONDS
        is_held_out = (day >= config.split.held_out_from_day) | (
            uniform(display, config.seed) < config.split.held_out_share
        )
        is_held_out &= rows["timestamp"].is_valid().to_numpy(zero_copy_only=False)
        split = np.where(is_held_out, SPLITS.index(VALIDATION), SPLITS.index(TRAIN))
        split[rows["is_test"].to_numpy(zero_copy_only=False)] = SPLITS.index(SUBMISSION)
        # A draw may round to 1.
        fold = np.minimum(uniform(display, config.seed + 1) * config.rates.folds, config.rates.folds - 1)
        folds = pa.array(fold.astype(np.int8), mask=split != SPLITS.index(TRAIN))
        rows = batch_of(CLICK_SCHEMA, {FOLD: folds}, rows)
        for number, name in enumerate(SPLITS):
            part = rows.filter(pa.array(split == number))
            clicked[name] += int(pc.sum(part[CLICKED]).as_py() or 0)
            yield name, part
