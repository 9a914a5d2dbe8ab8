"""The files of Outbrain's tables: found among inputs, and read into rows."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat
from rayrec.features.hashes import hash_texts
from rayrec.features.raw_columns import RawColumn, RawType
from rayrec.raw.input_files import Chunk, InputFile, list_inputs
from rayrec.raw.rows import RawBlock
from rayrec.raw.table_reader import TableReader, open_table
from rayrec.sources.outbrain.outbrain_tables import (
    ARROW_TYPES,
    FULL_TABLES,
    NULL,
    Kind,
    OutbrainTable,
    TableLayout,
    codes_of,
)

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
