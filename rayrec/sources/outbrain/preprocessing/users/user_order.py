"""Raw features of all rows in the order of users, whose profiles are then read from disk one after the other."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.features.keyed_table import HASH, hash_key, hash_texts
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.vocabularies.hash_ranges import in_hash_ranges, range_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.raw import raw_features
from rayrec.sources.outbrain.features.rows import FOLD, ROW_SCHEMA, Rows
from rayrec.sources.outbrain.preprocessing.clicks import CLICKED, DISPLAY
from rayrec.sources.outbrain.preprocessing.raw_features import (
    LABEL_FIELDS,
    LEAK,
    ORDER_FIELDS,
    POSITION,
    FeatureRows,
    dictionaries,
    raw_schema,
    with_labels,
)
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, new_rows
from rayrec.sources.outbrain.preprocessing.users.last_views import leaks
from rayrec.sources.outbrain.statistics import Statistics

_SPLIT = "split"
_COLUMNS = (DISPLAY, CLICKED, FOLD, *ROW_SCHEMA.names)
_SHUFFLED = (
    "hash long, split byte, position long, display_id long, clicked float, fold byte, ad_id long, uuid string, "
    "document_id long, timestamp long, platform byte, geo_location string, traffic_source byte"
)


def write_in_user_order(
    workspace: Workspace,
    splits: dict[str, RowFiles],
    statistics: Statistics,
    users: Path,
    last_views: Path,
    folder: Path,
) -> FeatureRows:
    """Raw features of rows in the order of users, whose profiles are then read one after the other; with the leak."""
    spark = workspace.spark
    names = list(splits)
    items = [(number, segment) for number, name in enumerate(names) for segment in splits[name].segments()]
    schema = raw_schema(statistics.constants, (*LABEL_FIELDS, *ORDER_FIELDS))
    total = sum(files.rows for files in splits.values())
    with counted_rows(spark, workspace.progress, "features", total) as counter:

        def read(item: tuple[int, Segment]) -> Iterator[pa.RecordBatch]:
            yield from _read_with_user(*item)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            opened = Statistics.cached(statistics.folder, statistics.rates_by_fold)
            with ExitStack() as stack:
                partition = partition_number()
                paths = [folder / f"{name}-{partition:06d}.parquet" for name in names]
                writers = [stack.enter_context(new_rows(path, schema, dictionaries(schema))) for path in paths]
                rows = [0] * len(names)
                for batch in batches:
                    whole = _with_leak(batch, opened, users, last_views, names.index("validation"), schema)
                    for number, writer in enumerate(writers):
                        part = whole.filter(pc.equal(batch[_SPLIT], number))
                        if part.num_rows:
                            writer.write_batch(part)
                        rows[number] += part.num_rows
                    counter.add(batch.num_rows)
            columns = [pa.array(range(len(names)), pa.int8()), pa.array(map(str, paths), pa.string()), pa.array(rows)]
            yield pa.RecordBatch.from_arrays(columns, names=["split", "path", "rows"])

        dealt = in_hash_ranges(frame_of_tasks(spark, items, read, _SHUFFLED), range_count(spark, total))
        ordered = dealt.sortWithinPartitions(HASH, _SPLIT, POSITION)
        found = sorted(collect_rows(ordered.mapInArrow(write, "split byte, path string, rows long")))
    return FeatureRows(
        splits={s: RowFiles.of((Path(p), n) for split, p, n in found if split == i) for i, s in enumerate(names)}
    )


def _read_with_user(split: int, segment: Segment) -> Iterator[pa.RecordBatch]:
    """Rows with the hash of their user; where there is none, one that spreads them."""
    first = segment.first
    for batch in read_piece(segment.piece, _COLUMNS, ()):
        position = np.arange(first, first + len(batch))
        first += len(batch)
        has_user = batch["uuid"].is_valid().to_numpy(zero_copy_only=False)
        hashes = np.where(has_user, hash_texts(batch["uuid"]), hash_key(position))
        splits = pa.array(np.full(len(batch), split, np.int8))
        yield pa.RecordBatch.from_arrays(
            [pa.array(hashes), splits, pa.array(position), *batch.columns], names=[HASH, _SPLIT, POSITION, *_COLUMNS]
        )


def _with_leak(
    batch: pa.RecordBatch, statistics: Statistics, users: Path, last_views: Path, validation: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Features with the columns beside them; the leak is that of `validation` alone."""
    leak = leaks(Rows(statistics, batch), batch["uuid"], users, last_views)
    leak[batch[_SPLIT].to_numpy() != validation] = 0.0
    return with_labels(batch.append_column(LEAK, pa.array(leak)), raw_features(statistics, batch), schema)
