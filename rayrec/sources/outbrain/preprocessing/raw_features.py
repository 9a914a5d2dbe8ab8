"""Raw features of all rows, computed by the code that serves them."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.lookup_table import UNKNOWN, LookupTable
from rayrec.preprocessing.engines.engine import Source
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import Piece, Segment, batch_of, read_piece
from rayrec.preprocessing.sorted_rows import range_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.feature_sets import features_of, raw_features
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS
from rayrec.sources.outbrain.preprocessing.clicks import CLICK_SCHEMA, CLICKED, DISPLAY
from rayrec.sources.outbrain.preprocessing.row_files import (
    Partitioned,
    RowFiles,
    SplitRows,
    files_of,
    shuffle_rows,
    write_files,
)
from rayrec.sources.outbrain.preprocessing.users import TRAFFIC, USER, read_views, user_ranges
from rayrec.sources.outbrain.statistics import Statistics

CANDIDATE, POSITION = "candidate", "position"
LABEL_FIELDS = (
    pa.field(CLICKED, pa.float32(), False),
    pa.field(DISPLAY, pa.int64(), False),
    pa.field(CANDIDATE, pa.int64(), False),
)
"""Columns beside the features."""
POSITION_FIELD = pa.field(POSITION, pa.int64(), False)
"""The position of a row in its split, for files in another order."""
_SPLIT, _TRAFFIC = "split", "traffic_source"
_ROWS = pa.schema([(USER, pa.int64()), (_SPLIT, pa.int8()), POSITION_FIELD, ("day", pa.int64()), *CLICK_SCHEMA])
_VIEWS = pa.schema(
    [
        (USER, pa.int64()),
        ("document_id", pa.int64()),
        ("day", pa.int64()),
        ("platform", pa.int8()),
        ("geo_location", pa.string()),
        ("timestamp", pa.int64()),
        (_TRAFFIC, pa.int8()),
    ]
)
_SAME_PAGE = " and ".join(f"shown.{name} = {{view}}.{name}" for name in _VIEWS.names[:5])
WITH_TRAFFIC = f"""
with viewed as (
    -- Of views at the same time, the smallest source.
    select * exclude ({_TRAFFIC}), min({_TRAFFIC}) as {_TRAFFIC} from views group by all
)
select shown.*,
    -- Of equally near views, the earlier.
    case when earlier.timestamp is not null
            and (later.timestamp is null or shown.timestamp - earlier.timestamp <= later.timestamp - shown.timestamp)
        then earlier.{_TRAFFIC} else later.{_TRAFFIC} end as {_TRAFFIC}
from shown
asof left join viewed as earlier on {_SAME_PAGE.format(view="earlier")} and shown.timestamp >= earlier.timestamp
asof left join viewed as later on {_SAME_PAGE.format(view="later")} and shown.timestamp <= later.timestamp
order by shown.{USER}, {_SPLIT}, {POSITION}
"""
"""Rows with their traffic source: that of the page view of the same page and day which is nearest in time."""


def write_features(
    workspace: Workspace, clicks: SplitRows, views: RowFiles, users: Path, statistics: Statistics, folder: Path
) -> SplitRows:
    """Write the features of rows in the order of users, whose profiles are so read from disk one after the other.

    `views`: page views that traffic sources are found in; `users`: folder of the table of users, if they have profiles.
    """
    ranges = range_count(clicks.rows + views.rows)
    definitions = features_of(statistics.constants.feature_set)
    schema = pa.schema([*LABEL_FIELDS, POSITION_FIELD, *(pa.field(d.name, d.raw_type) for d in definitions)])

    def read_rows(segment: Segment, split: int) -> Partitioned:
        first, table = segment.first, LookupTable.cached(users)
        for batch in read_piece(segment.piece, CLICK_SCHEMA.names, ()):
            user, position = table.find_texts(batch["uuid"]), np.arange(first, first + len(batch))
            first += len(batch)
            has_user = user != UNKNOWN
            columns = {
                USER: pa.array(user, mask=~has_user),
                _SPLIT: np.full(len(batch), split),
                POSITION: position,
                "day": batch["timestamp"].fill_null(0).to_numpy() // DAY_MILLISECONDS,
            }
            # Rows without a user are spread.
            partition = np.where(has_user, user_ranges(table, user, ranges), position % ranges)
            yield partition, batch_of(_ROWS, columns, batch)

    def read_page_views(segment: Segment) -> Partitioned:
        for batch in read_views(segment, TRAFFIC, [name for name in _VIEWS.names if name != "day"]):
            partition = user_ranges(LookupTable.cached(users), batch[USER].to_numpy(), ranges)
            day = batch["timestamp"].to_numpy() // DAY_MILLISECONDS
            yield partition, batch_of(_VIEWS, {"day": day}, batch)

    def write(partition: int, rows: Mapping[str, pa.Table]) -> dict[str, Piece]:
        shown = pa.concat_tables([rows[split] for split in clicks.splits])
        opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)

        def computed() -> Iterator[tuple[str, pa.RecordBatch]]:
            for batch in query(WITH_TRAFFIC, shown=shown, views=rows["views"]):
                kept = {CLICKED: batch[CLICKED], DISPLAY: batch[DISPLAY], CANDIDATE: batch["ad_id"]}
                features = batch_of(schema, {**kept, POSITION: batch[POSITION]}, raw_features(opened, batch))
                for number, split in enumerate(clicks.splits):
                    yield split, features.filter(pc.equal(batch[_SPLIT], number))

        return write_files(folder, partition, dict.fromkeys(clicks.splits, schema), computed())

    sources = {
        split: Source(files.segments(), _ROWS, partial(read_rows, split=number))
        for number, (split, files) in enumerate(clicks.splits.items())
    }
    sources["views"] = Source(views.segments(), _VIEWS, read_page_views)
    return SplitRows(splits=files_of(shuffle_rows(workspace, "features", sources, ranges, write), clicks.splits))
