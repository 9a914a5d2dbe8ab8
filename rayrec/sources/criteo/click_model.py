"""The known truth behind generated rows: the probability of a click as a function of the row's values.

    logit p = bias + sum_j w_j ln(I_j + 3) + sum_k w_k effect_k(C_k) + sum_(a,b) w_ab latent_a(C_a) latent_b(C_b)

A missing number counts as 0 in place of ln(I + 3), as preprocessing encodes it. Effects and latent values belong to the
`HEAD` most frequent values of a column and to "missing"; all rarer values of a column share an effect of 0, so that
what can be known about a row is learnable from a sample in which rare values occur once or never.

Preferences drift: from a day to the next, weights and effects make a step of a random walk, and a value that is new has
an effect and a latent value of its own.
"""

import copy
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
DRIFT_STEP = 0.07
"""At a drift of 1, a weight or an effect correlates with that of the day before by sqrt(1 - DRIFT_STEP^2)."""
_LEAST_WEIGHT = 0.3
_WEIGHT_SD = np.sqrt((_LEAST_WEIGHT**2 + _LEAST_WEIGHT + 1.0) / 3.0)
"""Root mean square of a weight before it is scaled: of U(0.3, 1) with either sign."""
_EFFECT_SD = np.sqrt(1.0 / 3.0)
"""Standard deviation of an effect: of U(-1, 1)."""


@dataclass(frozen=True)
class RawValues:
    """The values of n rows before they are written out."""

    numbers: NDArray[np.int64]
    """(n, 13); any value if missing."""
    numbers_missing: NDArray[np.bool_]
    """(n, 13)."""
    ranks: NDArray[np.int64]
    """(n, 26) ranks of the categorical values by expected frequency, from 1; 0 for missing."""
    generations: NDArray[np.int64]
    """(n, 26) how many other values had the rank before this one."""
    is_new: NDArray[np.bool_]
    """(n, 26) whether no earlier day had the value."""

    def rows(self, which: slice) -> "RawValues":
        """Return some of the rows."""
        return RawValues(
            self.numbers[which],
            self.numbers_missing[which],
            self.ranks[which],
            self.generations[which],
            self.is_new[which],
        )


class ClickModel:
    """A logistic model over `terms`, drawn from a seed and scaled on a sample of rows."""

    def __init__(self, seed: int, sample: RawValues) -> None:
        """`sample`: rows on which variance shares and base rate are met."""
        rng = np.random.default_rng(seed)
        columns = sample.ranks.shape[1]
        # Position 0: missing; 1 ... HEAD: the frequent values; HEAD + 1: all the others. Of the values that share a
        # rank on a day, one has an even generation and one an odd generation, which is the last index.
        effects = rng.uniform(-1.0, 1.0, (columns, HEAD + 2))
        latent = rng.choice([-1.0, 1.0], (columns, HEAD + 2))
        effects[:, -1] = latent[:, -1] = 0.0
        self._effects, self._latent = (np.stack([values, values], axis=-1) for values in (effects, latent))
        terms = sample.numbers.shape[1] + columns + len(INTERACTIONS)
        self._weights = rng.uniform(_LEAST_WEIGHT, 1.0, terms) * rng.choice([-1.0, 1.0], terms)
        self._scale(sample)

    def next_day(
        self,
        rng: np.random.Generator,
        drift: float,
        generations: NDArray[np.int64],
        renewed: NDArray[np.bool_],
        sample: RawValues,
    ) -> "ClickModel":
        """Return the model of the next day, on which weights and effects have moved without becoming larger or smaller.

        `generations`: (26, HEAD) of the newest values of the frequent ranks; `renewed`: which of these are new.
        `sample`: rows of the next day.
        """
        model, step = copy.copy(self), DRIFT_STEP * drift
        keep = np.sqrt(1.0 - step**2)
        model._weights = keep * self._weights + step * _WEIGHT_SD * rng.standard_normal(self._weights.shape)
        model._effects = keep * self._effects + step * _EFFECT_SD * rng.standard_normal(self._effects.shape)
        model._effects[:, -1] = 0.0
        model._latent = self._latent.copy()
        column, index = np.nonzero(renewed)
        new = column, index + 1, generations[renewed] % 2
        model._effects[new] = rng.uniform(-1.0, 1.0, len(column))
        model._latent[new] = rng.choice([-1.0, 1.0], len(column))
        model._scale(sample)
        return model

    def _scale(self, sample: RawValues) -> None:
        """Set what the terms are multiplied with, and the bias."""
        terms = self.terms(sample)
        spread = terms.std(axis=0)
        # A term that never varies says nothing about clicks.
        factors = np.divide(self._weights, spread, out=np.zeros_like(spread), where=spread > 0.0)
        numbers, columns = sample.numbers.shape[1], sample.ranks.shape[1]
        groups = np.split(np.arange(len(factors)), [numbers, numbers + columns])
        shares = (NUMERIC_SHARE, CATEGORICAL_SHARE, INTERACTION_SHARE)
        for group, share in zip(groups, shares, strict=True):
            group_spread = float(_weighted(terms[:, group], factors[group]).std())
            if group_spread > 0.0:
                factors[group] *= LOGIT_SD * np.sqrt(share) / group_spread
        self._factors = factors
        self._bias = _bias_for(_weighted(terms, factors), BASE_RATE)

    def terms(self, values: RawValues) -> NDArray[np.float64]:
        """(n, 13 + 26 + 4): what the logit is linear in."""
        logs = np.where(values.numbers_missing, 0.0, np.log(np.maximum(values.numbers, -2) + 3.0))
        position = np.minimum(values.ranks, HEAD + 1)
        of_value = np.arange(position.shape[1]), position, values.generations % 2
        latent = self._latent[of_value]
        first, second = np.transpose(INTERACTIONS)
        return np.hstack([logs, self._effects[of_value], latent[:, first] * latent[:, second]])

    def probability(self, values: RawValues) -> NDArray[np.float64]:
        """(n,) the probability of label 1."""
        return _sigmoid(_weighted(self.terms(values), self._factors) + self._bias)


def _weighted(terms: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum of each row, without BLAS, whose order of summation depends on the machine's threads."""
    return np.einsum("ij,j->i", terms, weights)


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * (1.0 + np.tanh(0.5 * logits))


def _bias_for(logits: NDArray[np.float64], base_rate: float) -> float:
    """Return the bias that makes the mean probability `base_rate`, by bisection."""
    low, high = -50.0 - float(logits.max()), 50.0 - float(logits.min())
    while low < (middle := (low + high) / 2) < high:
        if _sigmoid(logits + middle).mean() < base_rate:
            low = middle
        else:
            high = middle
    return middle
