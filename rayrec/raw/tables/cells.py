"""Rows as a file holds them, and their values read as the types of raw columns."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import LabelCondition
from rayrec.features.lists import wrong_lists
from rayrec.features.raw_values import Unreadable, read_column
from rayrec.features.schema import ListLength, RawColumn
from rayrec.raw.blocks import Cell, ParsedLines, Reason

Values: TypeAlias = pa.Array | list[Any]
"""The values of a column; a list of Python's if their types differ."""

_LABELS = ("0", "1", "0.0", "1.0", "false", "true", "False", "True", "FALSE", "TRUE")
"""Texts of labels, 0 and 1 in turn."""
_REASONS = {"number": Reason.NUMBER, "integer": Reason.INTEGER, "text": Reason.TEXT, "time": Reason.TIME}


@dataclass(frozen=True)
class Cells:
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


@dataclass(frozen=True)
class RowTypes:
    """What is read of each row."""

    columns: tuple[RawColumn, ...]
    label: str | LabelCondition | None = None
    weight: str | None = None
    """One of `columns`, whose values must be numbers from 0 on."""
    required: frozenset[str] = frozenset()
    """Those of `columns` whose values must not be missing."""
    list_lengths: tuple[ListLength, ...] = ()
    """How long lists of numbers must be; those of other columns play no part."""

    @property
    def label_column(self) -> str | None:
        return self.label.column if isinstance(self.label, LabelCondition) else self.label

    @property
    def schema(self) -> pa.Schema:
        """The label (float32) if there is one, then the columns."""
        label = [] if self.label_column is None else [(self.label_column, pa.float32())]
        return pa.schema([*label, *((raw.name, raw.arrow) for raw in self.columns)])

    @property
    def wanted(self) -> dict[str, RawColumn | None]:
        """The columns to read from a file, with their types; None reads a column as the file holds it."""
        label: dict[str, RawColumn | None] = {} if self.label_column is None else {self.label_column: None}
        return label | {raw.name: raw for raw in self.columns}

    def parse(self, cells: Cells) -> ParsedLines:
        """The rows with typed values; a row with a value that cannot be read is set aside."""
        is_good = np.ones(len(cells.positions), bool)
        reasons = dict(cells.bad_lines)
        bad_cells: dict[int, Cell] = {}
        columns: list[pa.Array] = []

        def reject(name: str, rows: NDArray[np.bool_], reason: Reason) -> None:
            for row in np.flatnonzero(rows & is_good).tolist():
                line = int(cells.positions[row])
                reasons[line], bad_cells[line] = reason, (name, _shown(cells.columns[name], row))
            is_good[rows] = False

        if self.label is not None:
            label, wrong, reason = self._read_label(cells)
            assert self.label_column is not None
            columns.append(label)
            reject(self.label_column, wrong, reason)
            if isinstance(self.label, LabelCondition):
                reject(self.label_column, label.is_null().to_numpy(zero_copy_only=False), Reason.KEY)
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
        bad = sorted(reasons)
        return ParsedLines(
            rows=rows,
            positions=positions,
            num_lines=cells.num_lines,
            rejected_positions=np.array(bad, np.int64),
            rejected_reasons=[reasons[line] for line in bad],
            rejected_texts=[cells.text(line) for line in bad],
            rejected_cells=bad_cells,
        )

    def _read_label(self, cells: Cells) -> tuple[pa.FloatArray, Unreadable, Reason]:
        """The labels, which of them cannot be read, and why."""
        assert self.label is not None and self.label_column is not None
        values = cells.columns.get(self.label_column, pa.nulls(len(cells.positions)))
        if isinstance(self.label, str):
            return *_by_type(values, pa.float32(), _labels), Reason.LABEL
        kind = "text" if self.label.at_least is None else "number"
        found, wrong = read_values(values, RawColumn(name=self.label_column, type=kind))
        if self.label.equals is not None:
            # A value that is no text, such as a number with a fraction, does not equal one.
            holds = pc.is_in(found, value_set=pa.array(self.label.equals, pa.string()))
            holds, wrong = pc.if_else(pc.or_(found.is_valid(), pa.array(wrong)), holds, None), np.zeros_like(wrong)
        else:
            holds = pc.if_else(pc.is_nan(found), None, pc.greater_equal(found, self.label.at_least))
        return holds.cast(pa.float32()), wrong, _REASONS[kind]


def read_values(values: Values, raw: RawColumn) -> tuple[pa.Array, Unreadable]:
    """As `rayrec.features.raw_values.read_column`; of a list, values of types that cannot be read are unreadable."""
    if isinstance(values, pa.Array):
        return read_column(values, raw)
    return _by_type(values, raw.arrow, lambda column: read_column(column, raw))


def _by_type(
    values: Values, kind: pa.DataType, read: Callable[[pa.Array], tuple[pa.Array, Unreadable]]
) -> tuple[pa.Array, Unreadable]:
    """What `read` makes of an array, or of a list of values, those of each type apart."""
    if isinstance(values, pa.Array):
        return read(values)
    rows_of_type: dict[object, list[int]] = {}
    for row, value in enumerate(values):
        rows_of_type.setdefault(_type_of(value), []).append(row)
    unreadable = np.zeros(len(values), bool)
    parts = []
    for rows in rows_of_type.values():
        try:
            part, wrong = read(pa.array([values[row] for row in rows]))
        except (UserError, pa.ArrowException):
            part = pa.nulls(len(rows), kind)
            wrong = np.array([values[row] is not None for row in rows])
        parts.append(part)
        unreadable[rows] = wrong
    order = np.argsort([row for rows in rows_of_type.values() for row in rows])
    return pa.concat_arrays(parts or [pa.nulls(0, kind)]).take(pa.array(order)), unreadable


def _type_of(value: Any) -> object:
    """Something that is equal for values that can stand in one array."""
    if isinstance(value, list):
        return frozenset({_type_of(item) for item in value} - {type(None)})
    return type(value)


def _labels(column: pa.Array) -> tuple[pa.FloatArray, Unreadable]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        number = pc.index_in(column.cast(pa.string()), value_set=pa.array(_LABELS))
        number = number.fill_null(-1).to_numpy(zero_copy_only=False)
        return pa.array((number % 2).astype(np.float32)), number < 0
    values, _ = read_column(column, RawColumn(name="label", type="number"))
    numbers = values.fill_null(np.nan).to_numpy(zero_copy_only=False)
    is_good = (numbers == 0) | (numbers == 1)
    return pa.array(np.where(is_good, numbers, 0).astype(np.float32)), ~is_good


def _shown(values: Values, row: int) -> str:
    value = values[row]
    value = value.as_py() if isinstance(value, pa.Scalar) else value
    return "" if value is None else as_text(value)


def as_text(value: Any) -> str:
    """A value as a person reads it; lists, objects and booleans as JSON."""
    if isinstance(value, (bool, list, dict)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)
