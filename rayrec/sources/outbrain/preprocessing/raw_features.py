"""Raw features of all rows, computed by the code that serves them."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.hashes import hash_key
from rayrec.features.lookup_table import UNKNOWN, LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.keyed_rows import KeyedRows, shuffle_rows
from rayrec.preprocessing.segments import (
    Piece,
    Segment,
    batch_of,
    joined,
    make_segments,
    numbered,
    read_segment,
    write_pieces,
)
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.feature_sets import features_of, raw_features
from rayrec.sources.outbrain.outbrain_tables import DAY_MILLISECONDS
from rayrec.sources.outbrain.preprocessing.clicks import CLICK_SCHEMA, CLICKED, DISPLAY, POSITION
from rayrec.sources.outbrain.preprocessing.users import TRAFFIC, USER, read_views
from rayrec.sources.outbrain.statistics import Statistics

CANDIDATE = "candidate"
LABEL_FIELDS = (
    pa.field(CLICKED, pa.float32(), False),
    pa.field(DISPLAY, pa.int64(), False),
    pa.field(CANDIDATE, pa.int64(), False),
)
"""Columns beside the features."""
POSITION_FIELD = pa.field(POSITION, pa.int64(), False)
"""The position of a row in its split, for files in another order."""
_SPLIT, _TRAFFIC = "split", "traffic_source"
_ROWS = pa.schema(
    [(HASH, pa.int64()), (USER, pa.int64()), (_SPLIT, pa.int8()), POSITION_FIELD, ("day", pa.int64()), *CLICK_SCHEMA]
)
_VIEWS = pa.schema(
    [
        (HASH, pa.int64()),
        (USER, pa.int64()),
        ("document_id", pa.int64()),
        ("day", pa.int64()),
        ("platform", pa.int8()),
        ("geo_location", pa.string()),
        ("timestamp", pa.int64()),
        (_TRAFFIC, pa.int8()),
    ]
)
_SAME_PAGE = " and ".join(f"shown.{name} = {{view}}.{name}" for name in _VIEWS.names[1:6])
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
    workspace: Workspace,
    splits: Mapping[str, Sequence[Piece]],
    views: Sequence[Piece],
    users: Path,
    statistics: Statistics,
    folder: Path,
) -> dict[str, list[Piece]]:
    """Write the features of rows in the order of users, whose profiles are so read from disk one after the other.

    `views`: page views that traffic sources are found in; `users`: folder of the table of users, if they have profiles.
    """
    definitions = features_of(statistics.constants.feature_set)
    schema = pa.schema([*LABEL_FIELDS, POSITION_FIELD, *(pa.field(d.name, d.raw_type) for d in definitions)])

    def read_rows(segment: Segment, split: int) -> Iterator[pa.RecordBatch]:
        table = LookupTable.cached(users)
        for position, batch in numbered(segment, read_segment(segment, CLICK_SCHEMA.names)):
            user = table.find_texts(batch["uuid"])
            has_user = user != UNKNOWN
            columns = {
                # Rows without a user are spread.
                HASH: np.where(has_user, table.numbers(HASH, user).values, hash_key(position)),
                USER: pa.array(user, mask=~has_user),
                _SPLIT: np.full(len(batch), split),
                POSITION: position,
                "day": batch["timestamp"].fill_null(0).to_numpy() // DAY_MILLISECONDS,
            }
            yield batch_of(_ROWS, columns, batch)

    def read_page_views(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_views(segment, users, TRAFFIC, _VIEWS):
            yield batch_of(_VIEWS, {"day": batch["timestamp"].to_numpy() // DAY_MILLISECONDS}, batch)

    def write(partition: int, rows: Mapping[str, pa.Table]) -> dict[str, list[Piece]]:
        shown = pa.concat_tables([rows[split] for split in splits])
        opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)

        def computed() -> Iterator[tuple[str, pa.RecordBatch]]:
            for batch in query(WITH_TRAFFIC, shown=shown, views=rows["views"]):
                kept = {CLICKED: batch[CLICKED], DISPLAY: batch[DISPLAY], CANDIDATE: batch["ad_id"]}
                features = batch_of(schema, {**kept, POSITION: batch[POSITION]}, raw_features(opened, batch))
                for number, split in enumerate(splits):
                    yield split, features.filter(pc.equal(batch[_SPLIT], number))

        return write_pieces({s: (folder / f"{s}-{partition:06d}.parquet", schema) for s in splits}, computed())

    sources = {
        split: KeyedRows(make_segments(pieces), _ROWS, partial(read_rows, split=number))
        for number, (split, pieces) in enumerate(splits.items())
    }
    sources["views"] = KeyedRows(make_segments(views), _VIEWS, read_page_views)
    return joined(shuffle_rows(workspace, "features", sources, write))
