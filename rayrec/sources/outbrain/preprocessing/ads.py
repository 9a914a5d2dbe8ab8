"""The table of ads."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from rayrec.features.keyed_table import HASH, hash_key
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import counted_rows, frame_of_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables
from rayrec.sources.outbrain.statistics import AD_SCHEMA


def write_ads(workspace: Workspace, tables: ParsedTables, folder: Path) -> None:
    """Write the table of ads."""
    from pyspark.sql import functions as f

    files = tables.of(Table.PROMOTED_CONTENT)
    key, *columns = AD_SCHEMA.names[1:]
    with counted_rows(workspace.spark, workspace.progress, "ads", files.rows) as counter:

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, (key, *columns), ()):
                hashes = pa.array(hash_key(batch[key].to_numpy()))
                yield pa.RecordBatch.from_arrays([hashes, *batch.columns], names=AD_SCHEMA.names)
            counter.add(segment.piece.rows)

        schema = ", ".join(f"{name} long" for name in AD_SCHEMA.names)
        listed = frame_of_tasks(workspace.spark, files.segments(), read, schema)
        # Of lines with the same ad the smallest, null before any value.
        kept = listed.groupBy(HASH, key).agg(f.min(f.struct(*columns)).alias("line")).select(HASH, key, "line.*")
        write_table(kept, files.rows, (key,), folder, AD_SCHEMA)
