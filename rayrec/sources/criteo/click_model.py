"""The known truth behind generated rows: the probability of a click as a function of the row's values.

    logit p = bias + sum_j w_j ln(I_j + 3) + sum_k w_k effect_k(C_k) + sum_(a,b) w_ab latent_a(C_a) latent_b(C_b)

A missing number counts as 0 in place of ln(I + 3), as preprocessing encodes it. Effects and latent values belong to the
`HEAD` most frequent values of a column and to "missing"; all rarer values of a column share an effect of 0, so that
what can be known about a row is learnable from a sample in which rare values occur once or never.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

HEAD = 100
"""Most frequent values of a column that have an effect of their own."""
BASE_RATE = 0.25
LOGIT_SD = 1.4
"""Standard deviation of the logit; nearly normal logits of this width at this base rate give a best AUC near 0.80."""
NUMERIC_SHARE, CATEGORICAL_SHARE, INTERACTION_SHARE = 0.35, 0.50, 0.15
"""Shares of the logit's variance."""
INTERACTIONS = ((0, 13), (1, 16), (4, 22), (7, 8))
"""Pairs of categorical columns (from 0: C1 with C14, ...) whose values act together."""


@dataclass(frozen=True)
class RawValues:
    """The values of n rows before they are written out."""

    numbers: NDArray[np.int64]
    """(n, 13); any value if missing."""
    numbers_missing: NDArray[np.bool_]
    """(n, 13)."""
    ranks: NDArray[np.int64]
    """(n, 26) ranks of the categorical values by expected frequency, from 1; 0 for missing."""


class ClickModel:
    """A logistic model over `terms`, drawn from a seed and scaled on a sample of rows."""

    def __init__(self, seed: int, sample: RawValues) -> None:
        """`sample`: rows on which variance shares and base rate are met."""
        rng = np.random.default_rng(seed)
        columns = sample.ranks.shape[1]
        # Position 0: missing; 1 ... HEAD: the frequent values; HEAD + 1: all the others.
        self._effects = rng.uniform(-1.0, 1.0, (columns, HEAD + 2))
        self._latent = rng.choice([-1.0, 1.0], (columns, HEAD + 2))
        self._effects[:, -1] = 0.0
        self._latent[:, -1] = 0.0

        terms = self.terms(sample)
        spread = terms.std(axis=0)
        weights = rng.uniform(0.3, 1.0, terms.shape[1]) * rng.choice([-1.0, 1.0], terms.shape[1])
        # A term that never varies says nothing about clicks.
        weights = np.divide(weights, spread, out=np.zeros_like(spread), where=spread > 0.0)
        numbers = sample.numbers.shape[1]
        groups = np.split(np.arange(len(weights)), [numbers, numbers + columns])
        shares = (NUMERIC_SHARE, CATEGORICAL_SHARE, INTERACTION_SHARE)
        for group, share in zip(groups, shares, strict=True):
            group_spread = float(_weighted(terms[:, group], weights[group]).std())
            if group_spread > 0.0:
                weights[group] *= LOGIT_SD * np.sqrt(share) / group_spread
        self._weights = weights
        self._bias = _bias_for(_weighted(terms, weights), BASE_RATE)

    def terms(self, values: RawValues) -> NDArray[np.float64]:
        """(n, 13 + 26 + 4): what the logit is linear in."""
        logs = np.where(values.numbers_missing, 0.0, np.log(np.maximum(values.numbers, -2) + 3.0))
        position = np.minimum(values.ranks, HEAD + 1)
        column = np.arange(position.shape[1])
        latent = self._latent[column, position]
        first, second = np.transpose(INTERACTIONS)
        return np.hstack([logs, self._effects[column, position], latent[:, first] * latent[:, second]])

    def probability(self, values: RawValues) -> NDArray[np.float64]:
        """(n,) the probability of label 1."""
        return _sigmoid(_weighted(self.terms(values), self._weights) + self._bias)


def _weighted(terms: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weighted sum of each row, without BLAS, whose order of summation depends on the machine's threads."""
    return np.einsum("ij,j->i", terms, weights)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def _bias_for(logits: NDArray[np.float64], base_rate: float) -> float:
    """The bias that makes the mean probability `base_rate`, by bisection."""
    low, high = -50.0 - float(logits.max()), 50.0 - float(logits.min())
    for _ in range(100):
        middle = (low + high) / 2
        if _sigmoid(logits + middle).mean() < base_rate:
            low = middle
        else:
            high = middle
    return (low + high) / 2
