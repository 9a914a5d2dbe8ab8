"""The Poisson bootstrap: in each resample every unit counts a random number of times, of Poisson distribution with mean
1, so that rows need not be gathered anew (Chamandy et al. 2012, "Estimating uncertainty for massive data streams")."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_CELLS = 1 << 16
_SHARES = np.cumsum([math.exp(-1) / math.factorial(k) for k in range(9)])
_TIMES = np.searchsorted(_SHARES, (np.arange(_CELLS) + 0.5) / _CELLS).astype(np.uint8)
"""How often a unit counts by a uniform number of 16 bits: looking it up takes a tenth of the time of drawing it."""


def resamples(units: int, count: int, seed: int) -> Iterator[NDArray[np.uint8]]:
    """Yield (units,) how often each unit counts, for each of `count` resamples."""
    rng = np.random.default_rng([seed, units, count])
    for _ in range(count):
        yield _TIMES[rng.integers(_CELLS, size=units, dtype=np.uint16)]
