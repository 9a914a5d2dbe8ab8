"""The tables of documents and ads: what several raw tables say of each."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.hashes import hash_key
from rayrec.features.lookup_table import LookupTable
from rayrec.features.table_parts import HASH
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.lookups.keyed_rows import KeyedRows, shuffle_rows, write_sorted, write_table
from rayrec.preprocessing.segments import Piece, Segment, batch_of, make_segments, read_piece, write_piece
from rayrec.preprocessing.workspace import Workspace, counted_rows
from rayrec.sources.outbrain.outbrain_tables import OutbrainTable
from rayrec.sources.outbrain.statistics import AD_SCHEMA, ASPECTS, DOCUMENT_SCHEMA, PLURALS, Aspect
from rayrec.store.paths import KeptPath

LISTED: dict[Aspect, int] = {"category": 3, "topic": 3, "entity": 6}
"""The longest list of a feature."""
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
_OF_ASPECT = """
    select hash, document_id, {number} as aspect, {aspect}_id as value, max(confidence_level) as confidence
    from {aspect} group by all"""
_LISTS = """
    coalesce(list({{value: value, confidence: confidence, weight: 0.0}} order by value)
        filter (aspect = {number}), []) as {aspect},
    coalesce(list(value order by confidence desc, value) filter (aspect = {number}), [])[:{listed}] as {aspect}_list"""
_DOCUMENTS = f"""
{_KNOWN}, once as (
    -- Of a repeated value the surest.
    {" union all ".join(_OF_ASPECT.format(number=number, aspect=aspect) for number, aspect in enumerate(ASPECTS))}
), lists as (
    select hash, document_id,
        {",".join(_LISTS.format(number=n, aspect=a, listed=LISTED[a]) for n, a in enumerate(ASPECTS))}
    from once group by all
)
select hash, document_id, source_id, publisher_id, publish_time,
    {", ".join(f"coalesce({name}, []) as {name}" for name in DOCUMENT_SCHEMA.names[5:])}
from known full join lists using (hash, document_id)
order by hash, document_id
"""
VALUE_SCHEMA = pa.schema([pa.field(name, pa.int64(), False) for name in (HASH, "value", "documents")])
"""The table of an aspect's values: in how many documents each is."""
_COUNTED = pa.schema([(HASH, pa.int64()), ("aspect", pa.int8()), ("value", pa.int64())])
_FREQUENCIES = """
select hash, value, count(*) as documents from counted where aspect = {number} group by all order by hash, value
"""
_ADS = """
-- Of lines with the same ad the smallest, null before any value.
select distinct on (ad_id) * from ads
order by hash, ad_id, document_id nulls first, campaign_id nulls first, advertiser_id nulls first
"""


class DocumentRows(NamedTuple):
    """What the tables of documents say of each; and a table of each aspect's values."""

    folder: KeptPath
    """Holds a table (`VALUE_SCHEMA`) for each aspect."""
    rows: list[Piece]
    """Documents by ascending hash, with 0 in place of the weights of their values; no hash is in two files."""
    values: dict[str, int]
    """Number of distinct values by aspect."""
    documents: int
    """Number of documents with a source."""
    largest_publisher: int
    sources_without_publisher: list[int]
    """Sources none of whose documents has a publisher, ascending."""


def write_document_rows(workspace: Workspace, tables: Mapping[str, Sequence[Piece]], folder: Path) -> DocumentRows:
    """Bring together what the tables say of each document, and count the documents of each value."""
    named = {"meta": OutbrainTable.DOCUMENTS_META}
    named |= {aspect: OutbrainTable(f"documents_{PLURALS[aspect]}") for aspect in ASPECTS}
    sources = {}
    for name, table in named.items():
        schema = pa.schema([pa.field(HASH, pa.int64()), *table.layout.schema])
        sources[name] = KeyedRows.of_files(tables[table.value], schema, "document_id")

    def write(partition: int, rows: Mapping[str, pa.Table]) -> tuple[list[Piece], pa.Table]:
        path = folder / f"rows-{partition:06d}.parquet"
        pieces = write_piece(path, DOCUMENT_SCHEMA, query(_DOCUMENTS, **rows))
        return pieces, query(_SOURCES, meta=rows["meta"]).read_all()

    written = shuffle_rows(workspace, "list documents", sources, write)
    (facts,) = query(_FACTS, sources=pa.concat_tables(found for _, found in written)).read_all().to_pylist()
    rows = [piece for pieces, _ in written for piece in pieces]
    return DocumentRows(folder, rows, _write_value_tables(workspace, rows, folder), **facts)


def _write_value_tables(workspace: Workspace, documents: Sequence[Piece], folder: Path) -> dict[str, int]:
    """Write a table (`VALUE_SCHEMA`) for each aspect into a folder of its name; return their sizes."""

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, ASPECTS):
            for number, aspect in enumerate(ASPECTS):
                value = batch[aspect].flatten().field("value")
                columns = {HASH: hash_key(value.to_numpy()), "aspect": np.full(len(value), number), "value": value}
                yield batch_of(_COUNTED, columns)

    def write(_: int, rows: Mapping[str, pa.Table]) -> list[int]:
        counted = {aspect: _FREQUENCIES.format(number=number) for number, aspect in enumerate(ASPECTS)}
        return [write_sorted(query(sql, **rows), folder / aspect, VALUE_SCHEMA) for aspect, sql in counted.items()]

    sources = {"counted": KeyedRows(make_segments(documents), _COUNTED, read)}
    sizes = shuffle_rows(workspace, "count document values", sources, write)
    return dict(zip(ASPECTS, map(sum, zip(*sizes, strict=True)), strict=True))


def inverse_frequency(folder: Path, aspect: Aspect, value: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    """Return (n,) ln(documents / documents that have the value), at least 0, by the aspect's table in `folder`."""
    if documents == 0:
        return np.zeros(len(value))
    table = LookupTable.cached(folder / aspect)
    frequency = table.numbers("documents", table.find({"value": value})).values
    return np.maximum(np.log(documents / frequency), 0.0)


def write_documents(workspace: Workspace, found: DocumentRows, folder: Path) -> None:
    """Write the table of documents: all that documents_meta or the table of an aspect names."""
    with counted_rows(
        workspace.engine, workspace.progress, "documents", sum(piece.rows for piece in found.rows)
    ) as counter:

        def run(piece: Piece) -> None:
            weighed = (_weighed(documents, found) for documents in read_piece(piece, DOCUMENT_SCHEMA.names))
            write_sorted(weighed, folder, DOCUMENT_SCHEMA)
            counter.add(piece.rows)

        workspace.engine.run(found.rows, run)


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


def write_ads(workspace: Workspace, tables: Mapping[str, Sequence[Piece]], folder: Path) -> None:
    """Write the table of ads."""
    ads = KeyedRows.of_files(tables["promoted_content"], AD_SCHEMA, "ad_id")
    write_table(workspace, "ads", {"ads": ads}, folder, AD_SCHEMA, lambda rows: query(_ADS, **rows))
