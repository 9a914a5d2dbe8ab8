"""The embedding tables of a model folder: whole in a file each, or as rows that differ from those of another table.

A table is stored as float32, as float16, or as int8 with a scale for each row: weight = scale * value, where the
largest value of a row is 127 or -127 (symmetric row-wise quantisation, as compared by Guan et al. 2019,
arXiv:1911.02079). This module needs no torch, so that a wrong folder is refused at once.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.machine import MappedFile
from rayrec.inference.folder.tensor_files import MappedTensors, new_tensors
from rayrec.store.artifact import kind_of
from rayrec.store.files import new_file
from rayrec.store.paths import shortened

if TYPE_CHECKING:
    from rayrec.models.common.embedding_tables import EmbeddingTable

WEIGHTS_FOLDER = "weights"
TABLES_FOLDER = f"{WEIGHTS_FOLDER}/tables"
TABLE_TENSOR = "weight"
SCALE_TENSOR = "scale"
_ID_TENSOR = "id"
_TENSORS = (_ID_TENSOR, TABLE_TENSOR, SCALE_TENSOR)
TablePrecision = Literal["fp32", "fp16", "int8"]
DTYPES: dict[TablePrecision, str] = {"fp32": "F32", "fp16": "F16", "int8": "I8"}
"""The name of each type in a safetensors file."""
_LARGEST_INT8 = 127
BLOCK_ROWS = 65_536
"""Rows that are copied or compared at a time."""
_TABLES_AT_ONCE = 4
"""Reading and writing overlap, and the threads hold the memory of so many shards of a checkpoint."""
_ROWS_BETWEEN_LOOKS = 1024
"""A row that was not mapped brings up to 16 pages with it (the kernel's fault-around), 64 KiB."""


def is_model_folder(path: Path) -> bool:
    """Return whether a folder looks like the output of an export that ended: a whole model, or a delta."""
    try:
        return kind_of(path) in ("model", "delta") and (path / WEIGHTS_FOLDER).is_dir()
    except UserError:  # damaged: to open it says so
        return (path / WEIGHTS_FOLDER).is_dir()


def is_delta(path: Path) -> bool:
    """Return whether a model folder holds only what differs from a whole one (`rayrec.inference.folder.delta`)."""
    try:
        return kind_of(path) == "delta"
    except UserError:  # damaged: to open it says so
        return False


def table_file(name: str) -> str:
    """Return the path of a table's file in a model folder; a name with `/` in it stays one file."""
    return f"{TABLES_FOLDER}/{shortened(quote(name, safe=' '))}.safetensors"


class MappedTable:
    """Rows of a table over the tensors of a mapped file; only the pages of those that were looked up are in memory."""

    def __init__(self, file: MappedFile, stored: dict[str, NDArray[Any]], dim: int) -> None:
        """Take the weights (rows, columns), of which the first `dim` columns are read, and of int8 the scales."""
        self.dim = dim
        self.stored = stored
        """The tensors of the rows, as the file has them."""
        self.mapped: tuple[MappedFile, ...] = (file,)
        """The files that they are mapped from."""
        self._rows = stored[TABLE_TENSOR][:, :dim]
        self._scale = stored.get(SCALE_TENSOR)

    @classmethod
    def open(cls, path: Path, dim: int) -> "MappedTable":
        """Map the file of a whole table that `ModelFolder.open` has checked; the first `dim` columns are read."""
        whole = MappedTensors(path)
        return cls(whole.file, whole.tensors, dim)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> None:
        """Write the embeddings of n ids to `out`, (n, dim)."""
        if self._scale is None:
            out[:] = self._rows[ids]
        else:
            np.multiply(self._rows[ids], self._scale[ids][:, None], out=out)

    def stored_rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return the rows `start` to `stop` (exclusive) as the file has them, by tensor; all columns of `weight`."""
        return {name: values[start:stop] for name, values in self.stored.items()}


class ChangedTable:
    """A table of which some rows of a base are other ones, and some follow it; it has the methods of `MappedTable`.

    A look-up bisects the ids of the changed rows, which are mapped as the rows are.
    """

    def __init__(self, base: MappedTable, changes: MappedTensors, name: str) -> None:
        """Take a file that `new_changed_rows` wrote, with all rows of the table `name` beyond those of `base`."""
        stored = {t: changes.tensors[key] for t in _TENSORS if (key := f"{name}/{t}") in changes.tensors}
        self.dim = base.dim
        self._base = base
        self._ids: NDArray[np.int64] = stored.pop(_ID_TENSOR)
        """(n,) the rows that are changed or follow, ascending; never empty."""
        self._changed = MappedTable(changes.file, stored, base.dim)
        self.mapped = (*base.mapped, changes.file)
        """The files that it is mapped from."""

    def __len__(self) -> int:
        return max(len(self._base), int(self._ids[-1]) + 1)

    def read(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> None:
        """Write the embeddings of n ids to `out`, (n, dim)."""
        entries = np.minimum(self._ids.searchsorted(ids), len(self._ids) - 1)
        is_changed = self._ids[entries] == ids
        if len(ids) == 1:  # most requests have one row
            (self._changed if is_changed[0] else self._base).read(entries if is_changed[0] else ids, out)
            return
        # In the place of changed rows, which the base may not have, its first one is read.
        self._base.read(np.where(is_changed, 0, ids), out)
        changed = np.flatnonzero(is_changed)
        if len(changed):
            rows = np.empty((len(changed), self.dim), np.float32)
            self._changed.read(entries[changed], rows)
            out[changed] = rows

    def stored_rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return a copy of the rows `start` to `stop` (exclusive) as the files have them, as
        `MappedTable.stored_rows`.
        """
        first, last = self._ids.searchsorted([start, stop])
        changed = self._changed.stored_rows(first, last)
        rows = {}
        for name, values in self._base.stored_rows(start, stop).items():
            rows[name] = np.empty((stop - start, *values.shape[1:]), values.dtype)
            rows[name][: len(values)] = values
            rows[name][self._ids[first:last] - start] = changed[name]
        return rows


StoredTable = MappedTable | ChangedTable


def stored_blocks(table: StoredTable) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield the first row and the stored tensors of one block of rows after the other; memory holds one block."""
    for file in table.mapped:
        file.expect_order()
    for start in range(0, len(table), BLOCK_ROWS):
        yield start, table.stored_rows(start, min(start + BLOCK_ROWS, len(table)))
        for file in table.mapped:
            file.release()


class JoinedArrays:
    """Arrays of equal rows, wherever they are in memory, as one array: a gather takes rows from all of them at once.

    For 16 rows of 26 tables that takes 7 us, and a gather from each table 41 us. What is gathered from has a row at
    every few bytes from the first array to the end of the last, each overlapping the next; among them are the rows of
    the arrays, and no others are ever read.
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

    def take(self, places: NDArray[np.int64]) -> NDArray[Any]:
        """Return the rows (n, arrays, ...) at n places of each array, (n, arrays)."""
        return self._rows[self._starts + places * self._stride]


class TableMemory:
    """Limits what mapped tables and vocabularies of a process hold in memory; safe to use from several threads.

    Pages of a mapped file stay with the process that read them until the machine runs out of memory; one that looks up
    a skewed stream of ids in tables of many GiB would seem to hold them all. Beyond the limit they are given back: hot
    rows are then mapped again from the system's page cache, at the price of a page fault each.
    """

    def __init__(self, limit_bytes: float) -> None:
        """The limit is for what is added: other files that the process has mapped by now are not counted.

        It may be exceeded by 64 MiB, or by the pages of one look-up of more than 1,024 rows.
        """
        self._limit = limit_bytes
        self._before = mapped_bytes()
        self._mapped: WeakSet[MappedFile] = WeakSet()
        self._total_bytes = 0
        self._rows = 0

    def add(self, file: MappedFile) -> None:
        """Count a file of a table or a vocabulary from now on, as long as it is used."""
        self._mapped.add(file)
        self._total_bytes = sum(len(one.content) for one in self._mapped)

    def note(self, rows: int) -> None:
        """Count `rows` rows that were looked up; give pages back if the limit is exceeded."""
        self._rows += rows
        # Files that fit as a whole need no look, which takes about 45 microseconds, several times a request.
        if self._rows < _ROWS_BETWEEN_LOOKS or self._total_bytes <= self._limit:
            return
        self._rows = 0
        if mapped_bytes() - self._before > self._limit:
            for file in tuple(self._mapped):
                file.release()


def mapped_bytes() -> int:
    """Return the bytes of files that this process has mapped and holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def for_each_table(work: "Callable[[EmbeddingTable], None]", tables: "Sequence[EmbeddingTable]") -> None:
    """Do something with each table, a few at once; the first error is raised, and no further table is begun."""
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        try:
            for _ in pool.map(work, tables):
                pass
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def quantise_tables(folder: Path, tables: "Sequence[EmbeddingTable]", precision: TablePrecision) -> None:
    """Write the float32 tables of a model folder anew in a smaller precision, a few at once, each whole.

    Raises UserError if weights do not fit, or the disk is full.
    """

    def quantise(table: "EmbeddingTable") -> None:
        path = folder / table_file(table.name)
        with new_file(path) as temporary, new_table(temporary, table, precision) as tensors:
            stored = MappedTable.open(path, table.columns)
            for start in range(0, table.rows, BLOCK_ROWS):
                ids = np.arange(start, min(start + BLOCK_ROWS, table.rows))
                block = np.empty((len(ids), table.columns), np.float32)
                stored.read(ids, block)
                for name, values in _quantised(path, block, precision).items():
                    tensors[name][start : start + len(ids)] = values

    for_each_table(quantise, tables)


def _quantised(path: Path, block: NDArray[np.float32], precision: TablePrecision) -> dict[str, NDArray[Any]]:
    """Return the rows (n, columns) as a file holds them, by tensor. Raises UserError naming `path` if they do
    not fit.
    """
    if not np.isfinite(block).all():
        raise UserError(f"{path}: holds infinite or NaN weights: training diverged; export another checkpoint")
    largest = np.abs(block).max(axis=1, initial=0.0)
    if precision == "fp16":
        if (largest > np.finfo(np.float16).max).any():
            raise UserError(f"{path}: holds weights beyond {np.finfo(np.float16).max:g}; use --tables int8 or fp32")
        return {TABLE_TENSOR: block.astype(np.float16)}
    assert precision == "int8"
    scale = (largest / _LARGEST_INT8).astype(np.float32)
    # A row of zeros, or one whose scale is too small for float32, becomes zeros.
    values = np.rint(block / np.where(scale > 0, scale, np.float32(np.inf))[:, None])
    return {TABLE_TENSOR: np.clip(values, -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8), SCALE_TENSOR: scale}


def new_table(
    path: Path, table: "EmbeddingTable", precision: TablePrecision
) -> AbstractContextManager[dict[str, NDArray[Any]]]:
    """Return a new safetensors file of a table, as `new_tensors` does."""
    return new_tensors(path, _tensors_of_rows(table.rows, table.columns, precision))


@contextmanager
def new_changed_rows(
    path: Path, ids: Mapping[str, NDArray[np.int64]], columns: Mapping[str, int], precision: TablePrecision
) -> Iterator[dict[str, dict[str, NDArray[Any]]]]:
    """Yield a new file of rows of tables, whose tensors are mapped for writing, by table; on disk when the block ends.

    One file, as each that is mapped takes a file descriptor of the process. `ids`: the rows (n,) of each table,
    ascending. Raises DiskError if the disk is full.
    """
    described = {
        table: {_ID_TENSOR: ("I64", (len(rows),)), **_tensors_of_rows(len(rows), columns[table], precision)}
        for table, rows in ids.items()
    }
    # By tensor, so that all of them begin at a multiple of the size of their numbers.
    stored = {f"{t}/{name}": of[name] for name in _TENSORS for t, of in described.items() if name in of}
    with new_tensors(path, stored) as tensors:
        by_table = {t: {name: tensors[f"{t}/{name}"] for name in of} for t, of in described.items()}
        for table, rows in ids.items():
            by_table[table].pop(_ID_TENSOR)[:] = rows
        yield by_table


def _tensors_of_rows(rows: int, columns: int, precision: TablePrecision) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and the shape of each tensor that stores rows of a table."""
    scale = {SCALE_TENSOR: ("F32", (rows,))} if precision == "int8" else {}
    return {TABLE_TENSOR: (DTYPES[precision], (rows, columns)), **scale}
