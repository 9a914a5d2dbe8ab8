"""A 64-bit hash of strings: one string in plain Python, or an Arrow array at once in NumPy, with the same result.

The UTF-8 bytes are read as little-endian 8-byte words, the last padded with zeros; each word is added with xor and
mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014), from a start that depends on the length. Datasets and
models hold its values (`Hash`, the tables of `rayrec.features.keyed_table`), so it cannot change.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.random.splitmix64 import finalize, finalize_array

Integers = NDArray[np.int64]
_LEADING_BYTES = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)


def hash_string(value: str) -> int:
    """Return the hash of one string."""
    data = value.encode()
    hashed = finalize(len(data))
    for start in range(0, len(data), 8):
        hashed = finalize(hashed ^ int.from_bytes(data[start : start + 8], "little"))
    return hashed


def hash_strings(values: pa.Array) -> NDArray[np.uint64]:
    """(n,) uint64 hashes of a large_string array; of a null, any number."""
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
    while len(rows):
        remaining = length[rows] - position
        word = words[offsets[rows] - first + position].view("<u8")[:, 0] & _LEADING_BYTES[np.minimum(remaining, 8)]
        hashes[rows] = finalize_array(hashes[rows] ^ word)
        rows = rows[remaining > 8]
        position += 8
    return hashes


def by_distinct_text(texts: pa.Array, function: Callable[[pa.Array], Integers], missing: int) -> Integers:
    """(n,) what `function` gives for n texts, called with the distinct ones (large_string); `missing` for nulls."""
    encoded = texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()
    values = encoded.dictionary.cast(pa.large_string())
    numbers = np.append(function(values), missing)
    return numbers[encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy()]


def find_hashes(
    held: NDArray, hashes: NDArray, pending: Integers, is_same: Callable[[Integers, Integers], NDArray[np.bool_]]
) -> Iterator[tuple[Integers, Integers]]:
    """Find hashes among ascending `held` ones: yields positions in `hashes`, and the entries of `held` of their keys.

    `pending`: the positions to find, by ascending hash, so that the search walks through the entries once instead of
    missing the cache at every step. `is_same(entries, positions)` tells which have the same key, not only its hash.
    """
    entry = np.searchsorted(held, hashes[pending])
    while len(pending):
        inside = entry < len(held)
        pending, entry = pending[inside], entry[inside]
        is_hit = held[entry] == hashes[pending]
        pending, entry = pending[is_hit], entry[is_hit]
        equal = is_same(entry, pending)
        yield pending[equal], entry[equal]
        # Left over: keys whose hash is that of another key; the next entry may be theirs.
        pending, entry = pending[~equal], entry[~equal] + 1
