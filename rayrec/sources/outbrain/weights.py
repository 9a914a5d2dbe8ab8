"""Weights of the values of an aspect in the vectors that similarities compare. See docs/outbrain.md."""

import numpy as np
from numpy.typing import NDArray


def document_weights(
    confidence: NDArray[np.float64], frequency: NDArray[np.int64], documents: int, *, original: bool
) -> NDArray[np.float64]:
    """(n,) weights of values in documents; NaN for those that are left out.

    `frequency`: documents that have the value, of `documents` documents. `original`: as that of the `full` set.
    """
    inverse = _log_inverse(frequency, documents)
    if not original:
        return np.maximum(inverse, 0.0) * confidence
    return np.log(inverse, out=np.full(len(inverse), np.nan), where=inverse > 0.0) * confidence


def profile_weights(
    viewed: NDArray[np.int64],
    confidence: NDArray[np.float64],
    frequency: NDArray[np.int64],
    documents: int,
    *,
    original: bool,
) -> NDArray[np.float64]:
    """(n,) weights of values in a user's profile: `viewed` documents have the value, with this mean confidence."""
    inverse = _log_inverse(frequency, documents)
    return viewed * (inverse if original else np.maximum(inverse, 0.0)) * confidence


def _log_inverse(frequency: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    """ln(documents / frequency); without documents nothing is rare, so 0."""
    if documents == 0:
        return np.zeros(len(frequency))
    return np.log(documents / frequency)
