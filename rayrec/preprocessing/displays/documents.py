"""Documents and ads: the tables that describe them -> the tables that features look them up in."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.features.keyed_table import HASH, KeyedTable, hash_key, write_file
from rayrec.features.string_hash import hash_strings
from rayrec.preprocessing.displays.row_files import RowFiles, new_rows
from rayrec.preprocessing.displays.tables import ParsedTables
from rayrec.preprocessing.hash_ranges import in_hash_ranges, range_count, write_sorted
from rayrec.preprocessing.runs import run_starts, whole_runs
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks, partition_number
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.statistics import AD_SCHEMA, ASPECTS, DOCUMENT_SCHEMA, Aspect
from rayrec.sources.outbrain.weights import document_weights

LISTED: dict[Aspect, int] = {"category": 3, "topic": 3, "entity": 6}
"""The longest list of a feature."""
_TABLES: dict[Aspect, tuple[Table, str]] = {
    "category": (Table.DOCUMENTS_CATEGORIES, "category_id"),
    "topic": (Table.DOCUMENTS_TOPICS, "topic_id"),
    "entity": (Table.DOCUMENTS_ENTITIES, "entity_id"),
}
_BATCH_ROWS = 131_072
VALUE_SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.int64(), False),
        pa.field("value", pa.int64(), False),
        pa.field("documents", pa.int64(), False),
        pa.field("lines", pa.int64(), False),
    ]
)
"""Of the tables of an aspect's values: in how many documents each is, and in how many lines."""


class DocumentValues(Config):
    """The values of all aspects: a table of each aspect in a folder of its name, and one row a document and value."""

    rows: RowFiles
    values: dict[str, int]
    """Distinct values by aspect."""


class DocumentInfo(Config):
    """What documents_meta holds, one row a document that has a source."""

    rows: RowFiles
    largest_publisher: int
    sources_without_publisher: tuple[int, ...]
    """Ascending."""

    @property
    def documents(self) -> int:
        return self.rows.rows


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
        once = listed.groupBy("hash", "aspect", "document", "value").agg(
            f.max("c").alias("confidence"), f.count("*").alias("lines")
        )
        ordered = in_hash_ranges(once, ranges).sortWithinPartitions(HASH, "document", "aspect", "value")
        files = sorted(collect_rows(ordered.mapInArrow(write, "path string, rows long")))
        found = RowFiles.of((Path(path), rows) for path, rows in files)

        def reread(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, ("aspect", "value", "lines"), ()):
                hashes = pa.array(hash_key(batch["value"].to_numpy()))
                yield pa.RecordBatch.from_arrays([hashes, *batch.columns], names=["hash", "aspect", "value", "lines"])

        def write_table(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from _write_value_tables(batches, folder)

        values = frame_of_tasks(spark, found.segments(), reread, "hash long, aspect byte, value long, lines long")
        counted = values.groupBy("aspect", "hash", "value").agg(
            f.count("*").alias("documents"), f.sum("lines").alias("lines")
        )
        # As many as the data has values, not rows: one task sorts them.
        whole = counted.repartition(1).sortWithinPartitions("aspect", "hash", "value")
        sizes = dict(collect_rows(whole.mapInArrow(write_table, "aspect byte, values long")))
    return DocumentValues(rows=found, values={aspect: sizes.get(number, 0) for number, aspect in enumerate(ASPECTS)})


def value_table(folder: Path, aspect: Aspect) -> KeyedTable:
    """The values of an aspect (`VALUE_SCHEMA`), of what `write_values` left in `folder`."""
    return KeyedTable.cached(folder / aspect)


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
        found = collect_rows(ordered.mapInArrow(write, "path string, rows long, largest long, lacking array<long>"))
    return DocumentInfo(
        rows=RowFiles.of((Path(path), rows) for path, rows, _, _ in sorted(found)),
        largest_publisher=max((largest for _, _, largest, _ in found), default=0),
        sources_without_publisher=tuple(sorted({source for *_, lacking in found for source in lacking})),
    )


_META = ("document_id", "source_id", "publisher_id", "publish_time")


def write_documents(
    workspace: Workspace, values: DocumentValues, values_in: Path, infos: DocumentInfo, original: bool, folder: Path
) -> None:
    """Write the table of documents: all that documents_meta or the table of an aspect names.

    `original`: weights as the original of the `full` set has them.
    """
    spark = workspace.spark
    segments = [*((segment, True) for segment in infos.rows.segments()),
                *((segment, False) for segment in values.rows.segments())]  # fmt: skip
    rows = values.rows.rows + infos.rows.rows
    with counted_rows(spark, workspace.progress, "documents", rows) as counter:

        def read(item: tuple[Segment, bool]) -> Iterator[pa.RecordBatch]:
            segment, is_info = item
            columns = [n for n in _LONG.names if n in (_INFO_COLUMNS if is_info else _VALUE_COLUMNS)]
            for batch in read_piece(segment.piece, columns, ()):
                yield _as_long(batch)
            counter.add(segment.piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            def documents() -> Iterator[pa.RecordBatch]:
                for whole in whole_runs(batches, HASH, _BATCH_ROWS):
                    yield _documents(whole, infos, values_in, original)

            yield _counted(write_file(folder, DOCUMENT_SCHEMA, documents()))

        listed = frame_of_tasks(
            spark,
            segments,
            read,
            "hash long, document long, aspect byte, value long, confidence double, source_id long, "
            "publisher_id long, publish_time long",
        )
        ordered = in_hash_ranges(listed, range_count(spark, rows)).sortWithinPartitions(
            HASH, "document", "aspect", "value"
        )
        collect_rows(ordered.mapInArrow(write, "rows long"))


def write_ads(workspace: Workspace, tables: ParsedTables, folder: Path) -> None:
    """Write the table of ads."""
    from pyspark.sql import functions as f

    spark, segments = workspace.spark, tables.of(Table.PROMOTED_CONTENT).segments()
    rows = sum(segment.piece.rows for segment in segments)
    columns = AD_SCHEMA.names[1:]
    with counted_rows(spark, workspace.progress, "ads", rows) as counter:

        def read(segment: Segment) -> Iterator[pa.RecordBatch]:
            for batch in read_piece(segment.piece, columns, ()):
                hashes = pa.array(hash_key(batch["ad_id"].to_numpy()))
                yield pa.RecordBatch.from_arrays([hashes, *batch.columns], names=["hash", *columns])
            counter.add(segment.piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield _counted(write_sorted(batches, folder, AD_SCHEMA))

        listed = frame_of_tasks(spark, segments, read, ", ".join(f"{name} long" for name in AD_SCHEMA.names))
        kept = listed.groupBy("hash", "ad_id").agg(f.min(f.struct(*columns[1:])).alias("line"))
        dealt = in_hash_ranges(kept.select("hash", "ad_id", "line.*"), range_count(spark, rows))
        ordered = dealt.sortWithinPartitions(HASH, "ad_id")
        collect_rows(ordered.mapInArrow(write, "rows long"))


def _counted(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], names=["rows"])


_LONG = pa.schema(
    [
        ("hash", pa.int64()),
        ("document", pa.int64()),
        ("aspect", pa.int8()),  # _INFO for what documents_meta says
        ("value", pa.int64()),
        ("confidence", pa.float64()),
        ("source_id", pa.int64()),
        ("publisher_id", pa.int64()),
        ("publish_time", pa.int64()),
    ]
)
_INFO = -1
_INFO_COLUMNS = ("hash", "document", "source_id", "publisher_id", "publish_time")
_VALUE_COLUMNS = ("hash", "document", "aspect", "value", "confidence")
_VALUE_ROWS = pa.schema([_LONG.field(name) for name in _VALUE_COLUMNS] + [("lines", pa.int64())])
_INFO_ROWS = pa.schema([_LONG.field(name) for name in _INFO_COLUMNS])


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
    path, rows = _partition_path(folder), 0
    with new_rows(path, _VALUE_ROWS, ("aspect", "lines")) as writer:
        for batch in batches:
            writer.write_batch(batch.select(_VALUE_ROWS.names).cast(_VALUE_ROWS))
            rows += batch.num_rows
    yield pa.RecordBatch.from_pydict({"path": [str(path)], "rows": [rows]})


def _write_value_tables(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    """Write values sorted by aspect, a table an aspect; gives their numbers."""
    from rayrec.preprocessing.runs import runs

    for aspect, run in runs(batches, "aspect"):
        count = write_sorted(run, folder / ASPECTS[aspect], VALUE_SCHEMA)
        yield pa.RecordBatch.from_arrays([pa.array([aspect], pa.int8()), pa.array([count])], names=["aspect", "values"])


def _write_infos(batches: Iterator[pa.RecordBatch], folder: Path) -> Iterator[pa.RecordBatch]:
    path, rows, largest = _partition_path(folder), 0, 0
    lacking: set[int] = set()
    with new_rows(path, _INFO_ROWS) as writer:
        for batch in batches:
            writer.write_batch(batch.rename_columns(_INFO_ROWS.names).cast(_INFO_ROWS))
            rows += batch.num_rows
            publisher = batch["publisher_id"]
            largest = max(largest, pa.compute.max(publisher).as_py() or 0)
            lacking.update(batch["source_id"].filter(publisher.is_null()).unique().to_pylist())
    columns = [
        pa.array([str(path)]),
        pa.array([rows]),
        pa.array([largest]),
        pa.array([sorted(lacking)], pa.list_(pa.int64())),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=["path", "rows", "largest", "lacking"])


def _partition_path(folder: Path) -> Path:
    return folder / f"{partition_number():06d}.parquet"


def _as_long(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with all columns of `_LONG`."""
    names = batch.schema.names
    columns = [batch[f.name] if f.name in names else pa.nulls(len(batch), f.type) for f in _LONG]
    if "aspect" not in names:
        columns[_LONG.get_field_index("aspect")] = pa.array(np.full(len(batch), _INFO, np.int8))
    return pa.RecordBatch.from_arrays(columns, schema=_LONG)


def _documents(rows: pa.RecordBatch, infos: DocumentInfo, values_in: Path, original: bool) -> pa.RecordBatch:
    """Whole documents of `_LONG` rows, sorted, as rows of the table."""
    starts = run_starts(rows["document"])
    count = len(starts)
    owner = np.repeat(np.arange(count), np.diff(np.append(starts, rows.num_rows)))
    aspect = rows["aspect"].to_numpy()
    first = rows.take(pa.array(starts))  # what documents_meta says sorts first
    columns = [first[HASH], first["document"], first["source_id"], _publishers(first, infos), first["publish_time"]]
    lists = []
    for number, name in enumerate(ASPECTS):
        chosen = np.flatnonzero(aspect == number)
        value, confidence = (rows[c].take(pa.array(chosen)).to_numpy() for c in ("value", "confidence"))
        table = value_table(values_in, name)
        frequency = table.numbers("documents", table.find({"value": value})).values
        weight = document_weights(confidence, frequency, infos.documents, original=original)
        fields = DOCUMENT_SCHEMA.field(name).type.value_type
        elements = pa.StructArray.from_arrays([pa.array(a) for a in (value, confidence, weight)], fields=list(fields))
        columns.append(_lists(owner[chosen], elements, count))
        lists.append(_first_values(owner[chosen], value, confidence, LISTED[name], count))
    return pa.RecordBatch.from_arrays([*columns, *lists], schema=DOCUMENT_SCHEMA)


def _publishers(documents: pa.RecordBatch, infos: DocumentInfo) -> pa.Array:
    """Publishers; of a source without one, that which numbers on from the largest."""
    lacking = pa.array(infos.sources_without_publisher, pa.int64())
    number = pa.compute.index_in(documents["source_id"], value_set=lacking, skip_nulls=True)
    return pa.compute.coalesce(
        documents["publisher_id"], pa.compute.add(number.cast(pa.int64()), infos.largest_publisher + 1)
    )


def _first_values(
    owner: NDArray[np.int64], value: NDArray[np.int64], confidence: NDArray[np.float64], length: int, count: int
) -> pa.Array:
    """The values of highest confidence, equal ones ascending."""
    order = np.lexsort((value, -confidence, owner))
    sizes = np.bincount(owner, minlength=count)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = order[place < length]
    return _lists(owner[kept], pa.array(value[kept]), count)


def _lists(owner: NDArray[np.int64], elements: pa.Array, count: int) -> pa.Array:
    offsets = np.searchsorted(owner, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements)
