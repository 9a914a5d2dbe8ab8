"""The tables of documents and ads: what several raw tables say of each."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.features.hashes import hash_key, hash_strings
from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import HASH, write_file
from rayrec.preprocessing.runners.spark_runner import SparkRows, collect_rows, in_hash_ranges
from rayrec.preprocessing.scratch_rows import Read, Write, batch_of, frame_of_rows, write_partitions
from rayrec.preprocessing.segments import Piece, Segment, count_rows, read_piece
from rayrec.preprocessing.sorted_rows import group_starts, rows_by_value, whole_groups
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.vocabularies.hash_ranges import range_count, write_sorted, write_table
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.preprocessing.parsed_tables import ParsedTables
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles, list_column
from rayrec.sources.outbrain.statistics import AD_SCHEMA, ASPECTS, DOCUMENT_SCHEMA, PLURALS, Aspect
from rayrec.store.paths import KeptPath

LISTED: dict[Aspect, int] = {"category": 3, "topic": 3, "entity": 6}
"""The longest list of a feature."""
_META = ("source_id", "publisher_id", "publish_time")
_META_ROW = -1
"""The `aspect` of a document's line of documents_meta."""
_ROWS = pa.schema(
    [
        (HASH, pa.int64()),
        ("document_id", pa.int64()),
        ("aspect", pa.int8()),  # its position in ASPECTS
        ("value", pa.int64()),
        ("confidence", pa.float64()),
        *((name, pa.int64()) for name in _META),  # null but in rows of _META_ROW
    ]
)
VALUE_SCHEMA = pa.schema([pa.field(name, pa.int64(), False) for name in (HASH, "value", "documents")])
"""The table of an aspect's values: in how many documents each is."""
_COUNTED = pa.schema([(HASH, pa.int64()), ("aspect", pa.int8()), ("value", pa.int64())])
_BATCH_ROWS = 131_072


class DocumentRows(Config):
    """The lines of all tables of documents, without repetitions, by document; and a table of each aspect's values."""

    folder: KeptPath
    """Holds a table (`VALUE_SCHEMA`) for each aspect."""
    rows: RowFiles
    """Rows of `_ROWS`, sorted; no document is in two files."""
    documents: int
    """Number of documents with a source."""
    values: dict[str, int]
    """Number of distinct values by aspect."""
    largest_publisher: int
    sources_without_publisher: tuple[int, ...]
    """Sources none of whose documents has a publisher, ascending."""


def write_document_rows(workspace: Workspace, tables: ParsedTables, folder: Path) -> DocumentRows:
    """Bring together what the tables say of each document, and count the documents of each value."""
    from pyspark.sql import functions as f

    sources: list[tuple[list[Segment], Read]] = [(tables.of(OutbrainTable.DOCUMENTS_META).segments(), _read_meta)]
    for number, aspect in enumerate(ASPECTS):
        read = partial(_read_values, aspect=number, column=f"{aspect}_id")
        sources.append((tables.of(OutbrainTable(f"documents_{PLURALS[aspect]}")).segments(), read))
    with frame_of_rows(workspace, "list documents", sources, _ROWS) as listed:
        # Of lines with the same document the smallest, null before any value; of a repeated value the surest.
        once = listed.groupBy(HASH, "document_id", "aspect", "value").agg(
            f.max("confidence").alias("confidence"), f.min(f.struct(*_META)).alias("meta")
        )
        kept = once.select(*_ROWS.names[:5], "meta.*").filter(f"aspect <> {_META_ROW} or source_id is not null")
        ranges = range_count(workspace.runner, sum(count_rows(segments) for segments, _ in sources))
        ordered = in_hash_ranges(kept, ranges).sortWithinPartitions(HASH, "document_id", "aspect", "value")
        pieces, found = write_partitions(SparkRows(ordered), folder, ("rows",), _ROWS, ("aspect",), _write_rows)
    rows = RowFiles(pieces=tuple(pieces["rows"]))
    sizes = _write_value_tables(workspace, rows, folder)
    # The sets are as large as there are sources, not documents.
    published = {source for _, _, sources, _ in found for source in sources}
    unpublished = {source for _, _, _, sources in found for source in sources}
    return DocumentRows(
        folder=folder,
        rows=rows,
        documents=sum(documents for documents, *_ in found),
        values={aspect: sizes.get(number, 0) for number, aspect in enumerate(ASPECTS)},
        largest_publisher=max((largest for _, largest, *_ in found), default=0),
        sources_without_publisher=tuple(sorted(unpublished - published)),
    )


def _read_meta(segment: Segment) -> Iterator[pa.RecordBatch]:
    for batch in read_piece(segment.piece, ("document_id", *_META), ()):
        aspects, hashes = np.full(len(batch), _META_ROW, np.int8), hash_key(batch["document_id"].to_numpy())
        yield batch_of(_ROWS, {HASH: hashes, "aspect": aspects}, batch)


def _read_values(segment: Segment, aspect: int, column: str) -> Iterator[pa.RecordBatch]:
    for batch in read_piece(segment.piece, ("document_id", column, "confidence_level"), ()):
        document, value, confidence = batch.columns
        if pa.types.is_string(value.type):
            value = pa.array(hash_strings(value.cast(pa.large_string())).view(np.int64))
        columns = {"document_id": document, "value": value, "confidence": confidence}
        aspects = np.full(len(batch), aspect, np.int8)
        yield batch_of(_ROWS, {HASH: hash_key(document.to_numpy()), "aspect": aspects, **columns})


def _write_rows(batches: Iterator[pa.RecordBatch], write: Write) -> tuple[int, int, set[int], set[int]]:
    """Return the number of documents, the largest publisher, and the sources with and without a publisher."""
    documents = largest = 0
    published: set[int] = set()
    unpublished: set[int] = set()
    for batch in batches:
        write("rows", batch.cast(_ROWS))
        meta = batch.filter(pc.equal(batch["aspect"], _META_ROW))
        publisher, source = meta["publisher_id"], meta["source_id"]
        documents, largest = documents + len(meta), max(largest, pc.max(publisher).as_py() or 0)
        published.update(source.filter(publisher.is_valid()).unique().to_pylist())
        unpublished.update(source.filter(publisher.is_null()).unique().to_pylist())
    return documents, largest, published, unpublished


def _write_value_tables(workspace: Workspace, rows: RowFiles, folder: Path) -> dict[int, int]:
    """Write a table (`VALUE_SCHEMA`) for each aspect into a folder of its name; return their sizes."""
    from pyspark.sql import functions as f

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, ("aspect", "value"), ()):
            part = batch.filter(pc.not_equal(batch["aspect"], _META_ROW))
            hashes = pa.array(hash_key(part["value"].to_numpy()))
            yield pa.RecordBatch.from_arrays([hashes, *part.columns], schema=_COUNTED)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for aspect, run in rows_by_value(batches, "aspect"):
            count = write_sorted(run, folder / ASPECTS[aspect], VALUE_SCHEMA)
            columns = [pa.array([aspect], pa.int8()), pa.array([count])]
            yield pa.RecordBatch.from_arrays(columns, names=["aspect", "values"])

    with frame_of_rows(workspace, "count document values", [(rows.segments(), read)], _COUNTED) as values:
        counted = values.groupBy("aspect", HASH, "value").agg(f.count("*").alias("documents"))
        # These are as many as the data has values, not rows: one task sorts them.
        whole = counted.repartition(1).sortWithinPartitions("aspect", HASH, "value")
        return dict(collect_rows(whole.mapInArrow(write, "aspect byte, values long")))


def inverse_frequency(folder: Path, aspect: Aspect, value: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    """(n,) ln(documents / documents that have the value), at least 0, by the table of the aspect in `folder`."""
    if documents == 0:
        return np.zeros(len(value))
    table = LookupTable.cached(folder / aspect)
    frequency = table.numbers("documents", table.find({"value": value})).values
    return np.maximum(np.log(documents / frequency), 0.0)


def write_documents(workspace: Workspace, found: DocumentRows, folder: Path) -> None:
    """Write the table of documents: all that documents_meta or the table of an aspect names."""
    with counted_rows(workspace.runner, workspace.progress, "documents", found.rows.rows) as counter:

        def run(piece: Piece) -> None:
            whole = whole_groups(read_piece(piece, _ROWS.names, ()), HASH, _BATCH_ROWS)
            write_file(folder, DOCUMENT_SCHEMA, (_documents(rows, found) for rows in whole))
            counter.add(piece.rows)

        workspace.runner.run(found.rows.pieces, run)


def _documents(rows: pa.RecordBatch, found: DocumentRows) -> pa.RecordBatch:
    """Return the sorted rows of whole documents as rows of the table."""
    starts = group_starts(rows["document_id"])
    count = len(starts)
    owner = np.repeat(np.arange(count), np.diff(np.append(starts, rows.num_rows)))
    aspect = rows["aspect"].to_numpy()
    first = rows.take(pa.array(starts))  # the row of documents_meta sorts first
    columns = [first[HASH], first["document_id"], first["source_id"], _publishers(first, found), first["publish_time"]]
    lists = []
    for number, name in enumerate(ASPECTS):
        chosen = np.flatnonzero(aspect == number)
        value, confidence = (rows[c].take(pa.array(chosen)).to_numpy() for c in ("value", "confidence"))
        weight = inverse_frequency(found.folder, name, value, found.documents) * confidence
        fields = DOCUMENT_SCHEMA.field(name).type.value_type
        elements = pa.StructArray.from_arrays([pa.array(a) for a in (value, confidence, weight)], fields=list(fields))
        columns.append(list_column(owner[chosen], elements, count))
        lists.append(_first_values(owner[chosen], value, confidence, LISTED[name], count))
    return pa.RecordBatch.from_arrays([*columns, *lists], schema=DOCUMENT_SCHEMA)


def _publishers(documents: pa.RecordBatch, found: DocumentRows) -> pa.Array:
    """Return the publishers; sources without any get numbers that follow the largest publisher."""
    lacking = pa.array(found.sources_without_publisher, pa.int64())
    number = pc.index_in(documents["source_id"], value_set=lacking, skip_nulls=True)
    return pc.coalesce(documents["publisher_id"], pc.add(number.cast(pa.int64()), found.largest_publisher + 1))


def _first_values(
    owner: NDArray[np.int64], value: NDArray[np.int64], confidence: NDArray[np.float64], length: int, count: int
) -> pa.Array:
    """Return the values of the highest confidence, equal ones ascending."""
    order = np.lexsort((value, -confidence, owner))
    sizes = np.bincount(owner, minlength=count)
    position = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = order[position < length]
    return list_column(owner[kept], pa.array(value[kept]), count)


def write_ads(workspace: Workspace, tables: ParsedTables, folder: Path) -> None:
    """Write the table of ads."""
    from pyspark.sql import functions as f

    files = tables.of(OutbrainTable.PROMOTED_CONTENT)
    key, *columns = AD_SCHEMA.names[1:]

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, (key, *columns), ()):
            hashes = pa.array(hash_key(batch[key].to_numpy()))
            yield pa.RecordBatch.from_arrays([hashes, *batch.columns], names=AD_SCHEMA.names)

    with frame_of_rows(workspace, "ads", [(files.segments(), read)], AD_SCHEMA) as listed:
        # Of lines with the same ad the smallest, null before any value.
        kept = listed.groupBy(HASH, key).agg(f.min(f.struct(*columns)).alias("line")).select(HASH, key, "line.*")
        write_table(workspace.runner, SparkRows(kept), files.rows, (key,), folder, AD_SCHEMA)
