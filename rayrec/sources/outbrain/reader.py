"""The files of Outbrain's tables: found among inputs, and read into rows."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.raw.blocks import RawBlock, text_blocks
from rayrec.raw.files import Chunk, InputFile, list_inputs, plan_chunks, read_lines
from rayrec.raw.text_lines import unquoted_fields
from rayrec.sources.outbrain.layout import FULL_TABLES, Table, TableLayout
from rayrec.sources.outbrain.parse import SEPARATOR, FileColumns, parse_lines

_SUFFIXES = (".zip", ".gz", ".csv")
"""Taken off a file's name in this order: events.csv.zip, events.zip, events.csv.gz, events.csv."""


@dataclass(frozen=True)
class OutbrainTables:
    """Which file holds which table."""

    files: Mapping[Table, InputFile]
    """Files in the order of `Table`, without tables that are absent and not required."""

    @classmethod
    def find(cls, paths: Iterable[str], required: Collection[Table] = FULL_TABLES) -> "OutbrainTables":
        """Find the tables among `paths` (files, folders, globs, URIs) by the names of the files.

        Files of other names are left aside. Raises UserError if a required table is missing or one comes twice.
        """
        given = [str(path) for path in paths]
        by_stem: dict[str, InputFile] = {}
        for file in list_inputs(given):
            other = by_stem.setdefault(_stem(file), file)
            if other is not file:
                raise UserError(f"{file.name}: the same table as {other.name}; give one of them")
        files = {}
        for table in Table:
            stems = [stem for stem in table.layout.stems if stem in by_stem]
            if stems:
                files[table] = by_stem[stems[0]]
            elif table in required:
                raise UserError(
                    f"{', '.join(given)}: no {table.layout.stems[0]}.csv (nor .csv.gz, .csv.zip); give the folder with "
                    "Outbrain's tables to --input"
                )
        return cls(files)


def _stem(file: InputFile) -> str:
    name = file.base_name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


@dataclass(frozen=True)
class TableReader:
    """Reads the chunks of the files of one table whose headers are known."""

    table: TableLayout
    columns: tuple[FileColumns, ...]
    """The columns of each file."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self.table.schema

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """Columns whose values repeat."""
        return self.table.dictionaries

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """The blocks of a chunk, a few megabytes each; lines count from the chunk's first, headers included."""
        columns = self.columns[chunk.file_index]
        return text_blocks(chunk, lambda data: parse_lines(data, self.table, columns), has_header=True)


def table_reader(table: Table, files: Sequence[InputFile]) -> TableReader:
    """Read the headers of a table's files; returns what reads their rows.

    Raises UserError if a file is empty or its header lacks a column.
    """
    return TableReader(table.layout, tuple(_columns(table.layout, file) for file in files))


def _columns(table: TableLayout, file: InputFile) -> FileColumns:
    (chunk,) = plan_chunks([file], max(file.bytes, 1))
    block = next(read_lines(chunk), b"")
    if not block:
        raise UserError(f"{file.name}: empty; it needs a header, {SEPARATOR.join(c.name for c in table.columns)}")
    line = block[: block.index(b"\n")].rstrip(b"\r").decode("utf-8", "replace")
    names = [name.strip() for name in unquoted_fields(line, SEPARATOR) or line.split(SEPARATOR)]
    missing = next((column.name for column in table.columns if column.name not in names), None)
    if missing is not None:
        shown = ", ".join(repr(name) for name in names[:8])
        raise UserError(f"{file.name}: no column '{missing}' in the header ({shown}); use Outbrain's names")
    return FileColumns(tuple(names.index(column.name) for column in table.columns), len(names))
