"""Raw rows from outside (JSON objects, data frames, Arrow) checked and brought into the columns that the encoder reads.

A feature that a row does not name, or whose value is null, is missing there. Names that the schema does not know and
values of another type are errors that name the row (from 0) and the field.
"""

import contextlib
import difflib
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_NUMBERS, _STRINGS, _INTEGERS = (frozenset({*types, type(None)}) for types in ((int, float), (str,), (int,)))


class RawRows:
    """Checks raw rows against one schema.

    `columns` are the Arrow columns that it makes, `FeatureEncoder.raw_schema`: float64 for numbers, string for
    categories (int64 for those that come as ids, having no vocabulary or hashing them), a list of these for multi-hot
    features.
    """

    def __init__(self, schema: Schema, columns: pa.Schema) -> None:
        self._not_features = frozenset(schema.other_columns)
        self.columns = columns
        self._known = frozenset(columns.names)

    def from_rows(self, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Rows as mappings of feature names to values. Raises UserError naming row and field."""
        for index, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise UserError(f"row {index}: {_shown(row)}; a row is an object of feature names and values")
            if not row.keys() <= self._known:
                unknown = next(name for name in row if name not in self._known)
                raise UserError(f"row {index}: {self.unknown(unknown)}")
        columns = [_column(field, [row.get(field.name) for row in rows]) for field in self.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.columns)

    def from_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Arrow columns named as the features; absent columns are missing in every row. Raises UserError."""
        for name in batch.schema.names:
            if name not in self._known:
                raise UserError(self.unknown(name))
        columns = []
        for field in self.columns:
            if field.name not in batch.schema.names:
                columns.append(pa.nulls(batch.num_rows, field.type))
                continue
            column = batch.column(field.name)
            if not _castable(column.type, field.type):
                raise UserError(f"column '{field.name}': holds {column.type}, needs {field.type}; convert it first")
            # Integers beyond 2^53 have no exact float64; the encoder rounds them, a cast refuses them.
            is_number = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
            columns.append(column if is_number else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, names=self.columns.names)

    def from_values(self, name: str, values: list[Any]) -> pa.Array:
        """The column of one known feature, from a value a row, as `from_rows` reads them. Raises UserError."""
        return _column(self.columns.field(name), values)

    def unknown(self, name: Any) -> str:
        """The error message for a name that is not a feature."""
        if name in self._not_features:
            return f"'{name}' is not a feature (the model does not read it); leave it out"
        nearest = difflib.get_close_matches(str(name), self._known, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"features: {', '.join(self.columns.names)}"
        return f"unknown feature '{str(name)[:100]}'; {hint}"


def _castable(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_null(found):
        return True
    if pa.types.is_dictionary(found):
        return _castable(found.value_type, wanted)
    if pa.types.is_floating(wanted):
        return pa.types.is_integer(found) or pa.types.is_floating(found)
    if pa.types.is_integer(wanted):
        return pa.types.is_integer(found)
    if pa.types.is_string(wanted):
        return pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)
    is_list = pa.types.is_list(found) or pa.types.is_large_list(found) or pa.types.is_fixed_size_list(found)
    return is_list and _castable(found.value_type, wanted.value_type)


def _column(field: pa.Field, values: list[Any]) -> pa.Array:
    """The values of one feature as Arrow; they are checked one by one only if some may be wrong."""
    if set(map(type, values)) <= _plain_types(field.type):
        with contextlib.suppress(pa.ArrowException, OverflowError, UnicodeEncodeError):
            column = pa.array(values, field.type)
            if not pa.types.is_floating(field.type) or _in_range(column):
                return column
    return pa.array([_checked(field, index, value) for index, value in enumerate(values)], field.type)


def _plain_types(dtype: pa.DataType) -> frozenset[type]:
    """Python types that Arrow converts to `dtype` without guessing (it would make 1.0 of True, and a list of "ab")."""
    if pa.types.is_floating(dtype):
        return _NUMBERS
    return _STRINGS if pa.types.is_string(dtype) else _INTEGERS if pa.types.is_integer(dtype) else frozenset()


def _in_range(column: pa.Array) -> bool:
    numbers = column.drop_null().to_numpy()
    return bool((np.abs(numbers) <= _FLOAT32_MAX).all())


def _checked(field: pa.Field, index: int, value: Any) -> Any:
    """`value` as the column takes it. Raises UserError naming the row and the feature."""
    where = f"row {index}, '{field.name}'"
    if value is None:
        return None
    if pa.types.is_floating(field.type):
        return _checked_number(where, value)
    if not pa.types.is_list(field.type):
        return checked_category(where, value, pa.types.is_string(field.type))
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise UserError(f"{where}: {_shown(value)}; needs a list of values, or null if it is missing")
    takes_strings = pa.types.is_string(field.type.value_type)
    return [item if item is None else checked_category(where, item, takes_strings) for item in value]


def _checked_number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{where}: {_shown(value)}; needs a number, or null if it is missing")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        raise UserError(f"{where}: NaN; needs a number, or null if it is missing")
    if abs(number) > _FLOAT32_MAX:
        raise UserError(f"{where}: {_shown(value)} is out of range; numbers go up to {_FLOAT32_MAX:.3g}")
    return number


def checked_category(
    where: str, value: Any, takes_strings: bool, or_null: str = ", or null if it is missing"
) -> str | int:
    """`value` as a column of strings or of int64 takes it. Raises UserError that begins with `where`."""
    if takes_strings:
        if not isinstance(value, str):
            quoted = f' (write "{value}")' if isinstance(value, Real) and not isinstance(value, bool) else ""
            raise UserError(f"{where}: {_shown(value)}; needs a string{quoted}{or_null}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UserError(f"{where}: {_shown(value)} is not valid Unicode; needs text{or_null}") from None
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or not -(2**63) <= int(value) < 2**63:
        raise UserError(f"{where}: {_shown(value)}; needs an integer id{or_null}")
    return int(value)


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
            # An integer of thousands of digits cannot even be printed.
            huge = isinstance(value, int) and value.bit_length() > 128
            return "an integer of more than 38 digits" if huge else f"the number {value}"
    return f"a value of type {type(value).__name__}"
