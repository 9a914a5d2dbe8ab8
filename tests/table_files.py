"""What tests of tables share: files written, and read with the lines of their rows counted from the file's first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayrec.config.table import FileFormat, LabelCondition
from rayrec.features.raw_columns import RawColumn
from rayrec.raw.input_files import list_inputs, plan_chunks
from rayrec.raw.table_reader import open_table


@dataclass(frozen=True)
class Table:
    """The rows of a table's files, and what was set aside."""

    rows: list[dict[str, Any]]
    places: list[tuple[str, int]]
    """The file's name and the line of each row."""
    rejected: list[dict[str, Any]]
    """Rows of `REJECTED_SCHEMA`; lines count from the file's first."""

    @property
    def reasons(self) -> list[tuple[int, str, str | None, str | None]]:
        """Line, reason, column and value of what was set aside."""
        return [(row["line"], row["reason"], row["column"], row["value"]) for row in self.rejected]


def raw_columns(**types: str) -> list[RawColumn]:
    """Columns by name, with their types."""
    return [RawColumn.model_validate({"name": name, "type": kind}) for name, kind in types.items()]


def read_table(
    paths: Path | Sequence[Path],
    columns: Sequence[RawColumn],
    label: str | LabelCondition | None = None,
    *,
    chunk_bytes: int = 2**20,
    optional: Sequence[str] = (),
    table_format: FileFormat | None = None,
    **reading: Any,
) -> Table:
    """Return every row of the files, read in chunks; the blocks are checked against the reader's schema."""
    files = list_inputs([str(path) for path in ([paths] if isinstance(paths, Path) else paths)])
    reader = open_table(files, table_format or FileFormat(), optional).reader(columns, label, **reading)
    found = Table([], [], [])
    lines = dict.fromkeys((file.name for file in files), 0)
    for chunk in plan_chunks(files, chunk_bytes):
        name = chunk.file.name
        before = lines[name]
        for block in reader.read(chunk):
            block.rows.validate(full=True)
            has_label = label is None or reader.label in block.rows.schema.names
            assert block.rows.schema == (reader.schema if has_label else reader.schema.remove(0))
            found.rows.extend(block.rows.to_pylist())
            found.places.extend((name, before + line) for line in block.lines.tolist())
            found.rejected.extend(row | {"line": before + row["line"]} for row in block.rejected.to_pylist())
            lines[name] += block.num_lines
    return found
