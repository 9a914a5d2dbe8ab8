"""Vocabularies: the Parquet files that list a feature's values by id, and the index in which values are looked up.

The index lies beside the Parquet files and is mapped into memory, so that a vocabulary takes the memory of the pages
that were looked up, which all processes of a machine share.
"""

import mmap
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.common.mapped_file import MappedFile
from rayrec.features.string_hash import by_distinct_text, find_hashes, hash_string, hash_strings
from rayrec.random.splitmix64 import mix
from rayrec.store.files import new_file
from rayrec.store.node_copy import on_this_node
from rayrec.store.parquet import open_parquet

VOCABULARY_SCHEMA = pa.schema(
    [pa.field("value", pa.string(), False), pa.field("id", pa.int64(), False), pa.field("count", pa.int64(), False)]
)
VALUES_PER_FILE = 4_194_304
"""A longer vocabulary is a folder of parts."""
VALUES_PER_ROW_GROUP = 65_536
SCALAR_LOOKUPS = 64
"""Up to this number, looking values up one at a time (about 5 us each) beats the vectorised call (about 300 us)."""
REQUEST_VALUES = 1024
"""Up to this number, values are taken for those of a request, most of which were asked before: about 0.1 us each."""
_REMEMBERED = 16_384
"""Most answers that a look-up remembers (3 MiB); then it forgets them all, which costs less than knowing the oldest."""
_SORTED_AT_ONCE = 4_194_304
"""About as many hashes are sorted in memory (120 MiB)."""
_LOOKED_AT_ONCE = 16_777_216


class VocabularyLookup(ABC):
    """Value -> id of one vocabulary, exact."""

    mapped: tuple[MappedFile, ...]
    """The files that it is mapped from."""

    def __init__(self) -> None:
        self._remembered: dict[str | None, int] = {}

    @classmethod
    def load(cls, path: Path) -> "VocabularyLookup":
        """Map the index of a vocabulary, a Parquet file or a folder of parts. Raises UserError if it is missing."""
        return VocabularyIndex(index_file(path))

    @abstractmethod
    def __len__(self) -> int:
        """Return the highest id."""

    @abstractmethod
    def values(self, ids: NDArray[np.int64]) -> pa.Array:
        """(n,) large_string, the values of n ids from 1 on; empty for those that stand for no value any longer."""

    @abstractmethod
    def removed(self) -> NDArray[np.int64]:
        """Return the ids, ascending, that stand for no value any longer."""

    @abstractmethod
    def find(self, value: str, hashed: np.uint64) -> int:
        """Return the id of a value that is not empty, given its hash; 0 if it is unlisted."""

    @abstractmethod
    def find_all(self, values: pa.Array, hashes: NDArray[np.uint64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) ids of n values (large_string), given their hashes; 0 for those that are unlisted or not wanted.

        `wanted`: the positions of those to find, by ascending hash; none of these values is empty.
        """

    def ids(self, values: pa.Array) -> NDArray[np.int64]:
        """(n,) ids of n values (string, large_string or a dictionary of them); 0 for null, empty and unlisted ones."""
        if len(values) <= REQUEST_VALUES:
            return self.ids_of_request(values.to_pylist())
        if pa.types.is_dictionary(values.type) and len(values.dictionary) > len(values):
            values = values.dictionary_decode()  # a slice of a long column, most of whose dictionary it does not use
        # Columns repeat values, so that most of the rows are served by a gather.
        return by_distinct_text(values, self._ids_of, 0)

    def ids_of_request(self, values: list[str | None]) -> NDArray[np.int64]:
        """(n,) ids, looked up as `ids` does, of the values of a request."""
        with suppress(KeyError):
            return np.fromiter(map(self._remembered.__getitem__, values), np.int64, len(values))
        return np.array(self.ids_of_few(values), np.int64)

    def ids_of_few(self, values: list[str | None]) -> list[int]:
        """Look up ids as `ids_of_request` does, of so few values that an array would take longer."""
        remembered = self._remembered
        # The cheapest way to try, and for one row there is one for each of its columns.
        try:
            return list(map(remembered.__getitem__, values))
        except KeyError:
            pass
        new = list(set(values).difference(remembered))
        if len(new) <= SCALAR_LOOKUPS:
            found = [self._id_of(value) for value in new]
        else:
            found = self._ids_of(pa.array(new, pa.large_string())).tolist()
        answers = dict(zip(new, found, strict=True))
        ids = [answers[value] if value in answers else remembered[value] for value in values]
        if len(remembered) + len(answers) > _REMEMBERED:
            self._remembered = answers
        else:
            remembered.update(answers)
        return ids

    def _id_of(self, value: str | None) -> int:
        return self.find(value, np.uint64(hash_string(value))) if value else 0

    def _ids_of(self, values: pa.Array) -> NDArray[np.int64]:
        present = pc.fill_null(pc.not_equal(values, ""), False).to_numpy(zero_copy_only=False)
        hashes = hash_strings(values)
        order = np.argsort(hashes)
        return self.find_all(values, hashes, order[present[order]])


class VocabularyIndex(VocabularyLookup):
    """The look-up in an index that is mapped from its file.

    The values' 64-bit hashes are searched by bisection. A hit is confirmed against the value itself, so values that
    share a hash stay apart.
    """

    def __init__(self, index: Path) -> None:
        """Map an index that `write_index` wrote. Raises UserError if it is missing or damaged."""
        super().__init__()
        try:
            file = MappedFile(on_this_node(index))
            batch = pa.ipc.open_file(pa.py_buffer(file.content)).get_batch(0)
            batch.validate()
            hashes, entries, values = (batch[name] for name in ("hash", "entry", "value"))
        except FileNotFoundError:
            raise UserError(f"{index}: missing; the index of a vocabulary belongs beside it") from None
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{index}: not the index of a vocabulary ({reason}); preprocess again") from None
        self.mapped = (file,)
        self._values: pa.Array = values
        """The value (large_string) of id 1, 2, ..."""
        self._hashes: NDArray[np.uint64] = hashes.to_numpy()
        """The hashes of all values, ascending."""
        self._entries: NDArray[np.integer] = entries.to_numpy()
        """The place in `_values` of the value of each hash."""

    def __len__(self) -> int:
        return len(self._values)

    def values(self, ids: NDArray[np.int64]) -> pa.Array:
        return self._values.take(pa.array(ids - 1))

    def removed(self) -> NDArray[np.int64]:
        return np.flatnonzero(pc.equal(pc.binary_length(self._values), 0).to_numpy(zero_copy_only=False)) + 1

    def find(self, value: str, hashed: np.uint64) -> int:
        entry = int(self._hashes.searchsorted(hashed))
        while entry < len(self._hashes) and self._hashes[entry] == hashed:
            place = int(self._entries[entry])
            if self._values[place].as_py() == value:
                return place + 1
            entry += 1
        return 0

    def find_all(self, values: pa.Array, hashes: NDArray[np.uint64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        def is_listed(entries: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
            listed = self._values.take(pa.array(self._entries[entries]))
            return pc.equal(listed, values.take(pa.array(asked))).to_numpy(zero_copy_only=False)

        ids = np.zeros(len(values), np.int64)
        for found, entries in find_hashes(self._hashes, hashes, wanted, is_listed):
            ids[found] = self._entries[entries].astype(np.int64) + 1
        return ids


def fingerprint(values: pa.Array, first_id: int) -> int:
    """Return a 64-bit word of the values (string) of ids `first_id`, `first_id` + 1, ...

    The words of a vocabulary's parts add up, modulo 2^64, to the word of the whole, however it is cut.
    """
    hashes = hash_strings(values.cast(pa.large_string()))
    # Mixed together, as two values that changed places would leave the sum of separate hashes as it was.
    ids = np.arange(first_id, first_id + len(values), dtype=np.uint64)
    return int(mix(hashes ^ mix(ids)).sum(dtype=np.uint64))


def vocabulary_files(path: Path) -> list[Path]:
    """Return the Parquet files of a vocabulary, a file or a folder of parts, in the order of ids."""
    return [path] if path.suffix == ".parquet" else sorted(path.glob("*.parquet"))


def index_file(path: Path) -> Path:
    """Return the path of a vocabulary's index, which lies beside a Parquet file or in a folder of parts."""
    return path.with_suffix(".arrow") if path.suffix == ".parquet" else path / "index.arrow"


def write_vocabulary(path: Path, values: Sequence[str], counts: Sequence[int]) -> None:
    """Write a vocabulary to one Parquet file, and its index; `values` by descending count, ties by value.

    The first value has id 1.
    """
    table = pa.table([values, range(1, len(values) + 1), counts], schema=VOCABULARY_SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    write_index(path, index_file(path))


def write_index(vocabulary: Path, index: Path, max_values: int | None = None) -> None:
    """Write the index of a vocabulary, or with `max_values` that of its most frequent values, whole or not at all.

    It is an Arrow file of one batch: `hash` (uint64), ascending; `entry` (int32, or int64 beyond 2^31 values), for each
    hash the place of its value; `value` (large_string), in the order of ids. Memory is bounded: what grows with the
    values lies in temporary files beside it. Raises UserError if `vocabulary` is missing or no vocabulary.
    """
    with ExitStack() as stack:
        temporary = stack.enter_context(new_file(index))

        def column() -> IO[bytes]:
            return stack.enter_context(tempfile.TemporaryFile(dir=temporary.parent))

        by_id, offsets, texts, hashes, entries = (column() for _ in range(5))
        offsets.write(np.int64(0).tobytes())
        rows = size = 0
        for batch in read_vocabulary(vocabulary, max_values=max_values):
            values = batch["value"]
            by_id.write(hash_strings(values).data)
            _, starts, data = values.buffers()
            ends = np.frombuffer(starts, np.int64, len(values) + 1, offset=8 * values.offset)
            offsets.write((ends[1:] - ends[0] + size).data)
            if data is not None:
                texts.write(memoryview(data)[ends[0] : ends[-1]])
            rows += len(values)
            size += int(ends[-1] - ends[0])
        # 32 bits take half the memory, if they can number the values.
        number = np.dtype(np.int32 if rows <= 2**31 else np.int64)
        for ascending, places in _sorted(np.frombuffer(_mapped(by_id), np.uint64)):
            hashes.write(ascending.data)
            entries.write(places.astype(number).data)
        columns = {
            "hash": pa.Array.from_buffers(pa.uint64(), rows, [None, pa.py_buffer(_mapped(hashes))]),
            "entry": pa.Array.from_buffers(pa.from_numpy_dtype(number), rows, [None, pa.py_buffer(_mapped(entries))]),
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


def _sorted(hashes: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Yield the hashes (n,) in ascending order with their places, equal ones by place, a range of hashes at a time."""
    ranges = -(-len(hashes) // _SORTED_AT_ONCE)
    for number in range(ranges):
        first, last = number * 2**64 // ranges, (number + 1) * 2**64 // ranges - 1
        parts = []
        for start in range(0, len(hashes), _LOOKED_AT_ONCE):
            part = hashes[start : start + _LOOKED_AT_ONCE]
            parts.append(start + np.flatnonzero((part >= np.uint64(first)) & (part <= np.uint64(last))))
        places = np.concatenate(parts)
        found = hashes[places]
        order = np.argsort(found, kind="stable")
        yield found[order], places[order]


def read_vocabulary(
    path: Path, columns: Sequence[str] = ("value", "id"), max_values: int | None = None
) -> Iterator[pa.RecordBatch]:
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
                    head = batch if max_values is None else batch.slice(0, max_values - rows)
                    ids = head.column("id").to_numpy(zero_copy_only=False)
                    if not np.array_equal(ids, np.arange(rows + 1, rows + 1 + len(ids))):
                        raise UserError(f"{file}: ids do not continue from {rows + 1}; run `rayrec preprocess` again")
                    rows += len(ids)
                    large = head.column("value").cast(pa.large_string())
                    yield head.set_column(head.schema.get_field_index("value"), "value", large)
                    if rows == max_values:
                        return
        except FileNotFoundError:
            raise UserError(f"{file}: missing; the vocabulary belongs beside schema.json") from None
        except (pa.ArrowInvalid, KeyError) as error:
            raise UserError(f"{file}: not a vocabulary (columns value, id): {str(error).splitlines()[0]}") from None
