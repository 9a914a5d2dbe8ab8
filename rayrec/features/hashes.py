"""64-bit hashes of keys: texts, and integers alone or several together; the same for one and for an Arrow array.

The UTF-8 bytes of a text are read as little-endian 8-byte words, the last padded with zeros; each word is added with
xor and mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014), from a start that depends on the length.
Datasets and models hold such hashes (`Hash`, `rayrec.features.lookup_table`), so they cannot change.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.random.arrays import finalize, finalize_array, hash_integers, mix

_LEADING_BYTES = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)
_FEW, _LONG = 16, 2**16
"""Texts that are as fast one by one as together; bytes of one that is worth keeping its hash."""


def hash_string(value: str) -> int:
    """Return the hash of one text, from 0 to 2^64 - 1."""
    data = value.encode()
    return _hash_rest(finalize(len(data)), data)


def _hash_rest(hashed: int, data: bytes) -> int:
    """Return the hash of a text from that of its first words, and the bytes of the others."""
    for word in np.frombuffer(data + bytes(-len(data) % 8), "<u8").tolist():
        hashed = finalize(hashed ^ word)
    return hashed


_hash_long_rest = lru_cache(maxsize=4)(_hash_rest)
"""A job hashes a text several times, and a single one of megabytes would take most of its time."""


def hash_strings(values: pa.Array) -> NDArray[np.uint64]:
    """Return the hashes (n,) of a large_string array; of a null, any number."""
    if len(values) == 0:
        return np.empty(0, np.uint64)
    _, offset_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64, len(values) + 1, offset=values.offset * 8)
    first, length = offsets[0], np.diff(offsets)
    # Padding lets every word be read whole.
    data = np.zeros(int(offsets[-1] - first) + 8, np.uint8)
    if offsets[-1] > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8, len(data) - 8, offset=int(first))
    words = np.lib.stride_tricks.sliding_window_view(data, 8)
    hashes = finalize_array(length.astype(np.uint64))
    rows = np.flatnonzero(length > 0)
    position = 0
    while len(rows) > _FEW:
        remaining = length[rows] - position
        word = words[offsets[rows] - first + position].view("<u8")[:, 0] & _LEADING_BYTES[np.minimum(remaining, 8)]
        hashes[rows] = finalize_array(hashes[rows] ^ word)
        rows = rows[remaining > 8]
        position += 8
    for row in rows.tolist():
        start, end = offsets[row] - first + position, offsets[row + 1] - first
        rest = _hash_long_rest if end - start > _LONG else _hash_rest
        hashes[row] = rest(int(hashes[row]), data[start:end].tobytes())
    return hashes


def hash_text(text: str) -> int:
    """Return the hash of one text as a signed number, as tables have it: Spark has no unsigned ones."""
    hashed = hash_string(text)
    return hashed - 2**64 if hashed >= 2**63 else hashed


def hash_texts(texts: pa.Array) -> NDArray[np.int64]:
    """Return the signed hashes (n,) of texts (string or large_string); any number for a null."""
    return hash_strings(texts.cast(pa.large_string())).view(np.int64)


def hash_key(first: NDArray[np.int64], *others: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the signed hashes (n,) of keys of one or more integers."""
    hashed = hash_integers(first)
    for other in others:
        hashed = mix(hashed ^ other.view(np.uint64))
    return hashed.view(np.int64)


def by_distinct_text(
    texts: pa.Array, function: Callable[[pa.Array], NDArray[np.int64]], missing: int
) -> NDArray[np.int64]:
    """Return what `function` gives for n texts, called with the distinct ones (large_string); `missing` for nulls."""
    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    values = encoded.dictionary.cast(pa.large_string())
    numbers = np.append(function(values), missing)
    return numbers[encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy()]
