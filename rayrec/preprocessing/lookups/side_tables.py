"""Side tables: files of rows with a unique key -> tables that are looked up by it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.config.table import SideTableConfig
from rayrec.features.hashes import hash_texts
from rayrec.features.lookups import KEY_FIELDS, lookup_folder
from rayrec.features.raw_columns import STATISTICS_FOLDER, ListLength, RawColumn, SideTable
from rayrec.features.text_forms import TextForm, in_form
from rayrec.preprocessing.engines.sql import query
from rayrec.preprocessing.extract import extract_tables, pieces_of, text_forms
from rayrec.preprocessing.lookups.keyed_rows import KeyedRows, write_table
from rayrec.preprocessing.segments import Segment, make_segments, read_piece
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.input_files import InputFile
from rayrec.raw.rows import RowReader
from rayrec.raw.table_reader import TableFiles, TableReader
from rayrec.store.paths import file_name


class WrittenTable(NamedTuple):
    """Findings in the files of a side table."""

    rejected: dict[str, int]
    """The number of bad rows by reason."""
    forms: dict[str, TextForm]
    """The forms of texts by raw column."""


def table_reader(
    files: TableFiles,
    table: SideTable,
    columns: Sequence[RawColumn],
    config: SideTableConfig,
    list_lengths: Sequence[ListLength],
) -> TableReader:
    """Return the reader of a side table's key and columns; a row without a key is bad.

    `columns`, `list_lengths`: those of the schema, of which the table's are read. Raises UserError as
    `TableFiles.reader`.
    """
    given = {column.name: column for column in columns}
    read = [given[name].model_copy(update={"name": _raw_name(table, name)}) for name in table.columns]
    lengths = [n.renamed(lambda name: _raw_name(table, name)) for n in list_lengths if n.column in table.columns]
    return files.reader([RawColumn(name=config.key, type="text"), *read], required=(config.key,), list_lengths=lengths)


def _raw_name(table: SideTable, column: str) -> str:
    return column.removeprefix(f"{table.name}_")


def write_side_table(
    workspace: Workspace,
    table: SideTable,
    config: SideTableConfig,
    reader: RowReader,
    files: Sequence[InputFile],
    max_rejected: float,
    forms: Mapping[str, TextForm],
) -> WrittenTable:
    """Write a side table into the dataset's statistics, and its bad rows into `rejected/`.

    `reader` reads the key (text), which no row may lack, and the table's columns by their names in the files. `forms`:
    those of raw columns that are known, the key's in the log among them. Raises UserError if a key is there twice, or
    if more than the share `max_rejected` of the rows is bad.
    """
    name = file_name(table.name)
    scratch = workspace.scratch / "tables" / name
    scratch.mkdir(parents=True, exist_ok=True)
    chunks, rejected = extract_tables(workspace, {name: (reader, files)}, scratch, max_rejected)
    segments = make_segments(pieces_of(chunks[name]))
    raw_names = [config.key, *(_raw_name(table, column) for column in table.columns)]
    found = text_forms(chunks[name])
    found = {column: found[raw] for column, raw in zip(table.columns, raw_names[1:], strict=True) if raw in found}
    spelled = [forms.get(column, found.get(column, "text")) for column in (table.key, *table.columns)]
    types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
    schema = pa.schema([*KEY_FIELDS, *((c, types[raw]) for c, raw in zip(table.columns, raw_names[1:], strict=True))])
    # SQL takes names that differ in case alone for one, so the columns are numbered.
    numbered = pa.schema([*KEY_FIELDS, *(pa.field(f"c{n}", schema.types[n]) for n in range(2, len(schema)))])
    folder = lookup_folder(workspace.folder / STATISTICS_FOLDER, table)
    folder.parent.mkdir(parents=True, exist_ok=True)

    def read(segment: Segment) -> Iterator[pa.RecordBatch]:
        for batch in read_piece(segment.piece, raw_names):
            columns = [in_form(batch[raw], form) for raw, form in zip(raw_names, spelled, strict=True)]
            yield pa.RecordBatch.from_arrays([pa.array(hash_texts(columns[0])), *columns], schema=numbered)

    def by_hash(tables: Mapping[str, pa.Table]) -> Iterable[pa.RecordBatch]:
        _check_keys(tables["read"], table.name, config)
        return query("from read order by hash, key", schema, **tables)

    rows = {"read": KeyedRows(segments, numbered, read)}
    write_table(workspace, f"side table {table.name}", rows, folder, schema, by_hash)
    return WrittenTable(rejected, found)


def _check_keys(rows: pa.Table, table: str, config: SideTableConfig) -> None:
    """Raise UserError if a key is there twice."""
    sql = "select key, count(*) as n from read group by key having count(*) > 1 order by n desc, key limit 1"
    for key, times in (found.values() for found in query(sql, read=rows).read_all().to_pylist()):
        shown = key[:100] if key.isprintable() else ascii(key[:100])
        raise UserError(
            f"side table '{table}' ({config.path}): key {config.key} has the value {shown} "
            f"{'twice' if times == 2 else f'{times:,} times'}; keep one row for each key"
        )
