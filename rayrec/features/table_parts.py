"""The parts of look-up tables: record batches in mapped Arrow files, and what rows of them hold.

Beside the key and what belongs to it, the rows of a part have

- `hash` (int64), the hash of the key (`rayrec.features.hashes`), ascending within a record batch;
- `entry`, if the rows of a batch lie in an order of their own: the place of the row that each hash is of.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.disk_errors import unreadable
from rayrec.common.machine import MappedFile
from rayrec.store.files import new_file

HASH, ENTRY = "hash", "entry"

Rows = NDArray[np.int64]
"""(n,) rows of a table, counted from 0 over all its parts."""


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, gathered for n rows."""

    values: NDArray
    """(n,); any number if not valid."""
    valid: NDArray[np.bool_]
    """(n,) false if the row is unknown or holds null."""

    def of(self, rows: Rows) -> "Numbers":
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
        """Return for each element the row that it belongs to."""
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


class TablePart:
    """A record batch of a table: its columns, and those that are asked for as NumPy arrays over its mapped memory."""

    def __init__(self, batch: pa.RecordBatch, first_row: int) -> None:
        self.batch = batch
        self.first_row = first_row
        self.hashes: NDArray[np.int64] = batch[HASH].to_numpy()
        self.entries: NDArray[np.integer] | None = batch[ENTRY].to_numpy() if ENTRY in batch.schema.names else None
        key = next((f.name for f in batch.schema if pa.types.is_string(f.type) or pa.types.is_large_string(f.type)), "")
        self.texts: pa.Array | None = batch[key] if key else None
        """The key, in a table that is looked up by texts."""
        self._numbers: dict[str, tuple[NDArray, NDArray[np.bool_] | None]] = {}
        self._lists: dict[str, tuple[NDArray[np.int32], dict[str, NDArray]]] = {}

    def numbers(self, name: str) -> tuple[NDArray, NDArray[np.bool_] | None]:
        """Return a column's values and, if there are nulls, which values are valid."""
        if name not in self._numbers:
            self._numbers[name] = _as_numpy(self.batch[name])
        return self._numbers[name]

    def lists(self, name: str) -> tuple[NDArray[np.int32], dict[str, NDArray]]:
        """Return the offsets of a column of lists, and the elements by field."""
        if name not in self._lists:
            column = self.batch[name]
            elements = column.values
            names = [field.name for field in elements.type] if pa.types.is_struct(elements.type) else []
            fields = {field: _as_numpy(elements.field(field))[0] for field in names} or {"": _as_numpy(elements)[0]}
            self._lists[name] = column.offsets.to_numpy(), fields
        return self._lists[name]


def read_arrow(path: Path, remedy: str) -> tuple[MappedFile, list[pa.RecordBatch]]:
    """Map an Arrow IPC file; return it and its record batches.

    Raises FileNotFoundError, or UserError that ends with the `remedy` if the file is damaged.
    """
    try:
        file = MappedFile(path)
        reader = pa.ipc.open_file(pa.py_buffer(file.content))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, error, remedy) from None
    return file, batches


def write_file(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write batches as a file of the table in `folder`, whole or not at all; return the rows.

    Batches follow each other by ascending hash, and no hash is in two of them. The file is named by its first hash, so
    that the names of files that follow each other ascend. Without rows there is no file.
    """
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return 0
    path = folder / f"{first.column(HASH)[0].as_py() + 2**63:016x}.arrow"
    rows = 0
    with new_file(path) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in chain((first,), batches):
            writer.write_batch(_with_nulls_cleared(batch))
            rows += batch.num_rows
    return rows


def _with_nulls_cleared(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with 0 under nulls, where a query leaves anything: the bytes of a file follow from rows."""

    def cleared(column: pa.Array) -> pa.Array:
        if not column.null_count or not pa.types.is_primitive(column.type) or pa.types.is_boolean(column.type):
            return column
        values = column.view(pa.type_for_alias(f"int{column.type.bit_width}")).fill_null(0).to_numpy()
        return pa.array(values, mask=column.is_null().to_numpy(zero_copy_only=False)).view(column.type)

    return pa.RecordBatch.from_arrays([cleared(column) for column in batch.columns], schema=batch.schema)


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


def _as_numpy(column: pa.Array) -> tuple[NDArray, NDArray[np.bool_] | None]:
    if pa.types.is_boolean(column.type):
        return column.fill_null(False).to_numpy(zero_copy_only=False), None
    if column.null_count == 0:
        return column.to_numpy(), None
    dtype = np.dtype(column.type.to_pandas_dtype())
    values = np.frombuffer(column.buffers()[1], dtype, len(column), offset=column.offset * dtype.itemsize)
    return values, column.is_valid().to_numpy(zero_copy_only=False)
