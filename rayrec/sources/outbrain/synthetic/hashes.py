"""Random numbers without a state."""

import zlib

import numpy as np
from numpy.typing import NDArray

from rayrec.common.splitmix import mix


class Hashes:
    """Random numbers as a function of their use, the number of the thing and the seed."""

    def __init__(self, seed: int) -> None:
        self._key = mix(np.array([seed], np.uint64))

    def uniform(self, use: str, number: NDArray[np.int64], lanes: int = 1) -> NDArray[np.float64]:
        """(n, lanes) in [0, 1) for numbers (n,)."""
        key = mix(self._key + np.uint64(zlib.crc32(use.encode())))
        first = mix(number.astype(np.uint64) ^ key)
        words: NDArray[np.uint64] = mix(first[:, None] + np.arange(lanes).astype(np.uint64))
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, use: str, number: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) with mean 0 and standard deviation 1, bell-shaped within 3.5: the sum of four uniform ones."""
        return (self.uniform(use, number, 4).sum(axis=1) - 2.0) * np.sqrt(3.0)

    def choice(self, use: str, number: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """(n,) uniform in 0 ... size - 1."""
        return (self.uniform(use, number)[:, 0] * size).astype(np.int64)
