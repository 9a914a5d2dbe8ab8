"""Rows of raw files, from text to typed values; the same for every format and source.

A format's layout cuts a chunk into `RawCells`, the values as the file holds them. `RowTypes.parse` reads these as the
types of raw columns and sets bad rows aside (`ParsedLines`). `blocks_of` counts their lines from the start of the chunk
(`RawBlock`), which is what a job gets from its `RowReader`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import LabelCondition
from rayrec.features.labels import LABEL, read_labels
from rayrec.features.raw_columns import ListLength, RawColumn
from rayrec.features.raw_values import Values, read_values
from rayrec.features.transforms import wrong_lists
from rayrec.raw.input_files import Chunk

Cell = tuple[str, str]
"""The column of a value and the value, as text."""
MAX_TEXT = 10_000
"""Characters of a rejected row's text that are kept."""
_MOST_NAMED = 10
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
    EVENTS = "not a list of events"
    WEIGHT = "weight below 0 or not a number"
    WEIGHTS = "not one weight of at least 0 for each value"
    QUOTE = "unclosed double quote"
    JSON = "not a JSON object"
    CARRIAGE_RETURN = "carriage return inside the row"
    KEY = "no value in a required column"
    LIST = "not (user,item) and its negatives"
    SCORE = "values so large that the score is not a number"
    PAST = "older than what the model knows of the past"
    BROUGHT = "brings an event without a label, or one that the model knows"
    NO_LABEL = "no label"
    HEADER = "header repeated"


LEFT_OUT = frozenset({Reason.NO_LABEL, Reason.HEADER})
"""Reasons of lines that are left out though nothing is wrong with them: they do not count as bad rows."""
_REASONS = {
    "events": Reason.EVENTS,
    "number": Reason.NUMBER,
    "integer": Reason.INTEGER,
    "text": Reason.TEXT,
    "time": Reason.TIME,
}


@dataclass(frozen=True)
class RawCells:
    """Some rows of a chunk as the file holds them, before their values are read."""

    columns: Mapping[str, Values]
    """The wanted columns, of one length; a column that the file lacks may be left out."""
    positions: NDArray[np.int64]
    """For each row its line in the block, from 0, ascending."""
    num_lines: int
    bad_lines: Mapping[int, Reason]
    """The lines that are no row, and why."""
    text: Callable[[int], bytes]
    """The text of a line."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Rows that have a value of each column that no one knew when the file was opened."""


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
class RowTypes:
    """Columns and types that are read of each row."""

    columns: tuple[RawColumn, ...]
    label: str | LabelCondition | None = None
    weight: str | None = None
    """One of `columns`, whose values must be numbers from 0 on."""
    required: frozenset[str] = frozenset()
    """Columns whose values must not be missing."""
    list_lengths: tuple[ListLength, ...] = ()
    """How long lists of numbers must be; those of other columns play no part."""
    label_reads: RawColumn = LABEL
    """How the label's column is read where it holds numbers."""
    needs_label: bool = True
    """Whether a row without a label that can be read is bad; otherwise its label is null."""

    @property
    def label_column(self) -> str | None:
        return self.label.column if isinstance(self.label, LabelCondition) else self.label

    @property
    def schema(self) -> pa.Schema:
        """Label (float32) if there is one, then the columns."""
        label = [] if self.label_column is None else [(self.label_column, pa.float32())]
        return pa.schema([*label, *((raw.name, raw.arrow) for raw in self.columns)])

    @property
    def wanted(self) -> dict[str, RawColumn | None]:
        """Columns to read from a file, with their types; None reads a column as the file holds it."""
        label: dict[str, RawColumn | None] = {} if self.label_column is None else {self.label_column: None}
        return label | {raw.name: raw for raw in self.columns}

    def parse(self, cells: RawCells) -> ParsedLines:
        """Return the rows with typed values; a row with a value that cannot be read is set aside."""
        is_good = np.ones(len(cells.positions), bool)
        reasons = dict(cells.bad_lines)
        bad_cells: dict[int, Cell] = {}
        columns: list[pa.Array] = []

        def reject(name: str, rows: NDArray[np.bool_], reason: Reason) -> None:
            for row in np.flatnonzero(rows & is_good).tolist():
                line = int(cells.positions[row])
                reasons[line], bad_cells[line] = reason, (name, shown(cells.columns[name], row))
            is_good[rows] = False

        if self.label is not None and not self.needs_label:
            # Rows to score: a label that cannot be read spoils the metrics of the row, not the row.
            held = cells.columns.get(str(self.label_column), pa.nulls(len(is_good)))
            try:
                label, wrong = read_labels(held, self.label, self.label_reads)
                columns.append(pc.if_else(pa.array(wrong), None, label))
            except UserError:  # a column of a type that no label has
                columns.append(pa.nulls(len(is_good), pa.float32()))
        elif self.label is not None:
            assert self.label_column is not None
            held = cells.columns.get(self.label_column, pa.nulls(len(is_good)))
            label, wrong = read_labels(held, self.label, self.label_reads)
            columns.append(label)
            needs_number = isinstance(self.label, LabelCondition) and self.label.at_least is not None
            reject(self.label_column, wrong, Reason.NUMBER if needs_number else Reason.LABEL)
            if label.null_count:
                reject(self.label_column, label.is_null().to_numpy(zero_copy_only=False), Reason.NO_LABEL)
        for raw in self.columns:
            values, wrong = read_values(cells.columns.get(raw.name, pa.nulls(len(is_good))), raw)
            columns.append(values)
            if wrong.any():
                reject(raw.name, wrong, _REASONS.get(raw.type, Reason.VALUES))
            if raw.name in self.required:
                reject(raw.name, values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False), Reason.KEY)
            if raw.name == self.weight:
                weights = values.cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
                reject(raw.name, ~((weights >= 0) & np.isfinite(weights)), Reason.WEIGHT)

        rows = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        by_name = dict(zip(rows.schema.names, columns, strict=True))
        for needed in (needed for needed in self.list_lengths if needed.column in by_name):
            reason = Reason.LENGTH if isinstance(needed.length, int) else Reason.WEIGHTS
            reject(needed.column, wrong_lists(needed, by_name), reason)
        positions = cells.positions
        if not is_good.all():
            rows, positions = rows.filter(pa.array(is_good)), positions[is_good]
        return ParsedLines(
            rows=rows,
            positions=positions,
            num_lines=cells.num_lines,
            rejected={line: Rejected(reasons[line], cells.text(line), bad_cells.get(line)) for line in sorted(reasons)},
            others=cells.others,
        )


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


def describe_rejected(row: Mapping[str, Any]) -> str:
    """Say where and why a row of `REJECTED_SCHEMA` is bad, with the value; its line is None if it is not known."""
    line = f", line {row['line']}" if row["line"] is not None else ""
    cell = f" (column '{row['column']}': {row['value'][:100]!a})" if row["column"] is not None else ""
    return f"{row['file']}{line}: {row['reason']}{cell}"


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


def shown(values: Values, row: int) -> str:
    """Return a value as a person reads it, empty if it is missing."""
    value = values[row]
    value = as_python(value) if isinstance(value, pa.Scalar) else value
    return "" if value is None else as_text(value)


def as_text(value: Any) -> str:
    """Return a value as a person reads it; lists, objects and booleans as JSON."""
    if isinstance(value, (bool, list, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def as_python(value: pa.Scalar) -> Any:
    """Return a value as Python's; as text if Python has none, such as a time after the year 9999."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return str(value.cast(pa.string()))
