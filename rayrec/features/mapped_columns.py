"""Columns of record batches that are mapped into memory, as NumPy arrays over it, and what is gathered from them."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, gathered for n rows."""

    values: NDArray
    """(n,); any number if not valid."""
    valid: NDArray[np.bool_]
    """(n,) false if the row is unknown or holds null."""

    def of(self, rows: NDArray[np.int64]) -> "Numbers":
        """Return the numbers of some of the rows (k,), repeated as these are."""
        return Numbers(self.values[rows], self.valid[rows])


@dataclass(frozen=True)
class Lists:
    """A column of lists, gathered for n rows one after the other; the lists of unknown rows are empty."""

    lengths: NDArray[np.int64]
    """(n,)"""
    fields: dict[str, NDArray]
    """Elements of all lists, by field; lists without fields have one under the empty name."""

    @property
    def owner(self) -> NDArray[np.int64]:
        """For each element the row that it belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def field(self, name: str = "", dtype: type = np.int64) -> NDArray:
        """Return a field of the elements; an empty array of `dtype` if there are no elements."""
        return self.fields.get(name, np.empty(0, dtype))


@dataclass(frozen=True)
class Ranges:
    """The lists of some rows as they lie in one batch: too long to be gathered."""

    asked: NDArray[np.int64]
    """(k,) positions of these rows in what was asked."""
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    fields: dict[str, NDArray]
    """All elements of the batch, by field; row i has elements start[i] ... stop[i] - 1."""


class MappedBatch:
    """A record batch as NumPy arrays over its mapped memory."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._numbers: dict[str, tuple[NDArray, NDArray[np.bool_] | None]] = {}
        self._lists: dict[str, tuple[NDArray[np.int32], dict[str, NDArray]]] = {}

    def numbers(self, name: str) -> tuple[NDArray, NDArray[np.bool_] | None]:
        """Return the values and, if there are nulls, which values are valid."""
        if name not in self._numbers:
            self._numbers[name] = _as_numpy(self.batch.column(name))
        return self._numbers[name]

    def lists(self, name: str) -> tuple[NDArray[np.int32], dict[str, NDArray]]:
        """Return the offsets, and the elements by field."""
        if name not in self._lists:
            column = self.batch.column(name)
            elements = column.values
            names = [field.name for field in elements.type] if pa.types.is_struct(elements.type) else []
            fields = {field: _as_numpy(elements.field(field))[0] for field in names} or {"": _as_numpy(elements)[0]}
            self._lists[name] = column.offsets.to_numpy(), fields
        return self._lists[name]


def _as_numpy(column: pa.Array) -> tuple[NDArray, NDArray[np.bool_] | None]:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy(zero_copy_only=False), None
    if column.null_count == 0:
        return column.to_numpy(), None
    dtype = np.dtype(column.type.to_pandas_dtype())
    values = np.frombuffer(column.buffers()[1], dtype, len(column), offset=column.offset * dtype.itemsize)
    return values, column.is_valid().to_numpy(zero_copy_only=False)


def search_ranges(
    values: NDArray[np.int64], start: NDArray[np.int64], stop: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Search k wanted values, each in its own range of ascending `values`: the place of each, and if it is there."""
    low, high = start.copy(), stop.copy()
    if not len(values) or not len(wanted):
        return low, np.zeros(len(wanted), bool)
    for _ in range(int((stop - start).max(initial=0)).bit_length()):
        middle = (low + high) >> 1
        is_open = low < high
        is_less = is_open & (values[np.minimum(middle, len(values) - 1)] < wanted)
        low = np.where(is_less, middle + 1, low)
        high = np.where(is_open & ~is_less, middle, high)
    is_there = (low < stop) & (values[np.minimum(low, len(values) - 1)] == wanted)
    return low, is_there
