"""A few raw rows of each held-out split, as a request would send them: `held_out_rows.json` of a dataset folder."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from rayrec.config import Config
from rayrec.features.raw_columns import RawColumn
from rayrec.store.files import write_json

HELD_OUT_ROWS_FILE = "held_out_rows.json"
MOST_LOOKED_AT = 4096
"""Rows of a split, the first ones, that the kept rows are taken from and whose ranges are noted."""
_ROWS = 8
_MOST_TEXT = 1_000
"""Characters of a row's texts; a longer row is left out, as nobody could read it in a form."""
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class HeldOutRows(Config):
    """Rows of one split."""

    split: str
    rows: tuple[dict[str, Any], ...]
    """Raw values by column; a missing value is left out."""
    labels: tuple[float | None, ...]
    """The label of each row; None if it is not known."""
    looked_at: int
    """Rows that `ranges` are those of."""
    ranges: dict[str, tuple[float, float]]
    """The least and the largest value of each column of numbers that has one."""
    trained_on: bool = False
    """Whether the model was trained on these rows, after its recipe was measured on them."""


def held_out_rows(split: str, rows: pa.Table, columns: Sequence[RawColumn], label: str) -> HeldOutRows:
    """Choose rows from all over `rows`, which have the raw `columns` and `label`, always the same ones."""
    chosen = [place * rows.num_rows // _ROWS for place in range(_ROWS)] if rows.num_rows > _ROWS else None
    kept = rows if chosen is None else rows.take(pa.array(chosen))
    raw = {column.name: [_written(value, column) for value in kept[column.name].to_pylist()] for column in columns}
    # A split without labels has NaN.
    labels = [None if value is None or value != value else value for value in kept[label].to_pylist()]
    given = [
        ({name: values[place] for name, values in raw.items() if values[place] is not None}, labels[place])
        for place in range(kept.num_rows)
    ]
    given = [(row, of_row) for row, of_row in given if sum(len(str(value)) for value in row.values()) <= _MOST_TEXT]
    ranges = {}
    for column in columns:
        if column.type == "number":
            finite = pc.filter(rows[column.name], pc.is_finite(rows[column.name]))
            least, largest = pc.min_max(finite).as_py().values()
            if least is not None:
                ranges[column.name] = (least, largest)
    return HeldOutRows(
        split=split,
        rows=tuple(row for row, _ in given),
        labels=tuple(of_row for _, of_row in given),
        looked_at=rows.num_rows,
        ranges=ranges,
    )


def write_held_out_rows(dataset: Path, splits: Mapping[str, HeldOutRows]) -> None:
    """Write the rows by split into the folder of a dataset."""
    write_json(dataset / HELD_OUT_ROWS_FILE, {name: rows.model_dump(mode="json") for name, rows in splits.items()})


def read_held_out_rows(dataset: Path) -> dict[str, HeldOutRows]:
    """Read the rows of a dataset by split; empty if it was made without."""
    path = dataset / HELD_OUT_ROWS_FILE
    return TypeAdapter(dict[str, HeldOutRows]).validate_json(path.read_bytes()) if path.exists() else {}


def _written(value: Any, column: RawColumn) -> Any:
    """Return a raw value as a request gives it: a whole number without a point, a time in the column's format."""
    match value:
        case list():
            return [_written(one, column) for one in value]
        case float():
            return int(value) if value.is_integer() and abs(value) < 2**53 else value if isfinite(value) else None
        case datetime():
            return _time(value, column)
    return value


def _time(value: datetime, column: RawColumn) -> str | int:
    if column.time_format in _PER_SECOND:
        since_1970 = value - datetime(1970, 1, 1, tzinfo=UTC)
        micros = (since_1970.days * 86_400 + since_1970.seconds) * 1_000_000 + since_1970.microseconds
        return micros * _PER_SECOND[column.time_format] // 1_000_000
    if column.time_format == "iso":
        return value.isoformat()
    return value.astimezone(ZoneInfo(column.zone)).strftime(column.time_format)
