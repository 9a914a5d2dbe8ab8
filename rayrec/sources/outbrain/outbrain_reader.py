"""The files of Outbrain's tables: found among inputs, and read into rows."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.raw.blocks import RawBlock, text_blocks
from rayrec.raw.input_files import Chunk, InputFile, list_inputs, plan_chunks, read_lines
from rayrec.raw.text_lines import unquoted_fields
from rayrec.sources.outbrain.outbrain_parser import SEPARATOR, FileColumns, parse_lines
from rayrec.sources.outbrain.outbrain_tables import FULL_TABLES, OutbrainTable, TableLayout

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
    columns: FileColumns
    schema: pa.Schema
    dictionaries: tuple[str, ...]

    @classmethod
    def open(cls, table: OutbrainTable, file: InputFile) -> "OutbrainReader":
        """Read the header of a table's file. Raises UserError if the file is empty or its header lacks a column."""
        layout = table.layout
        return cls(layout, _columns(layout, file), layout.schema, layout.dictionaries)

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Yield the blocks of a chunk; lines count from the chunk's first, headers included."""
        return text_blocks(chunk, lambda data: parse_lines(data, self.layout, self.columns), has_header=True)


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
