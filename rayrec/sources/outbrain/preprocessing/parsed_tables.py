"""First stage: the raw tables -> Parquet files of parsed rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rayrec.common.errors import ConfigError
from rayrec.config import Config
from rayrec.preprocessing.extract import extract_tables, pieces_of
from rayrec.preprocessing.workspace import Workspace
from rayrec.raw.blocks import RowReader
from rayrec.raw.input_files import InputFile
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.outbrain_reader import OutbrainReader, find_files
from rayrec.sources.outbrain.outbrain_tables import FULL_TABLES, LEAN_TABLES, OutbrainTable
from rayrec.sources.outbrain.preprocessing.row_files import RowFiles

RawTables = dict[OutbrainTable, tuple[RowReader, InputFile]]
"""The file of each table, and what reads it."""


class ParsedTables(Config):
    """The rows by table, and how many lines were bad."""

    tables: dict[str, RowFiles]
    rejected: dict[str, int]
    """Number of bad lines by reason."""

    def of(self, table: OutbrainTable) -> RowFiles:
        """Return the rows of a table; no files if the table is absent."""
        return self.tables.get(table.value, RowFiles())


def find_tables(config: DisplayPreprocessConfig, paths: Mapping[str | None, Sequence[str]]) -> RawTables:
    """Find the tables that a job reads in the paths under None.

    Raises UserError if a table is missing or lacks a column, and ConfigError on paths of splits.
    """
    named = next((split for split in paths if split is not None), None)
    if named is not None:
        raise ConfigError(
            f"--input {named}=...: preprocess.split.kind is 'displays', which splits the rows itself; give "
            "paths without a split"
        )
    required = FULL_TABLES if config.feature_set == "full" else LEAN_TABLES
    found = find_files(paths[None], required)
    wanted = required | {OutbrainTable.CLICKS_TEST}
    return {table: (OutbrainReader.open(table, file), file) for table, file in found.items() if table in wanted}


def parse_tables(workspace: Workspace, tables: RawTables, folder: Path, max_rejected: float) -> ParsedTables:
    """Parse the tables into files under `folder`. Raises UserError if too large a share of a table's rows is bad."""
    named = {table.value: (reader, [file]) for table, (reader, file) in tables.items()}
    extracted, rejected = extract_tables(workspace, named, folder, max_rejected)
    files = {name: RowFiles(pieces=tuple(pieces_of(chunks))) for name, chunks in extracted.items()}
    return ParsedTables(tables=files, rejected=rejected)
