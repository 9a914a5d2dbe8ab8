"""Documents' sources, publishers and times of publication, one row a document."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rayrec.config import Config
from rayrec.features.keyed_table import HASH, hash_key
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.vocabularies.hash_ranges import in_hash_ranges, range_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, new_rows
from rayrec.sources.outbrain.preprocessing.tables import ParsedTables

_META = ("document_id", "source_id", "publisher_id", "publish_time")
DOCUMENT_INFO_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("document", pa.int64(), False),
        pa.field("source_id", pa.int64(), False),
        pa.field("publisher_id", pa.int64()),
        pa.field("publish_time", pa.int64()),
    ]
)


class DocumentInfo(Config):
    """What documents_meta holds, one row (`DOCUMENT_INFO_SCHEMA`) a document that has a source."""

    rows: RowFiles
    largest_publisher: int
    sources_without_publisher: tuple[int, ...]
    """Of which no document has one, ascending."""

    @property
    def documents(self) -> int:
        return self.rows.rows


def write_infos(workspace: Workspace, tables: ParsedTables, folder: Path) -> DocumentInfo:
    """What documents_meta says, once a document, without those that have no source."""
    from pyspark.sql import functions as f

    spark, segments = workspace.spark, tables.of(Table.DOCUMENTS_META).segments()
    rows = sum(segment.piece.rows for segment in segments)
    with counted_rows(spark, workspace.progress, "documents' sources", rows) as counter:

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, _META, ()):
                hashes = pa.array(hash_key(batch["document_id"].to_numpy()))
                yield pa.RecordBatch.from_arrays([hashes, *batch.columns], names=["hash", *_META])
            counter.add(segment.piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_infos(batches, folder)

        listed = frame_of_tasks(
            spark, segments, read, "hash long, document_id long, source_id long, publisher_id long, publish_time long"
        )
        # Of lines with the same document the smallest, null before any value.
        kept = listed.groupBy("hash", "document_id").agg(f.min(f.struct(*_META[1:])).alias("line"))
        kept = kept.select("hash", "document_id", "line.*").filter("source_id is not null")
        ordered = in_hash_ranges(kept, range_count(spark, rows)).sortWithinPartitions(HASH, "document_id")
        columns = "path string, rows long, largest long, published array<long>, unpublished array<long>"
        found = collect_rows(ordered.mapInArrow(write, columns))
    # As many as there are sources, not documents.
    published, unpublished = ({s for part in found for s in part[place]} for place in (3, 4))
    return DocumentInfo(
        rows=RowFiles.of((Path(path), rows) for path, rows, *_ in sorted(found)),
        largest_publisher=max((largest for _, _, largest, *_ in found), default=0),
        sources_without_publisher=tuple(sorted(unpublished - published)),
    )


def _write_infos(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    path, rows, largest = folder / f"{partition_number():06d}.parquet", 0, 0
    published: set[int] = set()
    unpublished: set[int] = set()
    with new_rows(path, DOCUMENT_INFO_SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch.rename_columns(DOCUMENT_INFO_SCHEMA.names).cast(DOCUMENT_INFO_SCHEMA))
            rows += batch.num_rows
            publisher, source = batch["publisher_id"], batch["source_id"]
            largest = max(largest, pc.max(publisher).as_py() or 0)
            published.update(source.filter(publisher.is_valid()).unique().to_pylist())
            unpublished.update(source.filter(publisher.is_null()).unique().to_pylist())
    sources = [pa.array([sorted(part)], pa.list_(pa.int64())) for part in (published, unpublished)]
    columns = [pa.array([str(path)]), pa.array([rows]), pa.array([largest]), *sources]
    yield pa.RecordBatch.from_arrays(columns, names=["path", "rows", "largest", "published", "unpublished"])
