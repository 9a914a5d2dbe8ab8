"""The population stability index: how far two distributions over the same cells are apart."""

import numpy as np
from numpy.typing import NDArray

_SMALLEST_SHARE = 1e-4


def stability_index(expected: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """Return the sum of (a - e) ln(a / e) over cells; `expected` and `actual`: (n,) shares, or counts, of each cell.

    Values below 0.1 are usually read as no change, values above 0.25 as a large one. Shares below 0.0001 count as that.
    """
    e, a = (np.maximum(counts / counts.sum(), _SMALLEST_SHARE) for counts in (expected, actual))
    return float(((a - e) * np.log(a / e)).sum())
