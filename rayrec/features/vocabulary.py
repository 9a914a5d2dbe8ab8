"""Vocabularies: files that list a feature's values by id, the look-up of a value's id, and how vocabularies grow.

A vocabulary is a Parquet file, or a folder of parts, in the order of ids, for people and for Spark; and beside it the
index, a table of `rayrec.features.lookup_table` in the same order, which processes map. One that continues another,
whose ids stay, is known by what it adds and removes (`write_changes`, `VocabularyChanges`).
"""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import IO, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.features.hashes import hash_strings, hash_texts
from rayrec.features.lookup_table import ENTRY, HASH, LookupTable, read_arrow
from rayrec.random.arrays import mix
from rayrec.store.files import new_file
from rayrec.store.parquet import new_parquet, open_parquet

VOCABULARY_SCHEMA = pa.schema(
    [pa.field("value", pa.string(), False), pa.field("id", pa.int64(), False), pa.field("count", pa.int64(), False)]
)
VALUES_PER_FILE = 4_194_304
"""A longer vocabulary is a folder of parts."""
VALUES_PER_ROW_GROUP = 65_536
_SORTED_AT_ONCE = 4_194_304
"""About as many hashes are sorted in memory (120 MiB)."""
_LOOKED_AT_ONCE = 16_777_216
_ROW = ("id", "value", "count")
_CHANGES = pa.schema([
    pa.field("feature", pa.dictionary(pa.int16(), pa.string()), False), pa.field("id", pa.int64(), False),
    pa.field("value", pa.large_string(), False), pa.field("count", pa.int64(), False),
    pa.field(HASH, pa.int64(), False), pa.field(ENTRY, pa.int32(), False),
])  # fmt: skip
_EMPTY = pa.scalar("", pa.large_string())


class VocabularyLookup(LookupTable):
    """Ids of the values of one vocabulary, exact: row r of the table has the value of id r + 1.

    The empty text stands where a value has expired; no value is one.
    """

    _NO_KEYS: ClassVar[tuple[str | None, ...]] = (None, "")

    @classmethod
    def load(cls, path: Path) -> "VocabularyLookup":
        """Map the index of a vocabulary, a Parquet file or a folder of parts. Raises UserError if it is missing."""
        return cls.of_index(index_file(path))

    @classmethod
    def of_index(cls, index: Path) -> "VocabularyLookup":
        """Map an index that `write_index` wrote. Raises UserError if it is missing or damaged."""
        try:
            file, batches = read_arrow(index, "preprocess again")
            return cls(batches, [file])
        except FileNotFoundError:
            raise UserError(f"{index}: missing; the index of a vocabulary belongs beside it") from None
        except KeyError:
            raise UserError(f"{index}: not the index of a vocabulary; preprocess again") from None

    def changed(self, changes: "VocabularyChanges", feature: str) -> "VocabularyLookup":
        """Return the vocabulary of `feature` that `changes` make of this one, which is whole."""
        added, removed = changes.of(feature, len(self))
        batches = [*(part.batch for part in self.parts), *added]
        return VocabularyLookup(batches, (*self.mapped, changes.file), removed - 1)

    def ids(self, values: pa.Array) -> NDArray[np.int64]:
        """Return the ids (n,) of n values (string, large_string or a dictionary of them); 0 for null, empty and
        unlisted ones.
        """
        return self.find_texts(values) + 1

    def values(self, ids: NDArray[np.int64]) -> pa.Array:
        """Return the values (n,) large_string of n ids from 1 on; empty for ids that stand for no value any longer."""
        values = self.column("value", ids - 1, pa.large_string())
        is_removed = self._is_removed(ids - 1)
        return pc.if_else(pa.array(is_removed), _EMPTY, values) if is_removed.any() else values

    def removed(self) -> NDArray[np.int64]:
        """Return the ids, ascending, that stand for no value any longer."""
        empty = [np.flatnonzero(_is_empty(part.batch["value"])) + part.first_row for part in self.parts]
        return np.unique(np.concatenate([*empty, self._removed])) + 1


# ---- the files of a vocabulary


def vocabulary_files(path: Path) -> list[Path]:
    """Return the Parquet files of a vocabulary, a file or a folder of parts, in the order of ids."""
    return [path] if path.suffix == ".parquet" else sorted(path.glob("*.parquet"))


def index_file(path: Path) -> Path:
    """Return the path of a vocabulary's index, which lies beside a Parquet file or in a folder of parts."""
    return path.with_suffix(".arrow") if path.suffix == ".parquet" else path / "index.arrow"


def content_hash(values: pa.Array, first_id: int) -> int:
    """Return a 64-bit word of the values (string) of ids `first_id`, `first_id` + 1, ...

    The words of a vocabulary's parts add up, modulo 2^64, to the word of the whole, however it is cut.
    """
    hashes = hash_strings(values.cast(pa.large_string()))
    # Mixed together, as two values that changed places would leave the sum of separate hashes as it was.
    ids = np.arange(first_id, first_id + len(values), dtype=np.uint64)
    return int(mix(hashes ^ mix(ids)).sum(dtype=np.uint64))


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
            if block.num_rows:
                writer.write_batch(block.select(VOCABULARY_SCHEMA.names).cast(VOCABULARY_SCHEMA))
    write_index(path)


def write_index(vocabulary: Path) -> None:
    """Write the index of a vocabulary beside it (`index_file`), whole or not at all.

    It is an Arrow file of one batch: `hash` (int64), ascending; `entry` (int32, or int64 beyond 2^31 values), for each
    hash the place of its value; `value` (large_string), in the order of ids. Memory is bounded: what grows with the
    values lies in temporary files beside it. Raises UserError if `vocabulary` is missing or no vocabulary.
    """
    with ExitStack() as stack:
        temporary = stack.enter_context(new_file(index_file(vocabulary)))

        def column() -> IO[bytes]:
            return stack.enter_context(tempfile.TemporaryFile(dir=temporary.parent))

        # First the values in the order of ids, as Arrow lays them out, and their hashes ...
        by_id, offsets, texts, hashes, entries = (column() for _ in range(5))
        offsets.write(np.int64(0).tobytes())
        rows = size = 0
        for batch in read_vocabulary(vocabulary):
            values = batch["value"]
            by_id.write(hash_texts(values).data)
            _, starts, data = values.buffers()
            ends = np.frombuffer(starts, np.int64, len(values) + 1, offset=8 * values.offset)
            offsets.write((ends[1:] - ends[0] + size).data)
            if data is not None:
                texts.write(memoryview(data)[ends[0] : ends[-1]])
            rows += len(values)
            size += int(ends[-1] - ends[0])
        # ... then the hashes in ascending order; 32 bits take half the memory, if they can number the values.
        number = np.dtype(np.int32 if rows <= 2**31 else np.int64)
        for ascending, places in _sorted(np.frombuffer(_mapped(by_id), np.int64)):
            hashes.write(ascending.data)
            entries.write(places.astype(number).data)
        columns = {
            HASH: pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(_mapped(hashes))]),
            ENTRY: pa.Array.from_buffers(pa.from_numpy_dtype(number), rows, [None, pa.py_buffer(_mapped(entries))]),
            "value": pa.Array.from_buffers(
                pa.large_string(), rows, [None, pa.py_buffer(_mapped(offsets)), pa.py_buffer(_mapped(texts))]
            ),
        }
        index_of_all = pa.RecordBatch.from_pydict(columns)
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, index_of_all.schema) as writer:
            writer.write_batch(index_of_all)


def _mapped(file: IO[bytes]) -> mmap.mmap | bytes:
    """Return what was written to a file."""
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""


def _sorted(hashes: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield the hashes (n,) in ascending order with their places, equal ones by place, a range of hashes at a time."""
    ranges = -(-len(hashes) // _SORTED_AT_ONCE)
    for number in range(ranges):
        first, last = (-(2**63) + at * 2**64 // ranges for at in (number, number + 1))
        parts = []
        for start in range(0, len(hashes), _LOOKED_AT_ONCE):
            part = hashes[start : start + _LOOKED_AT_ONCE]
            parts.append(start + np.flatnonzero((part >= first) & (part <= last - 1)))
        places = np.concatenate(parts)
        found = hashes[places]
        order = np.argsort(found, kind="stable")
        yield found[order], places[order]


def read_vocabulary(path: Path, columns: Sequence[str] = ("value", "id")) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a vocabulary in the order of ids; `value` is large_string.

    `columns`: those wanted, `value` and `id` among them. Raises UserError if a file is missing or no vocabulary.
    """
    files = vocabulary_files(path)
    if not files:
        raise UserError(f"{path}: no Parquet parts of a vocabulary in it; run `rayrec preprocess` again")
    rows = 0
    for file in files:
        try:
            with open_parquet(file) as parquet:
                for batch in parquet.iter_batches(columns=list(columns)):
                    ids = batch.column("id").to_numpy(zero_copy_only=False)
                    if not np.array_equal(ids, np.arange(rows + 1, rows + 1 + len(ids))):
                        raise UserError(f"{file}: ids do not continue from {rows + 1}; run `rayrec preprocess` again")
                    rows += len(ids)
                    large = batch.column("value").cast(pa.large_string())
                    yield batch.set_column(batch.schema.get_field_index("value"), "value", large)
        except FileNotFoundError:
            raise UserError(f"{file}: missing; the vocabulary belongs beside schema.json") from None
        except (pa.ArrowInvalid, KeyError) as error:
            raise UserError(f"{file}: not a vocabulary (columns value, id): {str(error).splitlines()[0]}") from None


# ---- growth


class VocabularyGrowth(Config):
    """Difference of a vocabulary from the one that it continues."""

    added: int
    """Ids that follow those of before."""
    removed: int
    """Values of before that are no longer listed."""


class VocabularyChanges:
    """Values that vocabularies add and remove, mapped from a file that `write_changes` wrote.

    An Arrow file of the rows that differ from the vocabularies before: for each feature those that are removed, as the
    empty text, then those that are added, by ascending id, in batches that are parts of a look-up table.
    """

    def __init__(self, path: Path) -> None:
        """Raise UserError if the file is missing or damaged."""
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        try:
            self.file, batches = read_arrow(path, "copy the version again")
            for batch in batches:
                self._batches.setdefault(batch["feature"][0].as_py(), []).append(batch)
        except FileNotFoundError:
            raise UserError(f"{path}: missing; copy the version again") from None
        except KeyError:
            raise UserError(f"{path}: damaged; copy the version again") from None

    def of(self, feature: str, size: int) -> tuple[list[pa.RecordBatch], NDArray[np.int64]]:
        """Return the added rows of a feature, whose vocabulary had `size` ids, and the removed ids; both by id."""
        batches = self._batches.get(feature, [])
        removed = [batch["id"].to_numpy() for batch in batches if batch["id"][0].as_py() <= size]
        added = [batch for batch in batches if batch["id"][0].as_py() > size]
        return added, np.concatenate([np.empty(0, np.int64), *removed])

    def apply(self, feature: str, base: Path, size: int) -> Iterator[pa.RecordBatch]:
        """Yield all rows (id, value, count) of a feature's vocabulary in the order of ids; `base`: the Parquet files
        of the one before, of `size` values.
        """
        added, removed = self.of(feature, size)
        for batch in read_vocabulary(base, _ROW):
            is_removed = pa.array(np.isin(batch["id"].to_numpy(), removed))
            values = pc.if_else(is_removed, _EMPTY, batch["value"])
            yield pa.RecordBatch.from_arrays([batch["id"], values, batch["count"]], names=_ROW)
        for batch in added:
            yield pa.RecordBatch.from_arrays([batch[name] for name in _ROW], names=_ROW)


def write_changes(path: Path, vocabularies: Mapping[str, tuple[Path, VocabularyLookup]]) -> dict[str, VocabularyGrowth]:
    """Write what vocabularies add and remove to the file `path`; return it for those that differ.

    `vocabularies`: by feature the Parquet files of each, and the one that it continues, whose values must be its
    first ones, but for those that it removes; UserError if they are not. Memory holds a part of the rows. The file is
    whole or absent; there is none if nothing differs.
    """
    names, growths = pa.array(vocabularies, pa.string()), {}
    with ExitStack() as stack:
        writer: pa.ipc.RecordBatchFileWriter | None = None
        for code, (feature, (vocabulary, before)) in enumerate(vocabularies.items()):
            counts = {"added": 0, "removed": 0}
            for kind, rows in _changed_rows(vocabulary, before):
                if writer is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    sink = stack.enter_context(pa.OSFile(str(stack.enter_context(new_file(path))), "wb"))
                    writer = stack.enter_context(pa.ipc.new_file(sink, _CHANGES))
                counts[kind] += len(rows)
                hashes = hash_texts(rows["value"])
                order = np.argsort(hashes, kind="stable")
                codes = pa.array(np.full(len(rows), code, np.int16))
                columns = [*rows.columns, pa.array(hashes[order]), pa.array(order.astype(np.int32))]
                feature_column = pa.DictionaryArray.from_arrays(codes, names)
                writer.write_batch(pa.RecordBatch.from_arrays([feature_column, *columns], schema=_CHANGES))
            if any(counts.values()):
                growths[feature] = VocabularyGrowth(**counts)
    return growths


def _changed_rows(vocabulary: Path, before: VocabularyLookup) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows (id, value, count) that a vocabulary removes from `before`, then those that it adds, in blocks."""

    def differing() -> Iterator[pa.RecordBatch]:
        """Yield the rows of before that differ, and check that each has lost its value."""
        size = 0
        for batch in read_vocabulary(vocabulary, _ROW):
            ids = batch["id"].to_numpy()
            size = int(ids[-1])
            old = before.values(ids[ids <= len(before)])
            now = batch["value"].slice(0, len(old))
            differs = pc.not_equal(now, old).to_numpy(zero_copy_only=False)
            wrong = np.flatnonzero(differs & ~_is_empty(now))
            if len(wrong):
                raise UserError(
                    f"{vocabulary}: id {ids[wrong[0]]} is '{now[wrong[0]]}' and was '{old[wrong[0]]}' in the "
                    "previous version, so rows of its table changed their meaning; export in full"
                )
            yield batch.select(_ROW).slice(0, len(old)).filter(pa.array(differs))
        if size < len(before):
            raise UserError(
                f"{vocabulary}: has {size:,} ids, but the previous version has {len(before):,}; export in full"
            )

    def following() -> Iterator[pa.RecordBatch]:
        for batch in read_vocabulary(vocabulary, _ROW):
            yield batch.select(_ROW).filter(pc.greater(batch["id"], len(before)))

    for kind, rows in (("removed", differing()), ("added", following())):
        for block in _in_blocks(rows, _SORTED_AT_ONCE):
            yield kind, block


def _in_blocks(batches: Iterable[pa.RecordBatch], size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in blocks of `size` rows, of which the last may have fewer; none without rows."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        while rows >= size:
            whole = pa.concat_batches(held)
            yield whole.slice(0, size)
            held, rows = [whole.slice(size)], rows - size
    if rows:
        yield pa.concat_batches(held)


def _is_empty(values: pa.Array) -> NDArray[np.bool_]:
    return pc.equal(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
