"""Raw features of all rows, computed by the code that serves them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.runners.spark_runner import in_hash_ranges
from rayrec.preprocessing.scratch_rows import batch_of, frame_of_rows, new_rows
from rayrec.preprocessing.segments import Piece, Segment, read_piece
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.vocabularies.hash_ranges import range_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.ad_rows import FOLD, ROW_SCHEMA
from rayrec.sources.outbrain.features.feature_sets import features_of, raw_features
from rayrec.sources.outbrain.preprocessing.clicks import CLICK_SCHEMA, CLICKED, DISPLAY
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, SplitRows, write_by_split
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
_KEPT = (CLICKED, DISPLAY, POSITION)
_TRAFFIC = "traffic_source"
_SPLIT = "split"
_BY_USER = pa.schema([(HASH, pa.int64()), (_SPLIT, pa.int8()), POSITION_FIELD, *CLICK_SCHEMA, (_TRAFFIC, pa.int8())])


def _schema(feature_set: str, others: tuple[pa.Field, ...]) -> pa.Schema:
    return pa.schema([*others, *(pa.field(d.name, d.raw_type) for d in features_of(feature_set))])


def _dictionaries(schema: pa.Schema) -> list[str]:
    """Return the columns whose values repeat."""
    return [field.name for field in schema if not pa.types.is_floating(field.type) and field.name != POSITION]


def _with_features(rows: pa.RecordBatch, statistics: Statistics, schema: pa.Schema) -> pa.RecordBatch:
    kept = {name: rows[name] for name in _KEPT if name in schema.names}
    return batch_of(schema, {CANDIDATE: rows["ad_id"], **kept}, raw_features(statistics, rows))


def write_in_display_order(workspace: Workspace, clicks: SplitRows, statistics: Statistics, folder: Path) -> SplitRows:
    """Write the features of rows in the order of displays, a file for each segment."""
    items = [(split, segment) for split, files in clicks.splits.items() for segment in files.segments()]
    schema = _schema(statistics.constants.feature_set, LABEL_FIELDS)
    columns = (DISPLAY, CLICKED, FOLD, *(name for name in ROW_SCHEMA.names if name != _TRAFFIC))
    with counted_rows(workspace.runner, workspace.progress, "features", clicks.rows) as counter:

        def run(item: tuple[str, Segment]) -> tuple[str, Piece]:
            split, segment = item
            path = folder / f"{split}-{segment.index:06d}.parquet"
            opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)
            with new_rows(path, schema, _dictionaries(schema)) as writer:
                for batch in read_piece(segment.piece, columns, ()):
                    writer.write_batch(_with_features(batch, opened, schema))
                    counter.add(batch.num_rows)
            return split, Piece(path, 0, segment.piece.rows)

        found = workspace.runner.run(items, run)
    pieces = {name: tuple(piece for split, piece in found if split == name) for name in clicks.splits}
    splits = {name: RowFiles(pieces=of_split) for name, of_split in pieces.items()}
    return SplitRows(splits=splits, clicked=clicks.clicked)


def write_in_user_order(
    workspace: Workspace, clicks: SplitRows, statistics: Statistics, traffic: Path, folder: Path
) -> SplitRows:
    """Write the features of rows in the order of users, whose profiles are so read from disk one after the other.

    `traffic`: folder of the table of traffic sources by display.
    """
    names = list(clicks.splits)
    sources = [
        (files.segments(), partial(_read_with_user, split=number, traffic=traffic))
        for number, files in enumerate(clicks.splits.values())
    ]
    schema = _schema(statistics.constants.feature_set, (*LABEL_FIELDS, POSITION_FIELD))

    def compute(batch: pa.RecordBatch) -> tuple[NDArray[np.integer], pa.RecordBatch]:
        opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)
        return batch[_SPLIT].to_numpy(), _with_features(batch, opened, schema)

    with frame_of_rows(workspace, "features", sources, _BY_USER) as rows:
        partitioned = in_hash_ranges(rows, range_count(workspace.runner, clicks.rows))
        ordered = partitioned.sortWithinPartitions(HASH, _SPLIT, POSITION)
        return write_by_split(ordered, folder, names, schema, _dictionaries(schema), CLICKED, compute)


def _read_with_user(segment: Segment, split: int, traffic: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the hash of their user, or if they have none, one that spreads them; and with traffic
    sources.
    """
    first, table = segment.first, LookupTable.cached(traffic)
    for batch in read_piece(segment.piece, CLICK_SCHEMA.names, ()):
        position = np.arange(first, first + len(batch))
        first += len(batch)
        has_user = batch["uuid"].is_valid().to_numpy(zero_copy_only=False)
        source = table.numbers("source", table.find({DISPLAY: batch[DISPLAY].to_numpy()}))
        columns = {
            HASH: np.where(has_user, hash_texts(batch["uuid"]), hash_key(position)),
            _SPLIT: np.full(len(batch), split, np.int8),
            POSITION: position,
            _TRAFFIC: pa.array(source.values, pa.int8(), mask=~source.valid),
        }
        yield batch_of(_BY_USER, columns, batch)
