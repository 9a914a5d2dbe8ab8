"""Tables on disk that are looked up by key: rows sorted by the key's 64-bit hash, mapped into memory.

A folder of Arrow IPC files, whose record batches follow each other in ascending order of the column `hash` (int64);
no hash lies in two batches. Opening one reads the ends of its files; pages come as rows are looked up, and all
processes of a machine share them. A hit is confirmed against the key itself, so keys that share a hash stay apart.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.files import new_file
from rayrec.common.splitmix import mix
from rayrec.features.integer_hash import hash_integers
from rayrec.features.string_hash import hash_strings

HASH = "hash"
UNKNOWN = -1


def hash_key(first: NDArray[np.int64], *others: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) int64 hashes of keys of one or more integers."""
    hashed = hash_integers(first)
    for other in others:
        hashed = mix(hashed ^ other.view(np.uint64))
    return hashed.view(np.int64)


def hash_texts(texts: pa.Array) -> NDArray[np.int64]:
    """(n,) int64 hashes of keys that are texts (string or large_string); of a null, any number."""
    return hash_strings(texts.cast(pa.large_string())).view(np.int64)


def write_file(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write sorted batches as a file of the table in `folder`, whole or not at all; returns the rows.

    The file is named by its first hash, so that the names of files that follow each other ascend. Without rows there is
    no file.
    """
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return 0
    path = folder / f"{first.column(HASH)[0].as_py() + 2**63:016x}.arrow"
    rows = 0
    with new_file(path) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in chain((first,), batches):
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows


@dataclass(frozen=True)
class Numbers:
    """A column of numbers, gathered for n rows."""

    values: NDArray
    """(n,); any number where not valid."""
    valid: NDArray[np.bool_]
    """(n,) false where the row is unknown or holds null."""

    def of(self, rows: NDArray[np.int64]) -> "Numbers":
        """Those of some of the rows (k,), as often as they are named."""
        return Numbers(self.values[rows], self.valid[rows])


@dataclass(frozen=True)
class Lists:
    """A column of lists, gathered for n rows one after the other; the lists of unknown rows are empty."""

    lengths: NDArray[np.int64]
    """(n,)"""
    fields: dict[str, NDArray]
    """Of the lists' elements, by field; of a list without fields under the empty name."""

    @property
    def owner(self) -> NDArray[np.int64]:
        """For each element the row that it belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclass(frozen=True)
class Ranges:
    """The lists of some rows as they lie in one batch: too long to be gathered."""

    asked: NDArray[np.int64]
    """(k,) positions of these rows in what was asked."""
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    fields: dict[str, NDArray]
    """Of all elements of the batch: those of row i are start[i] ... stop[i] - 1."""


class KeyedTable:
    """A table looked up by one or more columns of integers, or one of texts."""

    def __init__(self, folder: Path) -> None:
        """Map the files of `folder`; without files the table is empty. Raises UserError where one is damaged."""
        self.folder = folder
        self._batches: list[_Batch] = []
        first_row = 0
        for path in sorted(folder.glob("*.arrow")):
            for batch in _open(path):
                if batch.num_rows:
                    self._batches.append(_Batch(first_row, batch))
                    first_row += batch.num_rows
        self._first_rows = np.array([batch.first_row for batch in self._batches], np.int64)
        self._first_hashes = np.array([batch.hashes[0] for batch in self._batches], np.int64)
        self._num_rows = first_row

    @classmethod
    @lru_cache(maxsize=64)
    def cached(cls, folder: Path) -> "KeyedTable":
        """The table that this process opened before; the folder must not change meanwhile."""
        return cls(folder)

    def __len__(self) -> int:
        return self._num_rows

    def find(self, keys: dict[str, NDArray[np.int64]], valid: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(n,) the rows of n keys, given as (n,) integers by key column; UNKNOWN where there is none or not `valid`."""

        def is_key(batch: _Batch, rows: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
            same = np.ones(len(rows), bool)
            for name, values in keys.items():
                same &= batch.numbers(name)[0][rows] == values[asked]
            return same

        return self._find(hash_key(*keys.values()), valid, is_key)

    def find_texts(self, name: str, texts: pa.Array) -> NDArray[np.int64]:
        """(n,) the rows of n texts of the key column `name`; UNKNOWN where there is none, or null."""
        encoded = texts.cast(pa.large_string()).dictionary_encode()
        values = encoded.dictionary

        def is_key(batch: _Batch, rows: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
            held = batch.column(name).take(pa.array(rows)).cast(pa.large_string())
            return pc.equal(held, values.take(pa.array(asked))).to_numpy(zero_copy_only=False)

        found = np.append(self._find(hash_texts(values), None, is_key), UNKNOWN)
        return found[encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy()]

    def texts(self, name: str, rows: NDArray[np.int64]) -> pa.Array:
        """Gather a column of strings for rows (n,) that `find` gave, all of them known."""
        parts, order = [], []
        for batch, asked in self._by_batch(rows):
            parts.append(batch.column(name).take(pa.array(rows[asked] - batch.first_row)))
            order.append(asked)
        return (
            pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(order))))
            if parts
            else pa.array([], pa.string())
        )

    def numbers(self, name: str, rows: NDArray[np.int64]) -> Numbers:
        """Gather a column of integers, floats or booleans for rows (n,) that `find` gave."""
        values: NDArray | None = None
        valid = np.zeros(len(rows), bool)
        for batch, asked in self._by_batch(rows):
            held, is_valid = batch.numbers(name)
            if values is None:
                values = np.zeros(len(rows), held.dtype)
            places = rows[asked] - batch.first_row
            values[asked] = held[places]
            valid[asked] = True if is_valid is None else is_valid[places]
        return Numbers(np.zeros(len(rows), np.int64) if values is None else values, valid)

    def lists(self, name: str, rows: NDArray[np.int64]) -> Lists:
        """Gather a column of short lists for rows (n,) that `find` gave."""
        lengths = self.lengths(name, rows)
        ends = np.cumsum(lengths)
        fields: dict[str, NDArray] = {}
        for part in self.ranges(name, rows):
            sizes = part.stop - part.start
            within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            target = within + np.repeat(ends[part.asked] - sizes, sizes)
            source = within + np.repeat(part.start, sizes)
            for field, values in part.fields.items():
                fields.setdefault(field, np.empty(ends[-1], values.dtype))[target] = values[source]
        return Lists(lengths, fields)

    def lengths(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the lengths of a column of lists for rows that `find` gave; 0 of unknown ones."""
        lengths = np.zeros(len(rows), np.int64)
        for part in self.ranges(name, rows):
            lengths[part.asked] = part.stop - part.start
        return lengths

    def ranges(self, name: str, rows: NDArray[np.int64]) -> Iterator[Ranges]:
        """The lists of rows (n,) that `find` gave, without copying them, batch by batch."""
        for batch, asked in self._by_batch(rows):
            offsets, fields = batch.lists(name)
            places = rows[asked] - batch.first_row
            yield Ranges(asked, offsets[places].astype(np.int64), offsets[places + 1].astype(np.int64), fields)

    def _by_batch(self, rows: NDArray[np.int64]) -> Iterator[tuple["_Batch", NDArray[np.int64]]]:
        """The batches that known rows lie in, with the positions of these rows in `rows`."""
        if len(self._batches) == 1:
            asked = np.flatnonzero(rows != UNKNOWN)
            if len(asked):
                yield self._batches[0], asked
            return
        owner = np.searchsorted(self._first_rows, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(self._batches) + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            yield self._batches[number], order[bounds[number] : bounds[number + 1]]

    def _find(
        self,
        hashes: NDArray[np.int64],
        valid: NDArray[np.bool_] | None,
        is_key: "Callable[[_Batch, NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]]",
    ) -> NDArray[np.int64]:
        rows = np.full(len(hashes), UNKNOWN, np.int64)
        # Ascending, the search walks through a batch once instead of missing the cache at every step.
        order = np.argsort(hashes)
        if valid is not None:
            order = order[valid[order]]
        bounds = np.append(np.searchsorted(hashes[order], self._first_hashes), len(order))
        for number in np.flatnonzero(np.diff(bounds)):
            batch = self._batches[number]
            pending = order[bounds[number] : bounds[number + 1]]
            entry = np.searchsorted(batch.hashes, hashes[pending])
            while len(pending):
                inside = entry < len(batch.hashes)
                pending, entry = pending[inside], entry[inside]
                same = batch.hashes[entry] == hashes[pending]
                pending, entry = pending[same], entry[same]
                equal = is_key(batch, entry, pending)
                rows[pending[equal]] = batch.first_row + entry[equal]
                # Left over: keys whose hash is that of another key; the next entry may be theirs.
                pending, entry = pending[~equal], entry[~equal] + 1
        return rows


class _Batch:
    """A record batch as NumPy arrays over its mapped memory."""

    def __init__(self, first_row: int, batch: pa.RecordBatch) -> None:
        self.first_row = first_row
        self._batch = batch
        self._numbers: dict[str, tuple[NDArray, NDArray[np.bool_] | None]] = {}
        self._lists: dict[str, tuple[NDArray[np.int32], dict[str, NDArray]]] = {}
        self.hashes: NDArray[np.int64] = self.numbers(HASH)[0]

    def column(self, name: str) -> pa.Array:
        return self._batch.column(name)

    def numbers(self, name: str) -> tuple[NDArray, NDArray[np.bool_] | None]:
        """Values and, where there are nulls, which are valid."""
        if name not in self._numbers:
            self._numbers[name] = _as_numpy(self._batch.column(name))
        return self._numbers[name]

    def lists(self, name: str) -> tuple[NDArray[np.int32], dict[str, NDArray]]:
        """Offsets, and the elements by field."""
        if name not in self._lists:
            column = self._batch.column(name)
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


def _open(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        for index in range(file.num_record_batches):
            yield file.get_batch(index)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}); make the folder it lies in again") from None
