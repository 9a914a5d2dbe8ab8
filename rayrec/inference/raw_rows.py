"""Raw rows from outside (JSON objects, data frames, Arrow) checked and brought into the columns that the encoder reads.

A feature that a row does not name, or whose value is null, is missing there. Names that the schema does not know and
values of another type are errors that name the row (from 0) and the field.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from itertools import chain
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError, did_you_mean
from rayrec.features.lists import wrong_lists
from rayrec.features.raw_values import needs, read_column
from rayrec.features.schema import ListLength, RawColumn, Schema

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_OR_NULL = ", or null if it is missing"
_PLAIN = {
    kind: frozenset({*types, type(None)})
    for kind, types in {"number": (int, float), "text": (str,), "integer": (int,)}.items()
}
"""Python types that Arrow converts without guessing (it would make 1.0 of True, and a list of "ab")."""


class RawRows:
    """Checks raw rows against one schema."""

    def __init__(self, schema: Schema) -> None:
        self._not_features = frozenset(schema.other_columns)
        self._raw = {column.name: column for column in schema.raw_columns}
        self._list_lengths = schema.list_lengths
        self._alike = {
            kind: names
            for kind in _PLAIN
            if (names := [column.name for column in schema.raw_columns if column.type == kind])
        }
        self.columns = pa.schema([(column.name, column.arrow) for column in schema.raw_columns])
        """The Arrow columns that it makes: those of `FeatureEncoder.raw_schema`."""
        self._known = frozenset(self._raw)

    def from_rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Rows as mappings of feature names to values. Raises UserError naming row and field.

        Values are those of JSON. Texts may be given as integers, times as texts or numbers in the column's format (or
        as `datetime`), lists as texts where the column has a separator.
        """
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UserError(f"row {index}: {_shown(row)}; a row is an object of feature names and values")
            if not row.keys() <= self._known:
                unknown = next(name for name in row if name not in self._known)
                raise UserError(f"row {index}: {self.unknown(unknown)}")
        together = self._plain_together(rows)
        return self.checked(
            [
                together[name] if name in together else self.from_values(name, [row.get(name) for row in rows])
                for name in self._raw
            ]
        )

    def _plain_together(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """Columns by name. Those of one type are converted in one call, unless one of their values may be wrong.

        A call for each column would take most of the time of a request of a few rows.
        """
        columns: dict[str, pa.Array] = {}
        for names in self._alike.values():
            together = _plain(self._raw[names[0]], [row.get(name) for name in names for row in rows])
            if together is not None:
                columns |= {name: together.slice(place * len(rows), len(rows)) for place, name in enumerate(names)}
        return columns

    def from_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Arrow columns named as the features; absent columns are missing in every row. Raises UserError.

        Columns are read as those of files are (`read_column`), so that texts may hold numbers, for one.
        """
        self.require_features(batch.schema.names)
        by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns = []
        for name, raw in self._raw.items():
            given = by_name.get(name)
            if given is None:
                columns.append(pa.nulls(batch.num_rows, raw.arrow))
                continue
            column, unreadable = read_column(given, raw)
            if unreadable.any():
                row = int(unreadable.argmax())
                raise UserError(f"row {row}, '{name}': {_shown(given[row].as_py())}; needs {needs(raw)}{_OR_NULL}")
            columns.append(column)
        return self.checked(columns)

    def require_features(self, names: Sequence[str]) -> None:
        """Raise UserError if a column's name is not that of a feature, or is given twice."""
        for name, count in Counter(names).items():
            if name not in self._known:
                raise UserError(self.unknown(name))
            if count > 1:
                raise UserError(f"column '{name}': given {count} times")

    def from_values(self, name: str, values: list[Any]) -> pa.Array:
        """The column of one known feature, from a value a row, as `from_rows` reads them. Raises UserError."""
        return _column(self._raw[name], values)

    def unknown(self, name: Any) -> str:
        """The error message for a name that is not a feature."""
        if name in self._not_features:
            return f"'{name}' is not a feature (the model does not read it); leave it out"
        return f"unknown feature '{str(name)[:100]}'; {did_you_mean(str(name), self.columns.names, 'features:')}"

    def checked(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """The columns as a batch, if vectors are as long as they must be and values have weights. Raises UserError."""
        by_name = dict(zip(self._raw, columns, strict=True))
        for needed in self._list_lengths:
            wrong = wrong_lists(needed, by_name)
            if wrong.any():
                row = int(wrong.argmax())
                raise UserError(f"row {row}, '{needed.column}': {_wrong_list(needed, by_name, row)}")
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)


def _wrong_list(needed: ListLength, columns: Mapping[str, pa.Array], row: int) -> str:
    """What is wrong with a list of numbers, and what is needed."""
    numbers = columns[needed.column][row].as_py()
    if isinstance(needed.length, int):
        return f"a list of {len(numbers)} numbers; needs {needed.length}{_OR_NULL}"
    values = columns[needed.length][row].as_py() or []
    if len(numbers) != len(values):
        return (
            f"a list of {len(numbers)} weights; '{needed.length}' has {len(values)} values; give one for each, or null "
            "if all weigh the same"
        )
    wrong = next(number for number in numbers if number is None or not 0 <= number <= _FLOAT32_MAX)
    return f"the weight {'null' if wrong is None else wrong}; needs a number from 0 on for each value"


def _column(raw: RawColumn, values: list[Any]) -> pa.Array:
    """The values of one column as Arrow; they are checked one by one only if some may be wrong."""
    column = _plain(raw, values)
    if column is not None:
        return column
    if raw.type == "time":
        return _times(raw, values)
    checked = [_checked(raw, f"row {index}, '{raw.name}'", value) for index, value in enumerate(values)]
    return pa.array(checked, raw.arrow)


def _plain(raw: RawColumn, values: list[Any]) -> pa.Array | None:
    """The values as Arrow; None if some may be wrong."""
    if _are_plain(raw, values):
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
            column = pa.array(values, raw.arrow)
            if raw.type not in {"number", "numbers"} or _in_range(column):
                return column
    return None


def _are_plain(raw: RawColumn, values: list[Any]) -> bool:
    types = set(map(type, values))
    if raw.type in _PLAIN:
        return types <= _PLAIN[raw.type]
    of = _PLAIN.get(raw.type.removesuffix("s"))
    return of is not None and types <= {list, type(None)} and set(map(type, chain(*filter(None, values)))) <= of


def _in_range(column: pa.Array) -> bool:
    numbers = (column.flatten() if pa.types.is_list(column.type) else column).drop_null().to_numpy()
    return bool((np.abs(numbers) <= _FLOAT32_MAX).all())


def _times(raw: RawColumn, values: list[Any]) -> pa.Array:
    types = set(map(type, values)) - {type(None)}
    if types <= {str} or types <= {int}:
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
            column, unreadable = read_column(pa.array(values), raw)
            if not unreadable.any():
                return column
    times = [_time(raw, f"row {index}, '{raw.name}'", value) for index, value in enumerate(values)]
    return pa.concat_arrays(times) if times else pa.nulls(0, raw.arrow)


def _time(raw: RawColumn, where: str, value: Any) -> pa.Array:
    """The array of one time. Raises UserError that begins with `where`."""
    if value is None or (isinstance(value, str | Real | date) and not isinstance(value, bool)):
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeEncodeError, UserError):
            column, unreadable = read_column(pa.array([value]), raw)
            if not unreadable[0] and (column[0].is_valid or value in {None, ""}):
                return column
    raise UserError(f"{where}: {_shown(value)}; needs {needs(raw)}{_OR_NULL}")


def _checked(raw: RawColumn, where: str, value: Any) -> Any:
    """`value` as the column takes it. Raises UserError that begins with `where`."""
    if value is None:
        return None
    if raw.type == "number":
        return _checked_number(where, value)
    if raw.type in {"text", "integer"}:
        return checked_category(where, value, raw.type == "text")
    if isinstance(value, str) and raw.separator is not None:
        return _split(raw, where, value)
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{where}: {_shown(value)}; needs a list of values{_OR_NULL}")
    of = raw.model_copy(update={"type": raw.type.removesuffix("s")})
    return [_checked(of, where, item) for item in value]


def _split(raw: RawColumn, where: str, value: str) -> list[Any] | None:
    with contextlib.suppress(UnicodeEncodeError):
        column, unreadable = read_column(pa.array([value], pa.string()), raw)
        if not unreadable[0] and (raw.type != "numbers" or _in_range(column)):
            values: list[Any] | None = column[0].as_py()
            return values
    raise UserError(f"{where}: {_shown(value)}; needs {needs(raw)}{_OR_NULL}")


def _checked_number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{where}: {_shown(value)}; needs a number{_OR_NULL}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        raise UserError(f"{where}: NaN; needs a number{_OR_NULL}")
    if abs(number) > _FLOAT32_MAX:
        raise UserError(f"{where}: {_shown(value)} is out of range; numbers go up to {_FLOAT32_MAX:.3g}")
    return number


def checked_category(where: str, value: Any, takes_strings: bool, or_null: str = _OR_NULL) -> str | int:
    """`value` as a column of strings or of int64 takes it. Raises UserError that begins with `where`."""
    if takes_strings:
        if isinstance(value, Integral) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**64:
            return str(int(value))
        if not isinstance(value, str):
            written = str(value).lower() if isinstance(value, bool) else value
            quoted = f' (write "{written}")' if isinstance(value, Real) and _is_short(value) else ""
            raise UserError(f"{where}: {_shown(value)}; needs a string{quoted}{or_null}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"{where}: {_shown(value)} is not valid Unicode; needs text{or_null}") from None
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or not -(2**63) <= int(value) < 2**63:
        raise UserError(f"{where}: {_shown(value)}; needs an integer id{or_null}")
    return int(value)


def _is_short(value: Real) -> bool:
    """Whether a number can be shown; an integer of thousands of digits cannot even be printed."""
    return not isinstance(value, int) or value.bit_length() <= 128


def _shown(value: Any) -> str:
    """Describe a value in the terms of JSON, cut to a readable length."""
    match value:
        case None:
            return "null"
        case bool():
            return f"{str(value).lower()} (a boolean)"
        case str():
            return f"the string {value[:40]!a}"
        case Mapping():
            return "an object"
        case Sequence():
            return "a list"
        case Real():
            return f"the number {value}" if _is_short(value) else "an integer of more than 38 digits"
    return f"a value of type {type(value).__name__}"
