"""Rows of embedding tables that a delta changes or appends, and a table as they make it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.inference.folder.table_files import (
    BLOCK_ROWS,
    SCALE_TENSOR,
    TABLE_TENSOR,
    MappedTable,
    MappedTensors,
    StoredRows,
    TablePrecision,
    new_tensors,
    tensors_of_rows,
)

_ID_TENSOR = "id"
_TENSORS = (_ID_TENSOR, TABLE_TENSOR, SCALE_TENSOR)
_ROW_BITS = 40
_ROW_MASK = 2**_ROW_BITS - 1


class ChangedRows(StoredRows):
    """The rows of a table that one delta changes or appends; what is read are places among these rows."""

    def __init__(self, file: MappedTensors, table: str, dim: int) -> None:
        """The rows of `table` in a file that `new_changed_rows` wrote; the first `dim` columns are read."""
        stored = {name: file.tensors[key] for name in _TENSORS if (key := _key(table, name)) in file.tensors}
        self.ids: NDArray[np.int64] = stored.pop(_ID_TENSOR)
        """(n,) the rows of the table that these rows are, ascending."""
        super().__init__(file.file, stored, dim)


@contextmanager
def new_changed_rows(
    path: Path, ids: Mapping[str, NDArray[np.int64]], columns: Mapping[str, int], precision: TablePrecision
) -> Iterator[dict[str, dict[str, NDArray[Any]]]]:
    """Yield a new file of rows of tables, whose tensors are mapped for writing, by table; on disk when the block ends.

    One file, as each that is mapped takes a file descriptor of the process. `ids`: the rows (n,) of each table,
    ascending. Raises UserError if the disk is full.
    """
    described = {
        table: {_ID_TENSOR: ("I64", (len(rows),)), **tensors_of_rows(len(rows), columns[table], precision)}
        for table, rows in ids.items()
    }
    # By tensor, so that all of them begin at a multiple of the size of their numbers.
    stored = {_key(t, name): of[name] for name in _TENSORS for t, of in described.items() if name in of}
    with new_tensors(path, stored) as tensors:
        by_table = {table: {name: tensors[_key(table, name)] for name in of} for table, of in described.items()}
        for table, rows in ids.items():
            by_table[table].pop(_ID_TENSOR)[:] = rows
        yield by_table


def _key(table: str, tensor: str) -> str:
    return f"{table}/{tensor}"


class OverlaidTable:
    """A table in which rows of a base have changed and others follow it; it has the methods of `MappedTable`.

    The places of all changed rows are one sorted list, and their files are read as if they were one array, so that a
    look-up takes as long after many deltas as after one. It takes 16 bytes of memory for each of these rows; the rows
    themselves stay mapped.
    """

    def __init__(self, base: MappedTable, changes: Sequence[ChangedRows], rows: int) -> None:
        """`changes` are those of each delta, the oldest first, and hold every row from len(base) to `rows`."""
        self.dim = base.dim
        self._parts: tuple[StoredRows, ...] = (base, *changes)
        self.mapped = tuple(file for part in self._parts for file in part.mapped)
        """The files that it is mapped from."""
        self._length = rows
        ids = np.concatenate([change.ids for change in changes])
        places = np.concatenate([_places(number, len(change)) for number, change in enumerate(changes, 1)])
        # Stable, so that of the places of a row the newest comes last; it is the one that counts.
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        is_newest = np.append(ids[1:] != ids[:-1], True)
        self._ids: NDArray[np.int64] = ids[is_newest]
        """The rows that were changed or appended, ascending."""
        self._places: NDArray[np.int64] = places[order][is_newest]
        """Where each of them is; the others are in the base, where a row's place is its id."""
        self._changes = changes
        self._rows = JoinedArrays([part.stored[TABLE_TENSOR][:, : self.dim] for part in self._parts])
        self._scales: JoinedArrays | None = None
        if SCALE_TENSOR in base.stored:
            self._scales = JoinedArrays([part.stored[SCALE_TENSOR] for part in self._parts])

    def __len__(self) -> int:
        return self._length

    def read(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> None:
        """Write the embeddings of n ids to `out`, (n, dim)."""
        if len(ids) == 1:
            self._read_one(ids, out)
            return
        entries = np.minimum(self._ids.searchsorted(ids), len(self._ids) - 1)
        places = np.where(self._ids[entries] == ids, self._places[entries], ids)
        numbers, rows = places >> _ROW_BITS, places & _ROW_MASK
        if self._scales is None:
            out[:] = self._rows.take(numbers, rows)
        else:
            np.multiply(self._rows.take(numbers, rows), self._scales.take(numbers, rows)[:, None], out=out)

    def _read_one(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> None:
        """Do what `read` does, for one id in a fifth of the time: most requests have one row."""
        row = int(ids[0])
        entry = int(self._ids.searchsorted(row))
        if entry == len(self._ids) or self._ids[entry] != row:
            self._parts[0].read(ids, out)
            return
        place = int(self._places[entry])
        self._parts[place >> _ROW_BITS].read(np.array([place & _ROW_MASK]), out)

    def stored_rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return a copy of the rows `start` to `stop` (exclusive) as the files have them, as
        `StoredRows.stored_rows`.
        """
        of_base = self._parts[0].stored_rows(start, stop)
        rows = {
            name: np.concatenate([values, np.empty((stop - start - len(values), *values.shape[1:]), values.dtype)])
            for name, values in of_base.items()
        }
        for change in self._changes:
            first, last = change.ids.searchsorted([start, stop])
            here = change.ids[first:last] - start
            for name, values in change.stored_rows(first, last).items():
                rows[name][here] = values
        return rows


class JoinedArrays:
    """Arrays of equal rows, wherever they are in memory, as one array: a gather takes rows from all of them at once.

    A gather from each array for itself takes longer with every array, for rows of a request several times as long as
    one from all. What is gathered from has a row at every few bytes from the first array to the end of the last, each
    overlapping the next; among them are the rows of the arrays, and no others are ever read.
    """

    def __init__(self, arrays: Sequence[NDArray[Any]]) -> None:
        self._arrays = arrays  # which must not be given back to the system
        addresses = [array.__array_interface__["data"][0] for array in arrays]
        first = min(range(len(arrays)), key=addresses.__getitem__)
        end = max(address + array.strides[0] * len(array) for address, array in zip(addresses, arrays, strict=True))
        distances = [address - addresses[first] for address in addresses]
        stride = arrays[0].strides[0]
        step = math.gcd(stride, *distances)
        shape = ((end - addresses[first] - stride) // step + 1, *arrays[0].shape[1:])
        strides = (step, *arrays[0].strides[1:])
        self._rows = np.lib.stride_tricks.as_strided(arrays[first], shape, strides, writeable=False)
        self._starts = np.array([distance // step for distance in distances])
        self._stride = stride // step

    def take(self, numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[Any]:
        """(n, ...) for each of n rows the one that has its place `rows` in the array `numbers`."""
        return self._rows[self._starts[numbers] + rows * self._stride]


def _places(number: int, rows: int) -> NDArray[np.int64]:
    """Return the places (rows,) of all rows of a part."""
    return (number << _ROW_BITS) + np.arange(rows, dtype=np.int64)


StoredTable = MappedTable | OverlaidTable


def stored_blocks(table: StoredTable) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield the first row and the stored tensors of one block of rows after the other; memory holds one block."""
    for file in table.mapped:
        file.expect_order()
    for start in range(0, len(table), BLOCK_ROWS):
        yield start, table.stored_rows(start, min(start + BLOCK_ROWS, len(table)))
        for file in table.mapped:
            file.release()
