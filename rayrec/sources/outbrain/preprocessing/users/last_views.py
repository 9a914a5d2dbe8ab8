"""When users last viewed the ad documents of their rows of `validation`: the leak of the competition."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.keyed_table import HASH, KeyedTable, hash_key
from rayrec.preprocessing.segments import Segment
from rayrec.preprocessing.spark_tasks import counted_rows, frame_of_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.rows import Rows
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles
from rayrec.sources.outbrain.preprocessing.users.page_views import LAST, read_views

LAST_VIEW_SCHEMA = pa.schema([pa.field(name, pa.int64(), False) for name in (HASH, "user", "document_id", "timestamp")])


def write_last_views(workspace: Workspace, views: RowFiles, folder: Path) -> None:
    """Write the table of last page views by user (the number) and document."""
    from pyspark.sql import functions as f

    spark, segments = workspace.spark, views.segments()
    with counted_rows(spark, workspace.progress, "last views of ads' documents", views.rows) as counter:

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_views(segment, LAST, ("user", "document_id", "timestamp")):
                hashes = hash_key(batch["user"].to_numpy(), batch["document_id"].to_numpy())
                yield pa.RecordBatch.from_arrays([pa.array(hashes), *batch.columns], names=LAST_VIEW_SCHEMA.names)
            counter.add(segment.piece.rows)

        seen = frame_of_tasks(spark, segments, read, ", ".join(f"{name} long" for name in LAST_VIEW_SCHEMA.names))
        last = seen.groupBy(HASH, "user", "document_id").agg(f.max("timestamp").alias("timestamp"))
        write_table(last, views.rows, ("user", "document_id"), folder, LAST_VIEW_SCHEMA)


def leaks(rows: Rows, uuid: pa.Array, users: Path, last_views: Path) -> NDArray[np.float32]:
    """(n,) 1 where the user viewed the ad document at the time of the event or after, else 0."""
    user = KeyedTable.cached(users).find_texts("uuid", uuid)
    table = KeyedTable.cached(last_views)
    document = rows.ad_document_id
    # Of an unknown user no number is in the table.
    found = table.find({"user": user, "document_id": document.values}, document.valid & rows.timestamp.valid)
    last = table.numbers("timestamp", found)
    return (last.valid & (last.values >= rows.timestamp.values)).astype(np.float32)
