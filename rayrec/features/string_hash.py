"""A 64-bit hash of strings: one string in plain Python, or an Arrow array at once in NumPy, with the same result.

The UTF-8 bytes are read as little-endian 8-byte words, the last padded with zeros; each word is added with xor and
mixed by the finalizer of SplitMix64 (Steele, Lea, Flood 2014), from a start that depends on the length. Datasets and
models hold its values (`Hash`, the tables of `rayrec.features.keyed_table`), so it cannot change.
"""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.random.splitmix64 import finalize, finalize_array

_LEADING_BYTES = np.array([2 ** (8 * n) - 1 for n in range(9)], dtype=np.uint64)


def hash_string(value: str) -> int:
    """The hash of one string."""
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
