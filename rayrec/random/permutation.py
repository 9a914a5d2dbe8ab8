"""Seeded permutations of row numbers over NumPy, computed for any row alone."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rayrec.random.splitmix64 import mix

_ROUNDS = 6


class HashPermutation:
    """A pseudo-random permutation of 0 ... size - 1, fixed by `seed`.

    It is a Feistel network over the least number of bits that holds `size`, with hashes by SplitMix64 as its rounds.
    Results outside the range are put through it again until they fall inside (cycle walking, Black and Rogaway 2002).
    """

    def __init__(self, size: int, seed: int) -> None:
        self._size = size
        self._seed = np.array([seed & (2**64 - 1)], np.uint64)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the new positions (n,) of rows (n,), each in 0 ... size - 1."""
        return permute_each(indices, np.array([self._size]), self._seed)


def permute_each(
    indices: NDArray[np.int64], sizes: NDArray[np.int64], seeds: NDArray[np.uint64], least_bits: int = 2
) -> NDArray[np.int64]:
    """Return the new positions (n,) of `indices` (n,), each by a permutation of its own of 0 ... size - 1, fixed by its
    seed.

    `sizes` and `seeds`: (n,), or (1,) if one permutation serves all indices. `least_bits`: the least width of the
    network. A narrow one makes some permutations more frequent than others; a wider one than needed takes more passes.
    """
    # The bits of the largest value, which float64 gives exactly up to 2^53.
    bits = np.maximum(least_bits, np.frexp((sizes - 1).astype(np.float64))[1]).astype(np.uint64)
    limits, key = sizes.astype(np.uint64), mix(seeds)
    values = _cross(indices.astype(np.uint64), bits, key)
    while len(outside := np.flatnonzero(values >= limits)):
        own = slice(None) if len(key) == 1 else outside
        values[outside] = _cross(values[outside], bits[own], key[own])
    return values.astype(np.int64)


def _cross(values: NDArray[np.uint64], bits: NDArray[np.uint64], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the values after one pass through a Feistel network over numbers of so many bits."""
    # The widths of the halves differ by one bit at most; the halves swap places, and widths, in every round.
    one = np.uint64(1)
    narrow = bits // np.uint64(2)
    wide = bits - narrow
    left, right = values >> narrow, values & ((one << narrow) - one)
    for number in range(_ROUNDS):
        left, right = right, left ^ (mix(right + mix(key + np.uint64(number))) & ((one << wide) - one))
        wide, narrow = narrow, wide
    return (left << narrow) | right


class BlockwisePermutation:
    """Permutes the rows of consecutive blocks, such as days, within each block: block n by seed + n."""

    def __init__(self, sizes: Sequence[int], seed: int) -> None:
        self._sizes = np.asarray(sizes, np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._seeds = np.array([(seed + number) % 2**64 for number in range(len(sizes))], np.uint64)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the new positions (n,) of rows (n,)."""
        block = np.searchsorted(self._starts, indices, side="right") - 1
        starts = self._starts[block]
        return starts + permute_each(indices - starts, self._sizes[block], self._seeds[block])
