"""The tables of documents and ads: what several raw tables say of each."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.features.hashes import hash_key, hash_texts
from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import HASH, write_file
from rayrec.preprocessing.engines.engine import Source, partition_by_hash
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.segments import Piece, Segment, batch_of, read_piece
from rayrec.preprocessing.sorted_rows import range_count, rows_by_value, whole_groups, write_sorted
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.preprocessing.row_files import (
    ParsedTables,
    Partitioned,
    RowFiles,
    files_of,
    shuffle_rows,
    write_files,
)
from rayrec.sources.outbrain.statistics import AD_SCHEMA, ASPECTS, DOCUMENT_SCHEMA, PLURALS, Aspect
from rayrec.store.paths import KeptPath

LISTED: dict[Aspect, int] = {"category": 3, "topic": 3, "entity": 6}
"""The longest list of a feature."""
_DOCUMENTS_AT_ONCE = 65_536
_META = ("source_id", "publisher_id", "publish_time")
_META_SCHEMA = pa.schema([(name, pa.int64()) for name in (HASH, "document_id", *_META)])
_VALUES = pa.schema([*((n, pa.int64()) for n in (HASH, "document_id", "value")), ("confidence", pa.float64())])
_LISTS = """
{aspect}_lists as (
    select hash, document_id, list({{value: value, confidence: confidence, weight: 0.0}} order by value) as {aspect},
        list(value order by confidence desc, value)[:{listed}] as {aspect}_list
    -- Of a repeated value the surest.
    from (select hash, document_id, value, max(confidence) as confidence from {aspect}_values group by all)
    group by all
)"""
_KNOWN = """
with known as (
    -- Of lines with the same document the smallest, null before any value.
    select * from (
        select distinct on (document_id) * from meta
        order by document_id, source_id nulls first, publisher_id nulls first, publish_time nulls first
    ) where source_id is not null
)"""
_SOURCES = f"{_KNOWN} select source_id, count(*) as documents, max(publisher_id) as publisher from known group by all"
_FACTS = """
with source as (select source_id, sum(documents) as documents, max(publisher) as publisher from sources group by all)
select coalesce(sum(documents), 0)::bigint as documents, greatest(max(publisher), 0) as largest_publisher,
    coalesce(list(source_id order by source_id) filter (publisher is null), []) as sources_without_publisher
from source
"""
"""What `DocumentRows` says of all documents."""
_DOCUMENTS = f"""
{_KNOWN}, {",".join(_LISTS.format(aspect=aspect, listed=LISTED[aspect]) for aspect in ASPECTS)}
select hash, document_id, source_id, publisher_id, publish_time,
    {", ".join(f"coalesce({aspect}, []) as {aspect}" for aspect in ASPECTS)},
    {", ".join(f"coalesce({aspect}_list, []) as {aspect}_list" for aspect in ASPECTS)}
from known
    {" ".join(f"full join {aspect}_lists using (hash, document_id)" for aspect in ASPECTS)}
order by hash, document_id
"""
_COUNTED = pa.schema([(HASH, pa.int64()), ("aspect", pa.int8()), ("value", pa.int64())])
VALUE_SCHEMA = pa.schema([pa.field(name, pa.int64(), False) for name in (HASH, "value", "documents")])
"""The table of an aspect's values: in how many documents each is."""
_FREQUENCIES = """
select aspect, hash, value, count(*) as documents from counted group by all order by aspect, hash, value
"""
_ADS = """
-- Of lines with the same ad the smallest, null before any value.
select distinct on (ad_id) * from ads
order by hash, ad_id, document_id nulls first, campaign_id nulls first, advertiser_id nulls first
"""


class DocumentRows(Config):
    """What the tables of documents say of each; and a table of each aspect's values."""

    folder: KeptPath
    """Holds a table (`VALUE_SCHEMA`) for each aspect."""
    rows: RowFiles
    """Documents by ascending hash, with 0 in place of the weights of their values; no hash is in two files."""
    documents: int
    """Number of documents with a source."""
    values: dict[str, int]
    """Number of distinct values by aspect."""
    largest_publisher: int
    sources_without_publisher: tuple[int, ...]
    """Sources none of whose documents has a publisher, ascending."""


def write_document_rows(workspace: Workspace, tables: ParsedTables, folder: Path) -> DocumentRows:
    """Bring together what the tables say of each document, and count the documents of each value."""
    of_aspects = {aspect: tables.of(OutbrainTable(f"documents_{PLURALS[aspect]}")) for aspect in ASPECTS}
    meta = tables.of(OutbrainTable.DOCUMENTS_META)
    ranges = range_count(meta.rows + sum(files.rows for files in of_aspects.values()))

    def read(segment: Segment, columns: tuple[str, ...], schema: pa.Schema) -> Partitioned:
        for batch in read_piece(segment.piece, columns, ()):
            hashes = hash_key(batch["document_id"].to_numpy())
            values = [hash_texts(c) if pa.types.is_string(c.type) else c for c in batch.columns]
            named = dict(zip(schema.names, (hashes, *values), strict=True))
            yield partition_by_hash(hashes, ranges), batch_of(schema, named)

    def write(partition: int, rows: Mapping[str, pa.Table]) -> tuple[dict[str, Piece], pa.Table]:
        """Write documents; return the sources, of which there are far fewer."""
        documents = (("rows", batch.cast(DOCUMENT_SCHEMA)) for batch in query(_DOCUMENTS, **rows))
        pieces = write_files(folder, partition, {"rows": DOCUMENT_SCHEMA}, documents)
        return pieces, query(_SOURCES, meta=rows["meta"]).read_all()

    read_meta = partial(read, columns=_META_SCHEMA.names[1:], schema=_META_SCHEMA)
    sources = {"meta": Source(meta.segments(), _META_SCHEMA, read_meta)}
    for aspect, files in of_aspects.items():
        columns = ("document_id", f"{aspect}_id", "confidence_level")
        sources[f"{aspect}_values"] = Source(files.segments(), _VALUES, partial(read, columns=columns, schema=_VALUES))
    found = shuffle_rows(workspace, "list documents", sources, ranges, write)
    rows = files_of([pieces for pieces, _ in found], ("rows",))["rows"]
    sources_of_all = pa.concat_tables([sources for _, sources in found])
    (facts,) = query(_FACTS, sources=sources_of_all).read_all().to_pylist()
    return DocumentRows(folder=folder, rows=rows, values=_write_value_tables(workspace, rows, folder), **facts)


def _write_value_tables(workspace: Workspace, documents: RowFiles, folder: Path) -> dict[str, int]:
    """Write a table (`VALUE_SCHEMA`) for each aspect into a folder of its name; return their sizes."""
    ranges = range_count(documents.rows)

    def read(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, ASPECTS, ()):
            for number, aspect in enumerate(ASPECTS):
                value = batch[aspect].flatten().field("value")
                hashes = hash_key(value.to_numpy())
                columns = {HASH: hashes, "aspect": np.full(len(value), number), "value": value}
                yield partition_by_hash(hashes, ranges), batch_of(_COUNTED, columns)

    def write(_: int, rows: Mapping[str, pa.Table]) -> dict[str, int]:
        by_aspect = rows_by_value(query(_FREQUENCIES, **rows), "aspect")
        return {ASPECTS[n]: write_sorted(counted, folder / ASPECTS[n], VALUE_SCHEMA) for n, counted in by_aspect}

    sources = {"counted": Source(documents.segments(), _COUNTED, read)}
    sizes = shuffle_rows(workspace, "count document values", sources, ranges, write)
    return {aspect: sum(of_range.get(aspect, 0) for of_range in sizes) for aspect in ASPECTS}


def inverse_frequency(folder: Path, aspect: Aspect, value: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    """(n,) ln(documents / documents that have the value), at least 0, by the table of the aspect in `folder`."""
    if documents == 0:
        return np.zeros(len(value))
    table = LookupTable.cached(folder / aspect)
    frequency = table.numbers("documents", table.find({"value": value})).values
    return np.maximum(np.log(documents / frequency), 0.0)


def write_documents(workspace: Workspace, found: DocumentRows, folder: Path) -> None:
    """Write the table of documents: all that documents_meta or the table of an aspect names."""
    with counted_rows(workspace.engine, workspace.progress, "documents", found.rows.rows) as counter:

        def run(piece: Piece) -> None:
            whole = whole_groups(read_piece(piece, DOCUMENT_SCHEMA.names, ()), HASH, _DOCUMENTS_AT_ONCE)
            write_file(folder, DOCUMENT_SCHEMA, (_weighed(documents, found) for documents in whole))
            counter.add(piece.rows)

        workspace.engine.run(found.rows.pieces, run)


def _weighed(documents: pa.RecordBatch, found: DocumentRows) -> pa.RecordBatch:
    """Return rows of the table: with the weights of values, and a publisher for each source."""
    columns: dict[str, pa.Array] = {}
    # Sources without a publisher get numbers that follow the largest.
    lacking = pa.array(found.sources_without_publisher, pa.int64())
    number = pc.index_in(documents["source_id"], value_set=lacking, skip_nulls=True)
    own_publisher = pc.add(number.cast(pa.int64()), found.largest_publisher + 1)
    columns["publisher_id"] = pc.coalesce(documents["publisher_id"], own_publisher)
    for aspect in ASPECTS:
        pairs, offsets = documents[aspect].flatten(), documents[aspect].offsets
        value, confidence = pairs.field("value"), pairs.field("confidence")
        weight = inverse_frequency(found.folder, aspect, value.to_numpy(), found.documents) * confidence.to_numpy()
        fields = list(DOCUMENT_SCHEMA.field(aspect).type.value_type)
        elements = pa.StructArray.from_arrays([value, confidence, pa.array(weight)], fields=fields)
        columns[aspect] = pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), elements)
    return batch_of(DOCUMENT_SCHEMA, columns, documents)


def write_ads(workspace: Workspace, tables: ParsedTables, folder: Path) -> None:
    """Write the table of ads."""
    files = tables.of(OutbrainTable.PROMOTED_CONTENT)
    ranges = range_count(files.rows)

    def read(segment: Segment) -> Partitioned:
        for batch in read_piece(segment.piece, AD_SCHEMA.names[1:], ()):
            hashes = hash_key(batch["ad_id"].to_numpy())
            yield partition_by_hash(hashes, ranges), batch_of(AD_SCHEMA, {HASH: hashes}, batch)

    def write(_: int, rows: Mapping[str, pa.Table]) -> int:
        return write_sorted(query(_ADS, **rows), folder, AD_SCHEMA)

    shuffle_rows(workspace, "ads", {"ads": Source(files.segments(), AD_SCHEMA, read)}, ranges, write)
