"""Rows as a file holds them, and their values read as the types of raw columns."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import LabelCondition
from rayrec.features.lists import wrong_lists
from rayrec.features.raw_values import Unreadable, Values, read_by_type, read_column, read_values
from rayrec.features.schema import ListLength, RawColumn
from rayrec.features.text_forms import in_form
from rayrec.raw.blocks import Cell, ParsedLines, Reason

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
    needs_label: bool = True
    """Whether a row without a label that can be read is bad; otherwise its label is null."""

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

        if self.label is not None and not self.needs_label:
            columns.append(self._label_or_null(cells))
        elif self.label is not None:
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

    def _label_or_null(self, cells: Cells) -> pa.FloatArray:
        """The labels, null where there is none that can be read."""
        try:
            label, wrong, _ = self._read_label(cells)
        except UserError:  # a column of a type that no label has
            return pa.nulls(len(cells.positions), pa.float32())
        return pc.if_else(pa.array(wrong), None, label)

    def _read_label(self, cells: Cells) -> tuple[pa.FloatArray, Unreadable, Reason]:
        """The labels, which of them cannot be read, and why."""
        assert self.label is not None and self.label_column is not None
        values = cells.columns.get(self.label_column, pa.nulls(len(cells.positions)))
        if isinstance(self.label, str):
            return *read_by_type(values, pa.float32(), _labels), Reason.LABEL
        kind = "text" if self.label.at_least is None else "number"
        found, wrong = read_values(values, RawColumn(name=self.label_column, type=kind, form="number"))
        if self.label.equals is not None:
            # A value that is no text, such as a list, does not equal one.
            holds = pc.is_in(found, value_set=in_form(pa.array(self.label.equals, pa.string()), "number"))
            holds, wrong = pc.if_else(pc.or_(found.is_valid(), pa.array(wrong)), holds, None), np.zeros_like(wrong)
        else:
            holds = pc.if_else(pc.is_nan(found), None, pc.greater_equal(found, self.label.at_least))
        return holds.cast(pa.float32()), wrong, _REASONS[kind]


def _labels(column: pa.Array) -> tuple[pa.FloatArray, Unreadable]:
    """Read labels: the numbers 0 and 1, or booleans."""
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
