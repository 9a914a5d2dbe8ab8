"""Tables on disk that are looked up by key: rows sorted by the key's 64-bit hash, mapped into memory.

A folder of Arrow IPC files, whose record batches follow each other in ascending order of the column `hash` (int64);
no hash lies in two batches. Opening one reads the ends of its files; pages come as rows are looked up, and all
processes of a machine share them. A hit is confirmed against the key itself, so keys that share a hash stay apart.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.mapped_columns import Lists, MappedBatch, Numbers, Ranges, search_ranges
from rayrec.features.string_hash import by_distinct_text, find_hashes, hash_string, hash_strings
from rayrec.features.vocabularies.vocabulary import REQUEST_VALUES, SCALAR_LOOKUPS
from rayrec.random.splitmix64 import hash_integers, mix
from rayrec.store.files import new_file
from rayrec.store.node_copy import on_this_node

HASH = "hash"
UNKNOWN = -1


def hash_key(first: NDArray[np.int64], *others: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) int64 hashes of keys of one or more integers."""
    hashed = hash_integers(first)
    for other in others:
        hashed = mix(hashed ^ other.view(np.uint64))
    return hashed.view(np.int64)


def hash_texts(texts: pa.Array) -> NDArray[np.int64]:
    """(n,) int64 hashes of keys that are texts (string or large_string); any number for a null."""
    return hash_strings(texts.cast(pa.large_string())).view(np.int64)


def hash_text(text: str) -> int:
    """Return the hash of one text, as `hash_texts` gives it."""
    hashed = hash_string(text)
    return hashed - 2**64 if hashed >= 2**63 else hashed


def write_file(folder: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Write sorted batches as a file of the table in `folder`, whole or not at all; return the rows.

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


class KeyedTable:
    """A table looked up by one or more columns of integers, or one of texts."""

    def __init__(self, folder: Path) -> None:
        """Map the files of `folder`; without files the table is empty. Raises UserError if one is damaged."""
        self.folder = folder
        files = sorted(on_this_node(folder).glob("*.arrow"))
        batches = [batch for path in files for batch in _open(path) if batch.num_rows]
        self._batches = [MappedBatch(batch) for batch in batches]
        self._first_rows = np.cumsum([0, *(batch.num_rows for batch in batches)])
        self._first_hashes = np.array([batch.numbers(HASH)[0][0] for batch in self._batches], np.int64)

    @classmethod
    @lru_cache(maxsize=64)
    def cached(cls, folder: Path) -> "KeyedTable":
        """Return the table that this process opened before; the folder must not change meanwhile."""
        return cls(folder)

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    def find(self, keys: dict[str, NDArray[np.int64]], valid: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """(n,) the rows of n keys, given as (n,) integers by key column; UNKNOWN if there is none or not `valid`."""

        def is_key(batch: MappedBatch, rows: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
            return np.logical_and.reduce([batch.numbers(name)[0][rows] == v[asked] for name, v in keys.items()])

        return self._find(hash_key(*keys.values()), valid, is_key)

    def find_texts(self, name: str, texts: pa.Array) -> NDArray[np.int64]:
        """(n,) the rows of n texts of the key column `name`; UNKNOWN if there is none, or null."""
        if len(texts) <= REQUEST_VALUES:
            values = texts.to_pylist()
            if len(distinct := set(values)) <= SCALAR_LOOKUPS:
                rows = {value: self._find_text(name, value) for value in distinct}
                return np.array([rows[value] for value in values], np.int64)

        def find(values: pa.Array) -> NDArray[np.int64]:
            def is_key(batch: MappedBatch, rows: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
                held = batch.batch[name].take(pa.array(rows)).cast(pa.large_string())
                return pc.equal(held, values.take(pa.array(asked))).to_numpy(zero_copy_only=False)

            return self._find(hash_texts(values), None, is_key)

        return by_distinct_text(texts.cast(pa.large_string()), find, UNKNOWN)

    def _find_text(self, name: str, text: str | None) -> int:
        if text is None:
            return UNKNOWN
        hashed = hash_text(text)
        number = bisect_right(self._first_hashes, hashed) - 1
        if number < 0:
            return UNKNOWN
        batch = self._batches[number]
        hashes = batch.numbers(HASH)[0]
        entry = int(hashes.searchsorted(hashed))
        while entry < len(hashes) and hashes[entry] == hashed:
            if batch.batch[name][entry].as_py() == text:
                return int(self._first_rows[number]) + entry
            entry += 1
        return UNKNOWN

    def column(self, name: str, rows: NDArray[np.int64], dtype: pa.DataType) -> pa.Array:
        """Gather a column of any type, which is `dtype`, for rows (n,) that `find` gave; null for unknown ones."""
        found = list(self._by_batch(rows))
        if not found:
            return pa.nulls(len(rows), dtype)
        if len(rows) == 1:  # a request; a slice takes a fifth of the time
            ((batch, _, places),) = found
            return batch.batch[name].slice(int(places[0]), 1)
        parts = [(batch.batch[name].take(pa.array(places)), asked) for batch, asked, places in found]
        places = np.full(len(rows), UNKNOWN)
        places[np.concatenate([asked for _, asked in parts])] = np.arange(sum(len(asked) for _, asked in parts))
        return pa.concat_arrays([values for values, _ in parts]).take(pa.array(places, mask=places == UNKNOWN))

    def numbers(self, name: str, rows: NDArray[np.int64]) -> Numbers:
        """Gather a column of integers, floats or booleans for rows (n,) that `find` gave."""
        values: NDArray = np.zeros(len(rows), np.int64)
        valid = np.zeros(len(rows), bool)
        for batch, asked, places in self._by_batch(rows):
            held, is_valid = batch.numbers(name)
            values = values.astype(held.dtype, copy=False)
            values[asked] = held[places]
            valid[asked] = True if is_valid is None else is_valid[places]
        return Numbers(values, valid)

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

    def contains(self, name: str, rows: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) whether the list of each row, ascending integers, has the row's `wanted` one; false of unknown rows."""
        result = np.zeros(len(rows), bool)
        for part in self.ranges(name, rows):
            _, result[part.asked] = search_ranges(part.fields[""], part.start, part.stop, wanted[part.asked])
        return result

    def ranges(self, name: str, rows: NDArray[np.int64]) -> Iterator[Ranges]:
        """Yield the lists of rows (n,) that `find` gave, without copying them, batch by batch."""
        for batch, asked, places in self._by_batch(rows):
            offsets, fields = batch.lists(name)
            yield Ranges(asked, offsets[places].astype(np.int64), offsets[places + 1].astype(np.int64), fields)

    def _by_batch(self, rows: NDArray[np.int64]) -> Iterator[tuple[MappedBatch, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the batches with the positions of known rows in `rows` that lie in them, and the places of these rows
        there.
        """
        if len(self._batches) == 1 or len(rows) == 1:
            asked = np.flatnonzero(rows != UNKNOWN)
            if len(asked):
                only = bisect_right(self._first_rows, rows[asked[0]]) - 1
                yield self._batches[only], asked, rows[asked] - self._first_rows[only]
            return
        owner = np.searchsorted(self._first_rows, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(self._batches) + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            asked = order[bounds[number] : bounds[number + 1]]
            yield self._batches[number], asked, rows[asked] - self._first_rows[number]

    def _find(
        self,
        hashes: NDArray[np.int64],
        valid: NDArray[np.bool_] | None,
        is_key: Callable[[MappedBatch, NDArray[np.int64], NDArray[np.int64]], NDArray[np.bool_]],
    ) -> NDArray[np.int64]:
        rows = np.full(len(hashes), UNKNOWN, np.int64)
        order = np.argsort(hashes)
        if valid is not None:
            order = order[valid[order]]
        bounds = np.append(np.searchsorted(hashes[order], self._first_hashes), len(order))
        for number in np.flatnonzero(np.diff(bounds)):
            batch, pending = self._batches[number], order[bounds[number] : bounds[number + 1]]
            for found, entries in find_hashes(batch.numbers(HASH)[0], hashes, pending, partial(is_key, batch)):
                rows[found] = self._first_rows[number] + entries
        return rows


def _open(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        for index in range(file.num_record_batches):
            yield file.get_batch(index)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}); create its folder again") from None
