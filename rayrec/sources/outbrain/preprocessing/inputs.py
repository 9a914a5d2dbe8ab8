"""Which raw tables a job of displays reads."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rayrec.common.errors import ConfigError
from rayrec.raw.blocks import RowReader
from rayrec.raw.files import InputFile
from rayrec.sources.outbrain.config import DisplayPreprocessConfig
from rayrec.sources.outbrain.layout import FULL_TABLES, LEAN_TABLES, Table
from rayrec.sources.outbrain.reader import OutbrainTables, table_reader


@dataclass(frozen=True)
class DisplayInputs:
    """A file of each table, and what reads it."""

    tables: dict[Table, tuple[RowReader, InputFile]]

    @classmethod
    def resolve(cls, config: DisplayPreprocessConfig, paths: Mapping[str | None, Sequence[str]]) -> "DisplayInputs":
        """Find the tables in the paths under None. Raises UserError on tables that are missing or lack a column."""
        named = next((split for split in paths if split is not None), None)
        if named is not None:
            raise ConfigError(
                f"--input {named}=...: preprocess.split.kind is 'displays', which deals the rows itself; give the "
                "paths alone"
            )
        required = FULL_TABLES if config.feature_set == "full" else LEAN_TABLES
        found = OutbrainTables.find(paths[None], required).files
        wanted = required | {Table.CLICKS_TEST}
        return cls({table: (table_reader(table, [file]), file) for table, file in found.items() if table in wanted})

    @property
    def files(self) -> tuple[InputFile, ...]:
        return tuple(file for _, file in self.tables.values())

    def without(self, tables: Collection[Table]) -> dict[Table, tuple[RowReader, InputFile]]:
        return {table: source for table, source in self.tables.items() if table not in tables}
