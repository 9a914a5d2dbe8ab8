"""A 64-bit hash of integers, and numbers drawn by it, over NumPy."""

import numpy as np
from numpy.typing import NDArray

from rayrec.common.splitmix import mix

_GAMMA = 0x9E3779B97F4A7C15
"""SplitMix64's state grows by this from one number to the next."""


def hash_integers(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(n,) uint64 hashes of (n,) int64: `mix` of the two's complement. No two integers share one."""
    return mix(values.view(np.uint64))


def uniform(values: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """(n,) numbers of [0, 1] that depend on the integer and the seed alone: number `seed` of SplitMix64 from there."""
    state = values.view(np.uint64) + np.array([(seed * _GAMMA) % 2**64], np.uint64)
    return mix(state) / 2.0**64
