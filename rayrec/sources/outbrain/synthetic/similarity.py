"""Cosines of the values that documents and users have in an aspect, weighted by confidence."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayrec.sources.outbrain.synthetic.world import Slots

_VALUES = 2**40
"""More than an aspect has: keys are owner * _VALUES + value."""


def document_cosine(first: Slots, second: Slots) -> NDArray[np.float64]:
    """(n,) of documents n with documents n; 0 where one has no values."""
    same = first.values[:, :, None] == second.values[:, None, :]
    dot = (same * first.confidence[:, :, None] * second.confidence[:, None, :]).sum(axis=(1, 2))
    return _cosine(dot, _norm(first), _norm(second))


@dataclass(frozen=True)
class Profiles:
    """What the documents that each user viewed amount to in one aspect: the sum of their confidences by value."""

    keys: NDArray[np.int64]
    """Ascending owner * _VALUES + value."""
    weights: NDArray[np.float64]
    """With a 0 at the end, for keys that are not there."""
    norms: NDArray[np.float64]
    """By user."""

    @classmethod
    def of(cls, users: int, owner: NDArray[np.int64], viewed: Slots) -> "Profiles":
        """Of users 0 ... users - 1, from n views (distinct documents of a user): whose, and of which document."""
        present = viewed.confidence > 0.0
        keys = (owner[:, None] * _VALUES + viewed.values)[present]
        unique, inverse = np.unique(keys, return_inverse=True)
        weights = np.bincount(inverse, viewed.confidence[present], minlength=len(unique))
        norms = np.sqrt(np.bincount(unique // _VALUES, weights**2, minlength=users))
        return cls(unique, np.append(weights, 0.0), norms)

    def cosine(self, owner: NDArray[np.int64], documents: Slots) -> NDArray[np.float64]:
        """(n,) of users n with documents n; 0 where one has no values."""
        keys = owner[:, None] * _VALUES + documents.values
        found = np.searchsorted(self.keys, keys)
        is_there = np.append(self.keys, -1)[found] == keys
        weights = self.weights[np.where(is_there, found, -1)]
        return _cosine((weights * documents.confidence).sum(axis=1), self.norms[owner], _norm(documents))


def _norm(slots: Slots) -> NDArray[np.float64]:
    return np.sqrt((slots.confidence**2).sum(axis=1))


def _cosine(dot: NDArray[np.float64], first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = first * second
    return np.divide(dot, norms, out=np.zeros_like(dot), where=norms > 0.0)
