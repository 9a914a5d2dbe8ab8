"""The nine tables of Outbrain's click prediction data: their files, columns and types, and how they are read."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.features.hashes import hash_texts
from rayrec.features.raw_columns import RawColumn, RawType
from rayrec.raw.input_files import Chunk, InputFile, list_inputs
from rayrec.raw.rows import RawBlock
from rayrec.raw.table_reader import TableReader, open_table

FIRST_MILLISECOND = 1_465_876_799_998
"""Times in the tables count from here (milliseconds since the Unix epoch): 14 June 2016, 4:00 UTC."""
DAY_MILLISECONDS = 86_400_000
NULL = "\\N"

Kind = Literal["integer", "string", "hash", "confidence", "click", "code", "time"]
"""How the text of a field is read. `hash`: the hash of the text; `code`: 1, 2 or 3, anything else is null; `time`:
2016-06-05 00:00:00, UTC.
"""
ARROW_TYPES: dict[Kind, pa.DataType] = {
    "integer": pa.int64(),
    "string": pa.string(),
    "hash": pa.int64(),
    "confidence": pa.float64(),
    "click": pa.int8(),
    "code": pa.int8(),
    "time": pa.int64(),  # milliseconds since the Unix epoch
}
CODES = (1, 2, 3)


def codes_of(values: pa.Array) -> pa.Array:
    """Return (n,) codes (int8) of integers (n,); null where another number stands."""
    return pc.if_else(pc.is_in(values, pa.array(CODES, values.type)), values, None).cast(pa.int8())


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    name: str
    kind: Kind = "integer"
    is_needed: bool = False
    """Whether a line without a value here is a bad line."""


@dataclass(frozen=True)
class TableLayout:
    """A table: the stems of its file's name, the preferred first, and the columns in the order of the real file."""

    stems: tuple[str, ...]
    columns: tuple[TableColumn, ...]
    dictionaries: tuple[str, ...] = ()
    """Columns of strings whose values repeat."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows as read."""
        return pa.schema([pa.field(c.name, ARROW_TYPES[c.kind], not c.is_needed) for c in self.columns])


def _aspect(stem: str, value: TableColumn) -> TableLayout:
    confidence = TableColumn("confidence_level", "confidence", is_needed=True)
    return TableLayout((stem,), (TableColumn("document_id", is_needed=True), value, confidence))


class OutbrainTable(Enum):
    """The tables by name."""

    PAGE_VIEWS = "page_views"
    CLICKS_TRAIN = "clicks_train"
    CLICKS_TEST = "clicks_test"
    EVENTS = "events"
    PROMOTED_CONTENT = "promoted_content"
    DOCUMENTS_META = "documents_meta"
    DOCUMENTS_TOPICS = "documents_topics"
    DOCUMENTS_ENTITIES = "documents_entities"
    DOCUMENTS_CATEGORIES = "documents_categories"

    @property
    def layout(self) -> TableLayout:
        return _LAYOUTS[self]


_DISPLAY, _AD = TableColumn("display_id", is_needed=True), TableColumn("ad_id", is_needed=True)
_DOCUMENT, _UUID = TableColumn("document_id", is_needed=True), TableColumn("uuid", "string", is_needed=True)
_DEVICE = (TableColumn("platform", "code"), TableColumn("geo_location", "string"))
_VIEW = (_UUID, _DOCUMENT, TableColumn("timestamp", is_needed=True), *_DEVICE, TableColumn("traffic_source", "code"))
_EVENT = (_DISPLAY, TableColumn("uuid", "string"), TableColumn("document_id"), TableColumn("timestamp"), *_DEVICE)
_AD_COLUMNS = (_AD, TableColumn("document_id"), TableColumn("campaign_id"), TableColumn("advertiser_id"))
_META = (_DOCUMENT, TableColumn("source_id"), TableColumn("publisher_id"), TableColumn("publish_time", "time"))
_LAYOUTS = {
    OutbrainTable.PAGE_VIEWS: TableLayout(("page_views", "page_views_sample"), _VIEW, ("uuid", "geo_location")),
    OutbrainTable.CLICKS_TRAIN: TableLayout(
        ("clicks_train",), (_DISPLAY, _AD, TableColumn("clicked", "click", is_needed=True))
    ),
    OutbrainTable.CLICKS_TEST: TableLayout(("clicks_test",), (_DISPLAY, _AD)),
    OutbrainTable.EVENTS: TableLayout(("events",), _EVENT, ("geo_location",)),
    OutbrainTable.PROMOTED_CONTENT: TableLayout(("promoted_content",), _AD_COLUMNS),
    OutbrainTable.DOCUMENTS_META: TableLayout(("documents_meta",), _META),
    OutbrainTable.DOCUMENTS_TOPICS: _aspect("documents_topics", TableColumn("topic_id", is_needed=True)),
    OutbrainTable.DOCUMENTS_ENTITIES: _aspect("documents_entities", TableColumn("entity_id", "hash", is_needed=True)),
    OutbrainTable.DOCUMENTS_CATEGORIES: _aspect("documents_categories", TableColumn("category_id", is_needed=True)),
}
EVENT_FIELDS = tuple(OutbrainTable.EVENTS.layout.schema)[1:]
"""The columns of an event beside its display."""

LEAN_TABLES = frozenset(OutbrainTable) - {OutbrainTable.PAGE_VIEWS, OutbrainTable.CLICKS_TEST}
"""The tables that the `lean` features are made of."""
FULL_TABLES = LEAN_TABLES | {OutbrainTable.PAGE_VIEWS}
"""The tables that the `full` features are made of."""


# Finding and reading the files.

_TYPES: dict[Kind, RawType] = {
    "integer": "integer",
    "code": "integer",
    "string": "text",
    "hash": "text",
    "confidence": "number",
    "time": "time",
}
"""How the columns of tables are read; the column of clicks is a label."""
_SUFFIXES = (".zip", ".gz", ".csv")
"""Taken off a file's name in this order: events.csv.zip, events.zip, events.csv.gz, events.csv."""


def find_files(
    paths: Iterable[str], required: Collection[OutbrainTable] = FULL_TABLES
) -> dict[OutbrainTable, InputFile]:
    """Find the tables among `paths` (files, folders, globs, URIs) by the names of the files, in the enum's order.

    Files of other names are left aside. Raises UserError if a required table is missing or one comes twice.
    """
    given = [str(path) for path in paths]
    by_stem: dict[str, InputFile] = {}
    for file in list_inputs(given):
        other = by_stem.setdefault(_stem(file), file)
        if other is not file:
            raise UserError(f"{file.name}: the same table as {other.name}; give one of them")
    files = {}
    for table in OutbrainTable:
        stems = [stem for stem in table.layout.stems if stem in by_stem]
        if stems:
            files[table] = by_stem[stems[0]]
        elif table in required:
            raise UserError(
                f"{', '.join(given)}: no {table.layout.stems[0]}.csv (or .csv.gz, .csv.zip); give the folder with "
                "Outbrain's tables to --input"
            )
    return files


def _stem(file: InputFile) -> str:
    name = file.base_name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


@dataclass(frozen=True)
class OutbrainReader:
    """Reads the chunks of a table's file."""

    layout: TableLayout
    reader: TableReader

    @classmethod
    def open(cls, table: OutbrainTable, file: InputFile) -> "OutbrainReader":
        """Read the header of a table's file. Raises UserError if the file is empty or its header lacks a column."""
        layout = table.layout
        kinds = {column.name: column.kind for column in layout.columns}
        read = [RawColumn(name=name, type=_TYPES[kind]) for name, kind in kinds.items() if kind in _TYPES]
        opened = open_table([file], FileFormat(format="delimited", separator=",", null_values=("", NULL)))
        reader = opened.reader(
            read,
            label=next((name for name, kind in kinds.items() if kind == "click"), None),
            weight=next((name for name, kind in kinds.items() if kind == "confidence"), None),
            required=[column.name for column in layout.columns if column.is_needed and column.kind in _TYPES],
        )
        return cls(layout, reader)

    @property
    def schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def dictionaries(self) -> tuple[str, ...]:
        return self.layout.dictionaries

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Yield the blocks of a chunk; lines count from the chunk's first, headers included."""
        for block in self.reader.read(chunk):
            columns = [_typed(block.rows[column.name], column.kind) for column in self.layout.columns]
            yield replace(block, rows=pa.RecordBatch.from_arrays(columns, schema=self.schema))


def _typed(values: pa.Array, kind: Kind) -> pa.Array:
    if kind == "hash":
        values = pa.array(hash_texts(values))
    if kind == "code":
        values = codes_of(values)
    if kind == "time":
        microseconds = values.cast(pa.int64())
        milliseconds = microseconds.fill_null(0).to_numpy() // 1000  # an earlier one, also before 1970
        values = pa.array(milliseconds, mask=microseconds.is_null().to_numpy(zero_copy_only=False))
    return values.cast(ARROW_TYPES[kind])
