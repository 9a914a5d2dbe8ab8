"""Random numbers, hashes and permutations over NumPy.

All come from SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014). Its n-th
number is `finalize` of the seed plus n times `GAMMA`, so any of them is computed without those before it.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
"""The generator's state grows by this from one number to the next."""
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1
_ROUNDS = 6
"""Rounds of the Feistel network of a permutation."""


def finalize(word: int) -> int:
    """Return the finalizer of SplitMix64, a bijection of 64-bit words, of one word."""
    word = ((word ^ (word >> 30)) * FIRST_FACTOR) & _MASK
    word = ((word ^ (word >> 27)) * SECOND_FACTOR) & _MASK
    return word ^ (word >> 31)


def finalize_array(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return `finalize` of each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(FIRST_FACTOR)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(SECOND_FACTOR)
    return words ^ (words >> np.uint64(31))


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the number that the generator gives in each of these states: a bijection of 64-bit words."""
    return finalize_array(words + np.uint64(GAMMA))


def hash_integers(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return (n,) uint64 hashes of (n,) int64: `mix` of the two's complement. No two integers share one."""
    return mix(values.view(np.uint64))


def uniform(values: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Return (n,) numbers in [0, 1] that depend on the integer and the seed only: the `seed`-th of SplitMix64."""
    state = values.view(np.uint64) + np.array([(seed * GAMMA) % 2**64], np.uint64)
    return mix(state) / 2.0**64


class StatelessRandom:
    """Random numbers as a function of their purpose, the number of a thing, and the seed."""

    def __init__(self, seed: int) -> None:
        self._key = mix(np.array([seed], np.uint64))

    def uniform(self, purpose: str, number: NDArray[np.int64], count: int = 1) -> NDArray[np.float64]:
        """Return (n, count) in [0, 1) for things (n,)."""
        key = mix(self._key + np.uint64(zlib.crc32(purpose.encode())))
        first = mix(number.astype(np.uint64) ^ key)
        words: NDArray[np.uint64] = mix(first[:, None] + np.arange(count).astype(np.uint64))
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, purpose: str, number: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (n,) with mean 0 and standard deviation 1, bell-shaped within 3.5: the sum of four uniform numbers."""
        return (self.uniform(purpose, number, 4).sum(axis=1) - 2.0) * np.sqrt(3.0)

    def choice(self, purpose: str, number: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Return (n,) uniform in 0 ... size - 1."""
        return (self.uniform(purpose, number)[:, 0] * size).astype(np.int64)


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
