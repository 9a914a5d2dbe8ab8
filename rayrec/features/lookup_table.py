"""Rows on disk that are looked up by a key: a value of a vocabulary, the key of a side table or of a rate, a document.

A table is a folder of Arrow IPC files, or one file, mapped into memory: pages come as rows are looked up, and all
processes of a machine share them. To find a key is to bisect hashes and to confirm a hit against the key itself, so
keys that share a hash stay apart. Beside the key and what belongs to it, the rows of a record batch, a part, have

- `hash` (int64), the hash of the key (`rayrec.features.hashes`), ascending within the batch;
- `entry`, if the rows of a batch lie in an order of their own: the place of the row that each hash is of.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.disk_errors import unreadable
from rayrec.common.machine import MappedFile
from rayrec.features.hashes import by_distinct_text, hash_key, hash_text, hash_texts
from rayrec.store.files import new_file
from rayrec.store.node_copy import on_this_node

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
    """Map an Arrow IPC file, or its copy on this node; return it and its record batches.

    Raises FileNotFoundError, or UserError that ends with the `remedy` if the file is damaged.
    """
    try:
        file = MappedFile(on_this_node(path))
        reader = pa.ipc.open_file(pa.py_buffer(file.content))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, error, remedy) from None
    return file, batches


def write_arrow(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    """Write batches as an Arrow IPC file, what `read_arrow` maps, whole or not at all."""
    with new_file(path) as temporary, pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


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

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in chain((first,), batches):
            yield _with_nulls_cleared(batch)
            rows += batch.num_rows

    write_arrow(path, schema, counted())
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
    if not len(values) or not len(wanted):
        return start.copy(), np.zeros(len(wanted), bool)
    if len(wanted) == 1:  # of a request
        first, end, value = int(start[0]), int(stop[0]), wanted[0]
        place = first + int(values[first:end].searchsorted(value))
        return np.array([place]), np.array([place < end and bool(values[place] == value)])
    # Most rows of a request ask for what is behind all values.
    is_behind = (values[stop - 1] < wanted) & (stop > start)
    low, high = np.where(is_behind, stop, start), stop.copy()
    for _ in range(int((stop - low).max(initial=0)).bit_length()):
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


UNKNOWN = -1
"""The row of a key that is not in the table."""
REQUEST_VALUES = 1024
"""Up to this number, texts are taken for those of a request, most of which were asked before: about 0.1 us each."""
SCALAR_LOOKUPS = 64
"""Up to this number, looking texts up one at a time (about 5 us each) beats the vectorised call (about 300 us)."""
_REMEMBERED = 16_384
"""Most answers that a table remembers (3 MiB); then it forgets them all, which costs less than knowing the oldest."""


class LookupTable:
    """Rows that are found by one or more integers, or by the text in their first column of texts.

    Rows are numbered from 0, batch after batch. A table may be that of another one with rows added at the end and rows
    removed, which keep their numbers but are not found any more.
    """

    _NO_KEYS: ClassVar[tuple[str | None, ...]] = (None,)
    """Texts that find no row."""

    def __init__(
        self, batches: Iterable[pa.RecordBatch], files: Sequence[MappedFile] = (), removed: Rows | None = None
    ) -> None:
        """Take mapped batches, one after the other. A key that is in two of them has the row of the first, but for
        `removed` rows (ascending).
        """
        self.mapped = tuple(files)
        """The files that the batches are mapped from."""
        self.parts: list[TablePart] = []
        """The batches, in the order of the rows."""
        self._length = 0
        for batch in batches:
            if batch.num_rows:
                self.parts.append(TablePart(batch, self._length))
                self._length += batch.num_rows
        self._removed = np.empty(0, np.int64) if removed is None else removed
        self._first_rows = np.array([part.first_row for part in self.parts], np.int64)
        self._lowest = np.array([part.hashes[0] for part in self.parts], np.int64)
        self._highest = np.array([part.hashes[-1] for part in self.parts], np.int64)
        self._remembered: dict[str | None, int] = dict.fromkeys(self._NO_KEYS, UNKNOWN)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the files of `folder`; without files the table is empty. Raises UserError if one is damaged."""
        opened = [read_arrow(path, "create its folder again") for path in sorted(on_this_node(folder).glob("*.arrow"))]
        return cls(chain.from_iterable(batches for _, batches in opened), [file for file, _ in opened])

    @classmethod
    @lru_cache(maxsize=64)
    def cached(cls, folder: Path) -> Self:
        """Return the table that this process opened before; the folder must not change meanwhile."""
        return cls.open(folder)

    def __len__(self) -> int:
        return self._length

    # ---- keys -> rows

    def find(self, keys: dict[str, NDArray[np.int64]], valid: NDArray[np.bool_] | None = None) -> Rows:
        """Return the rows (n,) of n keys, given as (n,) integers by key column; UNKNOWN if there is none or not
        `valid`.
        """

        def is_key(part: TablePart, places: Rows, asked: Rows) -> NDArray[np.bool_]:
            return np.logical_and.reduce([part.numbers(name)[0][places] == v[asked] for name, v in keys.items()])

        hashes = hash_key(*keys.values())
        return self._search(hashes, np.arange(len(hashes)) if valid is None else np.flatnonzero(valid), is_key)

    def find_texts(self, texts: pa.Array) -> Rows:
        """Return the rows (n,) of n texts (string, large_string or a dictionary of them); UNKNOWN if there is none, or
        null.
        """
        if len(texts) <= REQUEST_VALUES:
            return np.array(self.find_few(texts.to_pylist()), np.int64)
        if pa.types.is_dictionary(texts.type) and len(texts.dictionary) > len(texts):
            texts = texts.dictionary_decode()  # a slice of a long column, most of whose dictionary it does not use
        # Columns repeat values, so that most of the rows are served by a gather.
        return by_distinct_text(texts, self._find_distinct, UNKNOWN)

    def find_few(self, texts: list[str | None]) -> list[int]:
        """Return the rows of the texts of a request; most of them were asked before, and are remembered."""
        remembered = self._remembered
        # The cheapest way to try, and for one row there is one for each of its columns.
        try:
            return list(map(remembered.__getitem__, texts))
        except KeyError:
            pass
        new = [text for text in set(texts).difference(remembered) if text is not None]
        if len(new) <= SCALAR_LOOKUPS:
            found = [self._find_one(text) for text in new]
        else:
            found = self._find_distinct(pa.array(new, pa.large_string())).tolist()
        answers: dict[str | None, int] = dict.fromkeys(self._NO_KEYS, UNKNOWN)
        answers.update(zip(new, found, strict=True))
        rows = [answers[text] if text in answers else remembered[text] for text in texts]
        if len(remembered) + len(answers) > _REMEMBERED:
            self._remembered = answers
        else:
            remembered.update(answers)
        return rows

    def _find_one(self, text: str) -> int:
        hashed = hash_text(text)
        parts = self.parts
        if len(parts) > 1:
            parts = [parts[n] for n in np.flatnonzero((self._lowest <= hashed) & (hashed <= self._highest))]
        for part in parts:
            assert part.texts is not None
            entry = int(part.hashes.searchsorted(hashed))
            while entry < len(part.hashes) and part.hashes[entry] == hashed:
                place = entry if part.entries is None else int(part.entries[entry])
                if part.texts[place].as_py() == text and not self._is_removed(part.first_row + place):
                    return part.first_row + place
                entry += 1
        return UNKNOWN

    def _find_distinct(self, texts: pa.Array) -> Rows:
        def is_key(part: TablePart, places: Rows, asked: Rows) -> NDArray[np.bool_]:
            assert part.texts is not None
            held = part.texts.take(pa.array(places)).cast(pa.large_string())
            return pc.equal(held, texts.take(pa.array(asked))).to_numpy(zero_copy_only=False)

        is_no_key = pc.is_in(texts, pa.array(self._NO_KEYS, texts.type)).to_numpy(zero_copy_only=False)
        return self._search(hash_texts(texts), np.flatnonzero(~is_no_key), is_key)

    def _search(
        self, hashes: NDArray[np.int64], wanted: Rows, is_key: Callable[[TablePart, Rows, Rows], NDArray[np.bool_]]
    ) -> Rows:
        """Return the rows (n,) of n hashes, of which those at the positions `wanted` are searched.

        `is_key(part, places, positions)` tells which rows of a part have the key that is asked for at the positions.
        """
        rows = np.full(len(hashes), UNKNOWN, np.int64)
        # In the order of hashes the search walks through a part once, instead of missing the cache at every step.
        wanted = wanted[np.argsort(hashes[wanted])]
        ascending = hashes[wanted]
        begins, ends = ascending.searchsorted(self._lowest), ascending.searchsorted(self._highest, side="right")
        for number in np.flatnonzero(ends > begins):
            part, pending = self.parts[number], wanted[begins[number] : ends[number]]
            if number:  # a part before it may have some of them
                pending = pending[rows[pending] == UNKNOWN]
            entry = part.hashes.searchsorted(hashes[pending])
            while len(pending):
                inside = entry < len(part.hashes)
                pending, entry = pending[inside], entry[inside]
                is_hit = part.hashes[entry] == hashes[pending]
                pending, entry = pending[is_hit], entry[is_hit]
                places = entry if part.entries is None else part.entries[entry].astype(np.int64)
                found = is_key(part, places, pending)
                if len(self._removed):
                    found &= ~self._is_removed(part.first_row + places)
                rows[pending[found]] = part.first_row + places[found]
                # Left over: keys whose hash is that of another key; the next entry may be theirs.
                pending, entry = pending[~found], entry[~found] + 1
        return rows

    def _is_removed(self, rows: Rows | int) -> NDArray[np.bool_]:
        if not len(self._removed):
            return np.zeros(np.shape(rows), bool)
        return self._removed[np.minimum(self._removed.searchsorted(rows), len(self._removed) - 1)] == rows

    # ---- rows -> what they hold

    def column(self, name: str, rows: Rows, dtype: pa.DataType) -> pa.Array:
        """Gather a column of any type, which is `dtype`, for rows (n,) that were found; null for unknown ones."""
        found = list(self.by_part(rows))
        if not found:
            return pa.nulls(len(rows), dtype)
        if len(rows) == 1:  # a request; a slice takes a fifth of the time
            ((part, _, places),) = found
            return part.batch[name].slice(int(places[0]), 1)
        gathered = [(part.batch[name].take(pa.array(places)), asked) for part, asked, places in found]
        if len(gathered) == 1 and len(gathered[0][0]) == len(rows):
            return gathered[0][0]
        places = np.full(len(rows), UNKNOWN)
        places[np.concatenate([asked for _, asked in gathered])] = np.arange(sum(len(asked) for _, asked in gathered))
        return pa.concat_arrays([values for values, _ in gathered]).take(pa.array(places, mask=places == UNKNOWN))

    def numbers(self, name: str, rows: Rows) -> Numbers:
        """Gather a column of integers, floats or booleans for rows (n,) that were found."""
        values: NDArray = np.zeros(len(rows), np.int64)
        valid = np.zeros(len(rows), bool)
        for part, asked, places in self.by_part(rows):
            held, is_valid = part.numbers(name)
            values = values.astype(held.dtype, copy=False)
            values[asked] = held[places]
            valid[asked] = True if is_valid is None else is_valid[places]
        return Numbers(values, valid)

    def lists(self, name: str, rows: Rows) -> Lists:
        """Gather a column of short lists for rows (n,) that were found."""
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

    def lengths(self, name: str, rows: Rows) -> NDArray[np.int64]:
        """Return the lengths (n,) of a column of lists for rows that were found; 0 of unknown ones."""
        lengths = np.zeros(len(rows), np.int64)
        for part in self.ranges(name, rows):
            lengths[part.asked] = part.stop - part.start
        return lengths

    def contains(self, name: str, rows: Rows, wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell (n,) whether the list of each row, ascending integers, has the row's `wanted` one; false of unknown
        rows.
        """
        result = np.zeros(len(rows), bool)
        for part in self.ranges(name, rows):
            _, result[part.asked] = search_ranges(part.fields[""], part.start, part.stop, wanted[part.asked])
        return result

    def ranges(self, name: str, rows: Rows) -> Iterator[Ranges]:
        """Yield the lists of rows (n,) that were found, without copying them, batch by batch."""
        for part, asked, places in self.by_part(rows):
            offsets, fields = part.lists(name)
            yield Ranges(asked, offsets[places].astype(np.int64), offsets[places + 1].astype(np.int64), fields)

    def by_part(self, rows: Rows) -> Iterator[tuple[TablePart, Rows, Rows]]:
        """Yield parts with the positions in `rows` of the known rows that lie in them, and the places of these rows
        there.
        """
        if len(self.parts) == 1 or len(rows) == 1:
            asked = np.flatnonzero(rows != UNKNOWN)
            if len(asked):
                part = self.parts[int(self._first_rows.searchsorted(rows[asked[0]], side="right")) - 1]
                yield part, asked, rows[asked] - part.first_row
            return
        owner = np.searchsorted(self._first_rows, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(self.parts) + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            asked = order[bounds[number] : bounds[number + 1]]
            yield self.parts[number], asked, rows[asked] - self._first_rows[number]
