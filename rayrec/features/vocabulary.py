"""Vocabularies: the Parquet files that list a feature's values by id, and their look-up in memory."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.string_hash import by_distinct_text, find_hashes, hash_string, hash_strings
from rayrec.random.splitmix64 import mix

VOCABULARY_SCHEMA = pa.schema(
    [pa.field("value", pa.string(), False), pa.field("id", pa.int64(), False), pa.field("count", pa.int64(), False)]
)
SCALAR_LOOKUPS = 64
"""Up to this number, looking values up one at a time (about 5 us each) beats the vectorised call (about 300 us)."""
REQUEST_VALUES = 1024
"""Up to this number, values are taken for those of a request, most of which were asked before: about 0.1 us each."""
_REMEMBERED = 16_384
"""Most answers that a look-up remembers (3 MiB); then it forgets them all, which costs less than knowing the oldest."""


class VocabularyLookup:
    """Value -> id of one vocabulary, exact, in 20 bytes a value plus the value's own bytes.

    The values' 64-bit hashes are sorted once and searched by bisection. A hit is confirmed against the value itself, so
    values that share a hash stay apart.
    """

    def __init__(self, values: pa.Array) -> None:
        """`values` (string): the value of id 1, 2, ... in order, each once."""
        self.values = values.cast(pa.large_string())
        """The value (large_string) of id 1, 2, ..."""
        hashes = hash_strings(self.values)
        order = np.argsort(hashes, kind="stable")
        self._hashes: NDArray[np.uint64] = hashes[order]
        # 32 bits take half the memory, if they can number the values.
        self._rank: NDArray[np.integer] = order.astype(np.int32) if len(hashes) <= 2**31 else order
        self._remembered: dict[str | None, int] = {}

    @classmethod
    def load(cls, path: Path, max_values: int | None = None) -> "VocabularyLookup":
        """Read a vocabulary, a Parquet file or a folder of parts; with `max_values`, only its most frequent values.

        A value beyond those is unlisted for the look-up. Raises UserError if the files are missing or no vocabulary.
        """
        return cls(pa.chunked_array(list(_read(path, max_values)), pa.large_string()).combine_chunks())

    def __len__(self) -> int:
        return len(self.values)

    def ids(self, values: pa.Array) -> NDArray[np.int64]:
        """(n,) ids of n values (string, large_string or a dictionary of them); 0 for null, empty and unlisted ones."""
        if len(values) <= REQUEST_VALUES:
            return self._ids_of_request(values.to_pylist())
        if pa.types.is_dictionary(values.type) and len(values.dictionary) > len(values):
            values = values.dictionary_decode()  # a slice of a long column, most of whose dictionary it does not use
        # Columns repeat values, so that most of the rows are served by a gather.
        return by_distinct_text(values, self._ids_of, 0)

    def _ids_of_request(self, values: list[str | None]) -> NDArray[np.int64]:
        remembered = self._remembered
        ids = list(map(remembered.get, values))
        if None in ids:
            new = list({value for value, known in zip(values, ids, strict=True) if known is None})
            if len(new) <= SCALAR_LOOKUPS:
                found = [self._id_of(value) for value in new]
            else:
                found = self._ids_of(pa.array(new, pa.large_string())).tolist()
            answers = dict(zip(new, found, strict=True))
            ids = [answers[value] if known is None else known for value, known in zip(values, ids, strict=True)]
            if len(remembered) + len(answers) > _REMEMBERED:
                self._remembered = answers
            else:
                remembered.update(answers)
        return np.array(ids, np.int64)

    def _id_of(self, value: str | None) -> int:
        if not value:
            return 0
        hashed = np.uint64(hash_string(value))
        entry = int(self._hashes.searchsorted(hashed))
        while entry < len(self._hashes) and self._hashes[entry] == hashed:
            rank = int(self._rank[entry])
            if self.values[rank].as_py() == value:
                return rank + 1
            entry += 1
        return 0

    def _ids_of(self, values: pa.Array) -> NDArray[np.int64]:

        def is_listed(entries: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.bool_]:
            listed = self.values.take(pa.array(self._rank[entries]))
            return pc.equal(listed, values.take(pa.array(asked))).to_numpy(zero_copy_only=False)

        ids = np.zeros(len(values), np.int64)
        present = pc.fill_null(pc.not_equal(values, ""), False).to_numpy(zero_copy_only=False)
        hashes = hash_strings(values)
        order = np.argsort(hashes)
        for found, entries in find_hashes(self._hashes, hashes, order[present[order]], is_listed):
            ids[found] = self._rank[entries].astype(np.int64) + 1
        return ids


def fingerprint(values: pa.Array, first_id: int) -> int:
    """A 64-bit word of the values (string) of ids `first_id`, `first_id` + 1, ...

    The words of a vocabulary's parts add up, modulo 2^64, to the word of the whole, however it is cut.
    """
    hashes = hash_strings(values.cast(pa.large_string()))
    # Mixed together, as two values that changed places would leave the sum of separate hashes as it was.
    ids = np.arange(first_id, first_id + len(values), dtype=np.uint64)
    return int(mix(hashes ^ mix(ids)).sum(dtype=np.uint64))


def vocabulary_files(path: Path) -> list[Path]:
    """The Parquet files of a vocabulary, a file or a folder of parts, in the order of ids."""
    return sorted(path.glob("*.parquet")) if path.is_dir() else [path]


def write_vocabulary(path: Path, values: Sequence[str], counts: Sequence[int]) -> None:
    """Write a vocabulary to one Parquet file; `values` by descending count, ties by value: the first one has id 1."""
    table = pa.table([values, range(1, len(values) + 1), counts], schema=VOCABULARY_SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _read(path: Path, max_values: int | None) -> Iterator[pa.Array]:
    """The values in order of id, as large_string arrays."""
    files = vocabulary_files(path)
    if not files:
        raise UserError(f"{path}: no Parquet parts of a vocabulary in it; run `rayrec preprocess` again")
    rows = 0
    for file in files:
        try:
            with pq.ParquetFile(file) as parquet:
                for batch in parquet.iter_batches(columns=["value", "id"]):
                    head = batch if max_values is None else batch.slice(0, max_values - rows)
                    ids = head.column("id").to_numpy(zero_copy_only=False)
                    if not np.array_equal(ids, np.arange(rows + 1, rows + 1 + len(ids))):
                        raise UserError(f"{file}: ids do not run on from {rows + 1}; run `rayrec preprocess` again")
                    rows += len(ids)
                    yield head.column("value").cast(pa.large_string())
                    if rows == max_values:
                        return
        except FileNotFoundError:
            raise UserError(f"{file}: missing; the vocabulary belongs beside schema.json") from None
        except (pa.ArrowInvalid, KeyError) as error:
            raise UserError(f"{file}: not a vocabulary (columns value, id): {str(error).splitlines()[0]}") from None
