"""SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) over integers and NumPy.

Its n-th number is `finalize` of the seed plus n times `GAMMA`, so any of them is computed without those before it.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
"""The generator's state grows by this from one number to the next."""
FIRST_FACTOR, SECOND_FACTOR = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = 2**64 - 1


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
