"""Vocabularies that go on from another one: what such a one adds and removes, in a file, and the look-up in both.

The file is an Arrow file of the rows that differ from the vocabulary before, by ascending id: first the values that it
lists no longer, as the empty text, then those that it adds.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.string_hash import find_hashes, hash_strings
from rayrec.features.vocabulary import (
    VALUES_PER_FILE,
    VALUES_PER_ROW_GROUP,
    VOCABULARY_SCHEMA,
    VocabularyLookup,
    index_file,
    read_vocabulary,
    write_index,
)
from rayrec.storage.files import new_file
from rayrec.storage.parquet_files import new_parquet

_ROW = ("id", "value", "count")
_CHANGES = pa.schema([
    pa.field("id", pa.int64(), False), pa.field("value", pa.large_string(), False),
    pa.field("count", pa.int64(), False), pa.field("hash", pa.uint64(), False),
])  # fmt: skip
_CHANGES_AT_ONCE = 1_048_576
_EMPTY = pa.scalar("", pa.large_string())


class Growth(NamedTuple):
    """How a vocabulary differs from the one that it goes on from."""

    added: int
    """Ids that follow those of before."""
    removed: int
    """Values of before that are no longer listed."""


class GrownVocabulary(VocabularyLookup):
    """Value -> id of a vocabulary of which only a first state is whole, and changes are known.

    The hashes of all added values are one sorted list, so a look-up takes as long after many changes as after one. It
    takes 16 bytes of memory for each of them; the values themselves stay mapped.
    """

    def __init__(self, base: VocabularyLookup, changes: Sequence[Path]) -> None:
        """`changes`: files that `write_changes` wrote, each on the state that those before it make.

        Raises UserError if one of them is missing or damaged.
        """
        super().__init__()
        self._base = base
        self._maps: list[mmap.mmap] = []
        self._added: list[pa.RecordBatch] = []
        """The rows of added values, which follow each other and the base."""
        self._length = len(base)
        removed = [np.empty(0, np.int64)]
        for path in changes:
            for batch in self._open(path):
                ids = batch["id"].to_numpy()
                first = int(ids.searchsorted(self._length, side="right"))
                is_empty = pc.equal(pc.binary_length(batch["value"]), 0).to_numpy(zero_copy_only=False)
                removed.append(ids[is_empty])
                if first < len(ids):
                    assert ids[first] == self._length + 1, path
                    self._length = int(ids[-1])
                    self._added.append(batch.slice(first))
        self._removed = np.unique(np.concatenate(removed))
        self._first_ids = np.array([1, *(batch["id"][0].as_py() for batch in self._added)])
        """The first id of the base and of each of the batches."""
        self._ids = np.concatenate([np.empty(0, np.int64), *(batch["id"].to_numpy() for batch in self._added)])
        hashes = np.concatenate([np.empty(0, np.uint64), *(batch["hash"].to_numpy() for batch in self._added)])
        order = np.argsort(hashes)
        order = order[~_contains(self._removed, self._ids[order])]
        self._hashes, self._ids = hashes[order], self._ids[order]

    def _open(self, path: Path) -> Iterator[pa.RecordBatch]:
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._maps.append(mapped)
            reader = pa.ipc.open_file(pa.py_buffer(mapped))
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
        except FileNotFoundError:
            raise UserError(f"{path}: missing; copy the delta again") from None
        except (pa.ArrowException, OSError, ValueError) as error:
            raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}); copy the delta again") from None

    def release(self) -> None:
        self._base.release()
        for mapped in self._maps:
            mapped.madvise(mmap.MADV_DONTNEED)

    def __len__(self) -> int:
        return self._length

    def values(self, ids: NDArray[np.int64]) -> pa.Array:
        numbers = np.searchsorted(self._first_ids, ids, side="right") - 1
        parts = []
        for number in np.unique(numbers):
            inside = ids[numbers == number]
            if number == 0:
                parts.append(self._base.values(inside))
            else:
                places = pa.array(inside - self._first_ids[number])
                parts.append(self._added[number - 1]["value"].take(places))
        places = np.empty(len(ids), np.int64)
        places[np.argsort(numbers, kind="stable")] = np.arange(len(ids))
        found = pa.concat_arrays([pa.array([], pa.large_string()), *parts]).take(pa.array(places))
        return pc.if_else(pa.array(_contains(self._removed, ids)), _EMPTY, found)

    def removed(self) -> NDArray[np.int64]:
        return np.union1d(self._base.removed(), self._removed)

    def find(self, value: str, hashed: np.uint64) -> int:
        found = self._base.find(value, hashed)
        if found and not _contains(self._removed, np.array([found]))[0]:
            return found
        entry = int(self._hashes.searchsorted(hashed))
        while entry < len(self._hashes) and self._hashes[entry] == hashed:
            listed = int(self._ids[entry])
            number = int(self._first_ids.searchsorted(listed, side="right")) - 1
            if self._added[number - 1]["value"][listed - int(self._first_ids[number])].as_py() == value:
                return listed
            entry += 1
        return 0

    def find_all(self, values: pa.Array, hashes: NDArray[np.uint64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        def is_listed(entries: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
            listed = self.values(self._ids[entries])
            return pc.equal(listed, values.take(pa.array(asked))).to_numpy(zero_copy_only=False)

        ids = self._base.find_all(values, hashes, wanted)
        ids[_contains(self._removed, ids)] = 0
        for found, entries in find_hashes(self._hashes, hashes, wanted[ids[wanted] == 0], is_listed):
            ids[found] = self._ids[entries]
        return ids

    def rows(self, base: Path) -> Iterator[pa.RecordBatch]:
        """All rows (id, value, count) in the order of ids; `base`: the Parquet files of the vocabulary at the start."""
        added = (batch.select(_ROW) for batch in self._added)
        for batch in chain((batch.select(_ROW) for batch in read_vocabulary(base, _ROW)), added):
            is_removed = pa.array(_contains(self._removed, batch["id"].to_numpy()))
            yield batch.set_column(1, "value", pc.if_else(is_removed, _EMPTY, batch["value"]))


def write_changes(vocabulary: Path, before: VocabularyLookup, path: Path) -> Growth:
    """Write what the vocabulary in Parquet files `vocabulary` adds and removes to `path`, whole, if it is anything.

    `before`: the vocabulary that it goes on from, whose values must be its first ones, but for those that it removes.
    Memory holds a part of the rows. Raises UserError if they are not.
    """
    size = removed = 0

    def changed_rows() -> Iterator[pa.RecordBatch]:
        nonlocal size, removed
        for batch in read_vocabulary(vocabulary, _ROW):
            ids = batch["id"].to_numpy()
            old = before.values(ids[ids <= len(before)])
            is_empty = pc.equal(batch["value"], "").to_numpy(zero_copy_only=False)
            is_changed = np.ones(len(ids), bool)
            is_changed[: len(old)] = pc.not_equal(batch["value"].slice(0, len(old)), old).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(is_changed[: len(old)] & ~is_empty[: len(old)])
            if len(wrong):
                raise UserError(
                    f"{vocabulary}: id {ids[wrong[0]]} is '{batch['value'][wrong[0]]}' and was '{old[wrong[0]]}' in the "
                    "version before, so the rows of its table changed their meaning; export in full"
                )
            size = int(ids[-1])
            removed += int(np.count_nonzero(is_changed[: len(old)]))
            rows = batch.select(_ROW).filter(pa.array(is_changed))
            yield pa.RecordBatch.from_arrays([*rows.columns, pa.array(hash_strings(rows["value"]))], schema=_CHANGES)
        if size < len(before):
            raise UserError(f"{vocabulary}: has {size:,} ids, the version before has {len(before):,}; export in full")

    blocks = _in_blocks(changed_rows(), _CHANGES_AT_ONCE)
    first = next(blocks, None)
    if first is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary, pa.OSFile(str(temporary), "wb") as sink:
            with pa.ipc.new_file(sink, _CHANGES) as writer:
                for block in chain((first,), blocks):
                    writer.write_batch(block)
    return Growth(size - len(before), removed)


def write_whole_vocabulary(rows: Iterable[pa.RecordBatch], path: Path) -> None:
    """Write a vocabulary of rows (id, value, count) to `path`, a Parquet file or a folder of parts, and its index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    per_file = VALUES_PER_FILE // VALUES_PER_ROW_GROUP
    with ExitStack() as stack:
        writer: pq.ParquetWriter
        blocks = _in_blocks(rows, VALUES_PER_ROW_GROUP)
        first = next(blocks, pa.RecordBatch.from_pylist([], VOCABULARY_SCHEMA))
        for number, block in enumerate(chain((first,), blocks)):
            if number % per_file == 0:
                stack.close()
                file = path if path.suffix == ".parquet" else path / f"part-{number // per_file:05d}.parquet"
                writer = stack.enter_context(new_parquet(file, VOCABULARY_SCHEMA))
            writer.write_batch(block.select(VOCABULARY_SCHEMA.names).cast(VOCABULARY_SCHEMA))
    write_index(path, index_file(path))


def _in_blocks(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of batches in batches of `rows` rows, and the rest in the last one; nothing if there are none."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held, count = [*held, batch], count + batch.num_rows
        while count >= rows:
            joined = pa.concat_batches(held)
            yield joined.slice(0, rows)
            held, count = [joined.slice(rows)], count - rows
    if count:
        yield pa.concat_batches(held)


def _contains(ascending: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n,) whether each of n ids is among ascending ones."""
    if len(ascending) == 0:
        return np.zeros(len(ids), bool)
    return ascending[np.minimum(ascending.searchsorted(ids), len(ascending) - 1)] == ids
