"""The values of aspects that documents have: each once a document, and each with the documents that have it."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rayrec.config import Config
from rayrec.features.keyed_table import HASH, KeyedTable, hash_key
from rayrec.features.string_hash import hash_strings
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import rows_by_value
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.vocabularies.hash_ranges import in_hash_ranges, range_count, write_sorted
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, new_rows
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables
from rayrec.sources.outbrain.statistics import ASPECTS, Aspect

_TABLES: dict[Aspect, tuple[Table, str]] = {
    "category": (Table.DOCUMENTS_CATEGORIES, "category_id"),
    "topic": (Table.DOCUMENTS_TOPICS, "topic_id"),
    "entity": (Table.DOCUMENTS_ENTITIES, "entity_id"),
}
DOCUMENT_VALUE_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),  # of the document
        pa.field("document", pa.int64(), False),
        pa.field("aspect", pa.int8(), False),  # its place in ASPECTS
        pa.field("value", pa.int64(), False),
        pa.field("confidence", pa.float64(), False),
    ]
)
VALUE_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("value", pa.int64(), False),
        pa.field("documents", pa.int64(), False),
    ]
)
"""Of the tables of an aspect's values: in how many documents each is."""


class DocumentValues(Config):
    """The values of all aspects: a table of each aspect in a folder of its name, and one row a document and value
    (`DOCUMENT_VALUE_SCHEMA`)."""

    rows: RowFiles
    values: dict[str, int]
    """Distinct values by aspect."""


def write_values(workspace: Workspace, tables: ParsedTables, folder: Path) -> DocumentValues:
    """Each value of a document once, with its highest confidence; and each value, with what it is found in."""
    from pyspark.sql import functions as f

    spark = workspace.spark
    segments = [(a, segment) for a in range(len(ASPECTS)) for segment in tables.of(_TABLES[ASPECTS[a]][0]).segments()]
    rows = sum(segment.piece.rows for _, segment in segments)
    ranges = range_count(spark, rows)
    with counted_rows(spark, workspace.progress, "values of documents", rows) as counter:

        def read(item: tuple[int, Segment]) -> Iterator[pa.RecordBatch]:
            yield from _read_values(*item)
            counter.add(item[1].piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_values(batches, folder / "rows")

        listed = frame_of_tasks(spark, segments, read, "hash long, aspect byte, document long, value long, c double")
        once = listed.groupBy("hash", "aspect", "document", "value").agg(f.max("c").alias("confidence"))
        ordered = in_hash_ranges(once, ranges).sortWithinPartitions(HASH, "document", "aspect", "value")
        files = sorted(collect_rows(ordered.mapInArrow(write, "path string, rows long")))
        found = RowFiles.of((Path(path), rows) for path, rows in files)

        def reread(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, ("aspect", "value"), ()):
                hashes = pa.array(hash_key(batch["value"].to_numpy()))
                yield pa.RecordBatch.from_arrays([hashes, *batch.columns], names=["hash", "aspect", "value"])

        def write_table(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_value_tables(batches, folder)

        values = frame_of_tasks(spark, found.segments(), reread, "hash long, aspect byte, value long")
        counted = values.groupBy("aspect", "hash", "value").agg(f.count("*").alias("documents"))
        # As many as the data has values, not rows: one task sorts them.
        whole = counted.repartition(1).sortWithinPartitions("aspect", "hash", "value")
        sizes = dict(collect_rows(whole.mapInArrow(write_table, "aspect byte, values long")))
    return DocumentValues(rows=found, values={aspect: sizes.get(number, 0) for number, aspect in enumerate(ASPECTS)})


def value_table(folder: Path, aspect: Aspect) -> KeyedTable:
    """The values of an aspect (`VALUE_SCHEMA`), of what `write_values` left in `folder`."""
    return KeyedTable.cached(folder / aspect)


def _read_values(aspect: int, segment: Segment) -> Iterator[pa.RecordBatch]:
    column = _TABLES[ASPECTS[aspect]][1]
    for batch in read_piece(segment.piece, ("document_id", column, "confidence_level"), ()):
        document, value, confidence = batch.columns
        if pa.types.is_string(value.type):
            value = pa.array(hash_strings(value.cast(pa.large_string())).view(np.int64))
        hashes = pa.array(hash_key(document.to_numpy()))
        aspects = pa.array(np.full(len(batch), aspect, np.int8))
        yield pa.RecordBatch.from_arrays(
            [hashes, aspects, document, value, confidence], names=["hash", "aspect", "document", "value", "c"]
        )


def _write_values(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    path, rows = folder / f"{partition_number():06d}.parquet", 0
    with new_rows(path, DOCUMENT_VALUE_SCHEMA, ("aspect",)) as writer:
        for batch in batches:
            writer.write_batch(batch.select(DOCUMENT_VALUE_SCHEMA.names).cast(DOCUMENT_VALUE_SCHEMA))
            rows += batch.num_rows
    yield pa.RecordBatch.from_pydict({"path": [str(path)], "rows": [rows]})


def _write_value_tables(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write values sorted by aspect, a table an aspect; gives their numbers."""
    for aspect, run in rows_by_value(batches, "aspect"):
        count = write_sorted(run, folder / ASPECTS[aspect], VALUE_SCHEMA)
        yield pa.RecordBatch.from_arrays([pa.array([aspect], pa.int8()), pa.array([count])], names=["aspect", "values"])
