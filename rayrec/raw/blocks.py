"""The blocks of rows that a chunk of a raw file is read into, the same for every source."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.raw.input_files import Chunk

_MOST_NAMED = 10
MAX_TEXT = 10_000
"""Characters of a rejected row's text that are kept."""

Cell = tuple[str, str]
"""The column of a value and the value, as text."""

REJECTED_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string(), False),
        pa.field("line", pa.int64(), False),  # from 1
        pa.field("reason", pa.string(), False),
        pa.field("column", pa.string()),  # null if the row is wrong as a whole
        pa.field("value", pa.string()),  # null as the column; empty if it is missing
        pa.field("text", pa.string(), False),  # undecodable bytes as \xNN
    ]
)


def describe_rejected(row: Mapping[str, Any]) -> str:
    """Say where and why a row of `REJECTED_SCHEMA` is bad, with the value; its line is None if it is not known."""
    line = f", line {row['line']}" if row["line"] is not None else ""
    cell = f" (column '{row['column']}': {row['value'][:100]!a})" if row["column"] is not None else ""
    return f"{row['file']}{line}: {row['reason']}{cell}"


class Reason(StrEnum):
    """Reasons for which a row cannot be used."""

    COLUMNS = "wrong column count"
    UTF8 = "invalid UTF-8"
    LABEL = "label other than 0 or 1"
    INTEGER = "not an integer"
    NUMBER = "not a number"
    TEXT = "not a text"
    TIME = "not a time"
    VALUES = "not a list of values"
    LENGTH = "wrong size of vector"
    WEIGHT = "weight below 0 or not a number"
    WEIGHTS = "not one weight of at least 0 for each value"
    QUOTE = "unclosed double quote"
    JSON = "not a JSON object"
    CARRIAGE_RETURN = "carriage return inside the row"
    KEY = "no value in a required column"
    LIST = "not (user,item) and its negatives"
    SCORE = "values so large that the score is not a number"
    NO_LABEL = "no label"
    HEADER = "header repeated"


def describe_reasons(counts: Mapping[str, int]) -> str:
    """List how many rows are bad for each reason, the most frequent first: "not a number: 12, invalid UTF-8: 3"."""
    return ", ".join(f"{reason}: {rows:,}" for reason, rows in Counter(counts).most_common())


def describe_others(counts: Mapping[str, int]) -> str:
    """Say which columns are not read, as only rows have them that were not looked at when the files were opened."""
    most = Counter(counts).most_common()
    names = ", ".join(f"'{name}' ({rows:,} {'row' if rows == 1 else 'rows'})" for name, rows in most[:_MOST_NAMED])
    more = f" and {len(most) - _MOST_NAMED:,} more" if len(most) > _MOST_NAMED else ""
    return (
        f"columns that begin late in the files and are not read: {names}{more}; to read one, give before them a file "
        "whose first row has it; else list it in source.ignore"
    )


LEFT_OUT = frozenset({Reason.NO_LABEL, Reason.HEADER})
"""Reasons of lines that are left out though nothing is wrong with them: they do not count as bad rows."""


class Rejected(NamedTuple):
    """A row that cannot be used."""

    reason: Reason
    text: bytes
    """The line, without the newline."""
    cell: Cell | None = None
    """The bad value; None if the line is wrong as a whole."""


@dataclass(frozen=True)
class ParsedLines:
    """The good rows of a block of lines, and the bad ones with the reason."""

    rows: pa.RecordBatch
    """The good rows, in order: the label (float32) if there is one, then the raw columns, null if missing."""
    positions: NDArray[np.int64]
    """For each good row, its line in the block, from 0."""
    num_lines: int
    rejected: Mapping[int, Rejected]
    """The bad rows by line in the block, from 0, ascending."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Rows that have a value of each column that no one knew when the file was opened."""


@dataclass(frozen=True)
class RawBlock:
    """Some rows of a chunk, and those among them that could not be used."""

    rows: pa.RecordBatch
    """Raw columns, the label (float32) first if the file has one."""
    lines: NDArray[np.int64]
    """Line of each row in the chunk, from 1."""
    num_lines: int
    """Lines of the block, good and bad."""
    rejected: pa.Table
    """Bad rows with the columns of `REJECTED_SCHEMA`; lines count from the chunk's first."""
    others: Mapping[str, int] = field(default_factory=dict)
    """As `ParsedLines.others`."""

    def head(self, most: int) -> "RawBlock":
        """Return the block of its first `most` rows, good and bad; other lines, such as the header, do not count."""
        lines = np.sort(np.concatenate([self.lines, self.rejected["line"].to_numpy()]))
        if len(lines) <= most:
            return self
        good = int(np.searchsorted(self.lines, lines[most]))
        rejected = self.rejected.slice(0, most - good)
        return RawBlock(self.rows.slice(0, good), self.lines[:good], most, rejected)


def blocks_of(chunk: Chunk, parsed: Iterable[ParsedLines]) -> Iterator[RawBlock]:
    """Return the blocks of a chunk, from what a parser made of each."""
    start = 1
    for lines in parsed:
        rejected = [
            {
                "file": chunk.file.name,
                "line": start + line,
                "reason": str(row.reason),
                "column": row.cell and row.cell[0],
                "value": row.cell and row.cell[1][:MAX_TEXT],
                "text": row.text.decode("utf-8", "backslashreplace")[:MAX_TEXT],
            }
            for line, row in lines.rejected.items()
        ]
        table = pa.Table.from_pylist(rejected, schema=REJECTED_SCHEMA)
        yield RawBlock(lines.rows, lines.positions + start, lines.num_lines, table, lines.others)
        start += lines.num_lines


class RowReader(Protocol):
    """Reads chunks of raw files into rows of one schema."""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the rows; with the label if some files have one."""

    @property
    def dictionaries(self) -> tuple[str, ...]:
        """Columns whose values repeat."""

    def read(self, chunk: Chunk) -> Iterator[RawBlock]:
        """Yield the blocks of a chunk, a few megabytes each; line numbers count from the chunk's first line."""


class ExampleReader(RowReader, Protocol):
    """Reads chunks of files whose rows are examples, with or without a label."""

    @property
    def label(self) -> str:
        """Name of the label's column."""

    @property
    def file_columns(self) -> Sequence[str]:
        """Return the names of all columns of the files; empty if they play no part."""

    @property
    def warnings(self) -> Sequence[str]:
        """Return what a person should know of the files."""
