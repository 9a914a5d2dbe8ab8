"""Raw features of all rows, computed by the code that serves them, a file of rows after the other."""

from pathlib import Path

import pyarrow as pa

from rayrec.config import Config
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import counted_rows, run_tasks
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.raw import features_of, raw_features
from rayrec.sources.outbrain.features.rows import FOLD, ROW_SCHEMA
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED, DISPLAY
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, new_rows
from rayrec.sources.outbrain.preprocessing.users.traffic import TRAFFIC_SOURCE
from rayrec.sources.outbrain.statistics import Constants, Statistics

CANDIDATE, LEAK, POSITION = "candidate", "leak", "position"
"""Columns beside the features; the last is the row's place in its split where files have another order."""
LABEL_FIELDS = (
    pa.field(CLICKED, pa.float32(), False),
    pa.field(DISPLAY, pa.int64(), False),
    pa.field(CANDIDATE, pa.int64(), False),
)


class FeatureRows(Config):
    """Raw features by split."""

    splits: dict[str, RowFiles]


ORDER_FIELDS = (pa.field(LEAK, pa.float32(), False), pa.field(POSITION, pa.int64(), False))
"""Besides, where rows are in the order of users."""


def raw_schema(constants: Constants, others: tuple[pa.Field, ...]) -> pa.Schema:
    """Of files of raw features: `others`, then the features."""
    features = [pa.field(d.name, d.raw_type) for d in features_of(constants)]
    return pa.schema([*others, *features])


def dictionaries(schema: pa.Schema) -> list[str]:
    """Columns whose values repeat."""
    return [field.name for field in schema if not pa.types.is_floating(field.type) and field.name != POSITION]


def write_in_display_order(
    workspace: Workspace, splits: dict[str, RowFiles], statistics: Statistics, folder: Path
) -> FeatureRows:
    """Raw features of rows in the order of displays, a file a segment."""
    items = [(split, segment) for split, files in splits.items() for segment in files.segments()]
    schema = raw_schema(statistics.constants, LABEL_FIELDS)
    with counted_rows(workspace.spark, workspace.progress, "features", sum(f.rows for f in splits.values())) as counter:

        def run(item: tuple[str, Segment]) -> tuple[str, Path, int]:
            split, segment = item
            path = folder / f"{split}-{segment.index:06d}.parquet"
            opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)
            with new_rows(path, schema, dictionaries(schema)) as writer:
                for batch in read_piece(segment.piece, _COLUMNS, ()):
                    writer.write_batch(with_labels(batch, raw_features(opened, batch), schema))
                    counter.add(batch.num_rows)
            return split, path, segment.piece.rows

        found = run_tasks(workspace.spark, items, run)
    return FeatureRows(splits={s: RowFiles.of((p, n) for split, p, n in found if split == s) for s in splits})


_COLUMNS = (DISPLAY, CLICKED, FOLD, *(name for name in ROW_SCHEMA.names if name != TRAFFIC_SOURCE))


def with_labels(rows: pa.RecordBatch, features: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Features with the columns beside them."""
    named = {CANDIDATE: rows["ad_id"], **{n: rows[n] for n in schema.names if n in rows.schema.names}}
    named.update(zip(features.schema.names, features.columns, strict=True))
    return pa.RecordBatch.from_arrays([named[field.name] for field in schema], schema=schema)
