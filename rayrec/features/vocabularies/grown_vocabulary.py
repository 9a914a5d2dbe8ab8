"""Vocabularies that go on from others: what they add and remove, in a file, and the look-up in both.

The file is an Arrow file of the rows that differ from the vocabularies before. Those of a feature follow each other by
ascending id: first the values that are no longer listed, as the empty text, then those that were added.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.mapped_file import MappedFile
from rayrec.features.string_hash import find_hashes, hash_strings
from rayrec.features.vocabularies.vocabulary import (
    VALUES_PER_FILE,
    VALUES_PER_ROW_GROUP,
    VOCABULARY_SCHEMA,
    VocabularyLookup,
    index_file,
    read_vocabulary,
    write_index,
)
from rayrec.store.files import new_file
from rayrec.store.parquet import new_parquet

_ROW = ("id", "value", "count")
_CHANGES = pa.schema([
    pa.field("feature", pa.dictionary(pa.int16(), pa.string()), False), pa.field("id", pa.int64(), False),
    pa.field("value", pa.large_string(), False), pa.field("count", pa.int64(), False),
    pa.field("hash", pa.uint64(), False),
])  # fmt: skip
_CHANGES_AT_ONCE = 1_048_576
_EMPTY = pa.scalar("", pa.large_string())


class Growth(NamedTuple):
    """Difference of a vocabulary from the one that it extends."""

    added: int
    """Ids that follow those of before."""
    removed: int
    """Values of before that are no longer listed."""


class VocabularyChanges:
    """Values that the vocabularies of a model add and remove, mapped from a file that `new_changes` wrote."""

    def __init__(self, path: Path) -> None:
        """Raise UserError if the file is missing or damaged."""
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        try:
            self.file = MappedFile(path)
            reader = pa.ipc.open_file(pa.py_buffer(self.file.content))
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                self._batches.setdefault(batch["feature"][0].as_py(), []).append(batch)
        except FileNotFoundError:
            raise UserError(f"{path}: missing; copy the delta again") from None
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserError(f"{path}: damaged ({str(error).splitlines()[0]}); copy the delta again") from None

    def of(self, feature: str) -> list[pa.RecordBatch]:
        """Return the rows of the vocabulary of a feature, by ascending id; none if it has not changed."""
        return self._batches.get(feature, [])


class GrownVocabulary(VocabularyLookup):
    """Value -> id of a vocabulary of which only a first state is whole, and changes are known.

    The hashes of all added values are one sorted list, so a look-up takes as long after many changes as after one. It
    takes 16 bytes of memory for each of them; the values themselves stay mapped.
    """

    def __init__(self, base: VocabularyLookup, changes: Sequence[VocabularyChanges], feature: str) -> None:
        """`changes`: those of a feature's vocabulary, each of the state that those before it make."""
        super().__init__()
        self._base = base
        self.mapped = (*base.mapped, *(change.file for change in changes))
        self._added: list[pa.RecordBatch] = []
        """The rows of added values, which follow each other and the base."""
        self._length = len(base)
        removed = [np.empty(0, np.int64)]
        for batch in chain.from_iterable(change.of(feature) for change in changes):
            ids = batch["id"].to_numpy()
            first = int(ids.searchsorted(self._length, side="right"))
            is_empty = pc.equal(pc.binary_length(batch["value"]), 0).to_numpy(zero_copy_only=False)
            removed.append(ids[is_empty])
            if first < len(ids):
                assert ids[first] == self._length + 1, feature
                self._length = int(ids[-1])
                self._added.append(batch.slice(first))
        self._removed = np.unique(np.concatenate(removed))
        self._first_ids = np.array([1, *(batch["id"][0].as_py() for batch in self._added)])
        """The first id of the base and of each of the batches."""
        ids = np.concatenate([np.empty(0, np.int64), *(batch["id"].to_numpy() for batch in self._added)])
        hashes = np.concatenate([np.empty(0, np.uint64), *(batch["hash"].to_numpy() for batch in self._added)])
        order = np.argsort(hashes)
        order = order[~_contains(self._removed, ids[order])]
        self._hashes, self._ids = hashes[order], ids[order]

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
        place = int(self._removed.searchsorted(found))
        if found and (place == len(self._removed) or self._removed[place] != found):
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
        """Yield all rows (id, value, count) in the order of ids; `base`: the Parquet files of the vocabulary at the
        start.
        """
        added = (batch.select(_ROW) for batch in self._added)
        for batch in chain((batch.select(_ROW) for batch in read_vocabulary(base, _ROW)), added):
            is_removed = pa.array(_contains(self._removed, batch["id"].to_numpy()))
            yield batch.set_column(1, "value", pc.if_else(is_removed, _EMPTY, batch["value"]))


@contextmanager
def new_changes(path: Path, features: Sequence[str]) -> Iterator[Callable[[str, Path, VocabularyLookup], Growth]]:
    """Yield a function that adds to the new file `path` what the vocabulary of one of `features` adds and removes.

    It takes the feature, the Parquet files of its vocabulary, and the vocabulary that this one goes on from, whose
    values must be its first ones, but for those that it removes. Memory holds a part of the rows. It raises UserError
    if they are not. The file is whole when the block ends; there is none if nothing has changed.
    """
    names = pa.array(features, pa.string())
    writer: pa.ipc.RecordBatchFileWriter | None = None
    with ExitStack() as stack:

        def add(feature: str, vocabulary: Path, before: VocabularyLookup) -> Growth:
            nonlocal writer
            changed, size, removed = _changed_rows(vocabulary, before), len(before), 0
            for rows in _in_blocks(changed, _CHANGES_AT_ONCE):
                if writer is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    temporary = stack.enter_context(new_file(path))
                    sink = stack.enter_context(pa.OSFile(str(temporary), "wb"))
                    writer = stack.enter_context(pa.ipc.new_file(sink, _CHANGES))
                codes = pa.array(np.full(len(rows), features.index(feature), np.int16))
                columns = [
                    pa.DictionaryArray.from_arrays(codes, names),
                    *rows.columns,
                    pa.array(hash_strings(rows["value"])),
                ]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_CHANGES))
                ids = rows["id"].to_numpy()
                size = max(size, int(ids[-1]))
                removed += int(np.count_nonzero(ids <= len(before)))
            return Growth(size - len(before), removed)

        yield add


def _changed_rows(vocabulary: Path, before: VocabularyLookup) -> Iterator[pa.RecordBatch]:
    """Yield the rows (id, value, count) of a vocabulary that differ from those of `before` or follow them."""
    size = 0
    for batch in read_vocabulary(vocabulary, _ROW):
        rows = batch.select(_ROW)
        ids = rows["id"].to_numpy()
        size = int(ids[-1])
        old = before.values(ids[ids <= len(before)])
        now = rows["value"].slice(0, len(old))
        is_changed = np.ones(len(ids), bool)
        is_changed[: len(old)] = pc.not_equal(now, old).to_numpy(zero_copy_only=False)
        is_removed = pc.equal(now, "").to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(is_changed[: len(old)] & ~is_removed)
        if len(wrong):
            raise UserError(
                f"{vocabulary}: id {ids[wrong[0]]} is '{now[wrong[0]]}' and was '{old[wrong[0]]}' in the "
                "previous version, so rows of its table changed their meaning; export in full"
            )
        yield rows.filter(pa.array(is_changed))
    if size < len(before):
        raise UserError(f"{vocabulary}: has {size:,} ids, but the previous version has {len(before):,}; export in full")


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
    """Yield the rows of batches in batches of `rows` rows, and the rest in the last one; nothing if there are none."""
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
