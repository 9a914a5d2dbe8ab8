"""Seeded permutations of row numbers, computed for any row alone: a shuffle needs no state and has exact parts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6


class Permutation:
    """A pseudo-random bijection of 0 ... size - 1, fixed by `seed`.

    A Feistel network over the least number of bits that holds `size`, with SplitMix64's finalizer as its round
    function, repeated for results outside of the range until they fall inside (cycle walking, Black and Rogaway 2002).
    """

    def __init__(self, size: int, seed: int) -> None:
        bits = max(2, (size - 1).bit_length())
        self._size = size
        self._low_bits = np.uint64(bits // 2)
        self._high_bits = np.uint64(bits - bits // 2)
        self._keys = _mix(np.arange(_ROUNDS, dtype=np.uint64) + _mix(np.array([seed & (2**64 - 1)], np.uint64)))

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The new positions (n,) of rows (n,), each in 0 ... size - 1."""
        values = self._cross(indices.astype(np.uint64))
        while len(outside := np.flatnonzero(values >= self._size)):
            values[outside] = self._cross(values[outside])
        return values.astype(np.int64)

    def _cross(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        # The halves differ in width by a bit at most; they swap places, and widths, every round.
        wide, narrow = self._high_bits, self._low_bits
        left, right = values >> narrow, values & ((np.uint64(1) << narrow) - np.uint64(1))
        for key in self._keys:
            mask = (np.uint64(1) << wide) - np.uint64(1)
            left, right = right, left ^ (_mix(right + key) & mask)
            wide, narrow = narrow, wide
        return (left << narrow) | right


class BlockwisePermutation:
    """Permutes the rows of consecutive blocks (days), each within itself."""

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self._bounds = np.concatenate(([0], np.cumsum(np.asarray(sizes, np.int64))))
        self._blocks = [Permutation(size, seed + number) if size else None for number, size in enumerate(sizes)]

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The new positions (n,) of rows (n,)."""
        result = np.empty_like(indices)
        blocks = np.searchsorted(self._bounds, indices, side="right") - 1
        for block in np.unique(blocks):
            inside = blocks == block
            permutation = self._blocks[block]
            assert permutation is not None
            result[inside] = self._bounds[block] + permutation(indices[inside] - self._bounds[block])
        return result


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
