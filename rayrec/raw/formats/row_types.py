"""Rows as a file holds them, and their values read as the types of raw columns."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import FileFormat, LabelCondition
from rayrec.features.lists import wrong_lists
from rayrec.features.raw_columns import ListLength, RawColumn
from rayrec.features.raw_values import Unreadable, Values, read_by_type, read_column, read_values
from rayrec.raw.blocks import Cell, ParsedLines, Reason, Rejected

LABEL_WORDS = ("false", "true", "no", "yes", "f", "t", "n", "y")
"""Words of labels, for 0 and 1 in turn; blanks around them and their case play no part."""
_LABEL = RawColumn(name="label", type="number")
_REASONS = {"number": Reason.NUMBER, "integer": Reason.INTEGER, "text": Reason.TEXT, "time": Reason.TIME}


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
    label_reads: RawColumn = _LABEL
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
            columns.append(self._label_or_null(cells))
        elif self.label is not None:
            assert self.label_column is not None
            held = cells.columns.get(self.label_column, pa.nulls(len(is_good)))
            label, wrong, reason = read_labels(held, self.label, self.label_reads)
            columns.append(label)
            reject(self.label_column, wrong, reason)
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

    def _label_or_null(self, cells: RawCells) -> pa.FloatArray:
        """Return the labels, null where there is none that can be read."""
        assert self.label is not None and self.label_column is not None
        held = cells.columns.get(self.label_column, pa.nulls(len(cells.positions)))
        try:
            label, wrong, _ = read_labels(held, self.label, self.label_reads)
        except UserError:  # a column of a type that no label has
            return pa.nulls(len(cells.positions), pa.float32())
        return pc.if_else(pa.array(wrong), None, label)


def label_column(files: FileFormat) -> RawColumn:
    """Return how the label of such files is read where it holds numbers."""
    return _LABEL.model_copy(update={"null_values": files.null_words, "number_format": files.number_format})


def read_labels(
    values: Values, label: str | LabelCondition, number: RawColumn = _LABEL
) -> tuple[pa.FloatArray, Unreadable, Reason]:
    """Return (n,) the labels of the `values` of the label's column, null if missing; which cannot be read, and why.

    `number` says how the column is read where it holds numbers.
    """
    condition = label if isinstance(label, LabelCondition) else None
    text = number.model_copy(update={"type": "text", "form": "number"})
    reason = Reason.LABEL
    if condition is not None and condition.equals is not None:
        found, no_text = read_values(values, text)
        # A value that is no text, such as a list, does not equal one.
        wanted, _ = read_column(pa.array(condition.equals), text.model_copy(update={"null_values": ()}))
        holds = pc.is_in(found, value_set=wanted)
        labels, wrong = pc.if_else(pc.or_(found.is_valid(), pa.array(no_text)), holds, None), np.zeros_like(no_text)
    elif condition is not None and condition.at_least is not None:
        found, wrong = read_values(values, number)
        is_there = pc.invert(pc.is_nan(found))
        labels, reason = pc.if_else(is_there, pc.greater_equal(found, condition.at_least), None), Reason.NUMBER
    else:
        labels, wrong = read_by_type(values, pa.float32(), lambda column: _labels(column, number, text))
    labels = labels.cast(pa.float32())
    if condition is not None and condition.missing is not None:
        labels = labels.fill_null(float(condition.missing))
    return labels, wrong, reason


def _labels(column: pa.Array, number: RawColumn, text: RawColumn) -> tuple[pa.FloatArray, Unreadable]:
    """Read labels: the numbers 0 and 1, booleans, or words for them; null if missing."""
    found, wrong = read_column(column, number)
    if wrong.any():
        words, _ = read_column(column, text)
        place = pc.index_in(pc.utf8_lower(words), value_set=pa.array(LABEL_WORDS))
        found = pc.coalesce(found, pc.bit_wise_and(place, 1).cast(pa.float64()))
        wrong = wrong & place.is_null().to_numpy(zero_copy_only=False)
    numbers = found.fill_null(np.nan).to_numpy(zero_copy_only=False)
    is_label = (numbers == 0) | (numbers == 1)
    return pa.array(numbers.astype(np.float32), mask=~is_label), (wrong | ~np.isnan(numbers)) & ~is_label


def shown(values: Values, row: int) -> str:
    """Return a value as a person reads it, empty if it is missing."""
    value = values[row]
    value = as_python(value) if isinstance(value, pa.Scalar) else value
    return "" if value is None else as_text(value)


def as_python(value: pa.Scalar) -> Any:
    """Return a value as Python's; as text if Python has none, such as a time after the year 9999."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return str(value.cast(pa.string()))


def as_text(value: Any) -> str:
    """Return a value as a person reads it; lists, objects and booleans as JSON."""
    if isinstance(value, (bool, list, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
