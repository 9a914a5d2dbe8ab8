"""First stage: the raw tables -> Parquet files of parsed rows."""

from collections.abc import Mapping
from pathlib import Path

from rayrec.config import Config
from rayrec.preprocessing.extract import ExtractedChunk, extract_tables
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.blocks import RowReader
from rayrec.raw.files import InputFile
from rayrec.sources.outbrain.layout import Table
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles


class ParsedTables(Config):
    """The rows by table, and how many lines were bad."""

    tables: dict[str, RowFiles]
    rejected: dict[str, int]
    """By reason."""

    def of(self, table: Table) -> RowFiles:
        """Without files where the table is not there."""
        return self.tables.get(table.value, RowFiles())


def parse_tables(
    workspace: Workspace, tables: Mapping[Table, tuple[RowReader, InputFile]], folder: Path, max_rejected: float
) -> ParsedTables:
    """Parse the tables into files under `folder`. Raises UserError where too large a share of a table's rows is bad."""
    named = {table.value: (reader, [file]) for table, (reader, file) in tables.items()}
    extracted, rejected = extract_tables(workspace, named, folder, max_rejected)
    files = {name: RowFiles.of(_rows(chunk) for chunk in chunks) for name, chunks in extracted.items()}
    return ParsedTables(tables=files, rejected=rejected)


def _rows(chunk: ExtractedChunk) -> tuple[Path, int]:
    (rows,) = chunk.rows.values()
    return rows
