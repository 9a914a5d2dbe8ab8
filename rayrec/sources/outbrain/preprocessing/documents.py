"""The table of documents: what several raw tables say of each."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.keyed_table import HASH, write_file
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.sorted_rows import group_starts, whole_groups
from rayrec.preprocessing.spark_tasks import collect_rows, counted_rows, frame_of_tasks
from rayrec.preprocessing.vocabularies.hash_ranges import ROW_COUNT, in_hash_ranges, range_count, row_count
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.preprocessing.infos import DOCUMENT_INFO_SCHEMA, DocumentInfo
from rayrec.sources.outbrain.preprocessing.list_columns import list_column
from rayrec.sources.outbrain.preprocessing.values import DOCUMENT_VALUE_SCHEMA, DocumentValues, value_table
from rayrec.sources.outbrain.statistics import ASPECTS, DOCUMENT_SCHEMA, Aspect
from rayrec.sources.outbrain.weights import document_weights

LISTED: dict[Aspect, int] = {"category": 3, "topic": 3, "entity": 6}
"""The longest list of a feature."""
_BATCH_ROWS = 131_072
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
            schema = DOCUMENT_INFO_SCHEMA if is_info else DOCUMENT_VALUE_SCHEMA
            for batch in read_piece(segment.piece, schema.names, ()):
                yield _as_long(batch)
            counter.add(segment.piece.rows)

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            def documents() -> Iterator[pa.RecordBatch]:
                for whole in whole_groups(batches, HASH, _BATCH_ROWS):
                    yield _documents(whole, infos, values_in, original)

            yield row_count(write_file(folder, DOCUMENT_SCHEMA, documents()))

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
        collect_rows(ordered.mapInArrow(write, ROW_COUNT))


def _as_long(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with all columns of `_LONG`."""
    names = batch.schema.names
    columns = [batch[f.name] if f.name in names else pa.nulls(len(batch), f.type) for f in _LONG]
    if "aspect" not in names:
        columns[_LONG.get_field_index("aspect")] = pa.array(np.full(len(batch), _INFO, np.int8))
    return pa.RecordBatch.from_arrays(columns, schema=_LONG)


def _documents(rows: pa.RecordBatch, infos: DocumentInfo, values_in: Path, original: bool) -> pa.RecordBatch:
    """Whole documents of `_LONG` rows, sorted, as rows of the table."""
    starts = group_starts(rows["document"])
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
        columns.append(list_column(owner[chosen], elements, count))
        lists.append(_first_values(owner[chosen], value, confidence, LISTED[name], count))
    return pa.RecordBatch.from_arrays([*columns, *lists], schema=DOCUMENT_SCHEMA)


def _publishers(documents: pa.RecordBatch, infos: DocumentInfo) -> pa.Array:
    """Publishers; of sources without any, those that number on from the largest."""
    lacking = pa.array(infos.sources_without_publisher, pa.int64())
    number = pc.index_in(documents["source_id"], value_set=lacking, skip_nulls=True)
    return pc.coalesce(documents["publisher_id"], pc.add(number.cast(pa.int64()), infos.largest_publisher + 1))


def _first_values(
    owner: NDArray[np.int64], value: NDArray[np.int64], confidence: NDArray[np.float64], length: int, count: int
) -> pa.Array:
    """The values of highest confidence, equal ones ascending."""
    order = np.lexsort((value, -confidence, owner))
    sizes = np.bincount(owner, minlength=count)
    place = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    kept = order[place < length]
    return list_column(owner[kept], pa.array(value[kept]), count)
