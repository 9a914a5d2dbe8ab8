"""How well one column alone ranks the rows by their label, out of fold, under different readings of its values."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.metrics.auc import auc_of_rows

_FOLDS = 5
_FEW_ROWS = 20_000
"""Samples below this are cut into folds twice, so that chance matters less."""
_PRIOR_ROWS = 10.0
"""Rows of the mean rate that are added to each value's."""
_LEAST_RATE = 1e-6
_CLEAR = 2.5
"""Standard errors by which a reading must be ahead to be the better one."""
_LEAST_GAIN = 0.004
_STREAM = 0x666F6C64
_MOST_WORK, _LEAST_ROWS = 4_000_000_000, 10
"""Multiplications of a step of Newton's method over many columns, about 3 s, and rows for each input that it needs."""
_NEWTON_STEPS, _LONGEST_STEP, _SHORTEST_STEP = 10, 4.0, 1e-6
_CROSS_PLACES = 131_071
"""Most places that the pairs of two columns' values share if there are more; two for each row are enough."""
_MOST_SMOOTHING = 100.0
_CLEAR_CROSS = 5.0
"""Standard errors from which on what pairs of values say is more than chance, as many pairs of columns are tried."""


@dataclass(frozen=True)
class Reading:
    """The AUC of one reading of a column in each fold, on the rows that were not used to make it."""

    folds: NDArray[np.float64]
    test_share: float
    """Rows of a fold by the rows of the others."""

    @property
    def auc(self) -> float:
        return float(self.folds.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return _error(self.folds, self.test_share)

    @property
    def is_clear(self) -> bool:
        """Return whether it ranks the rows better than chance does."""
        return self.auc - 0.5 >= max(_LEAST_GAIN, _CLEAR * self.error)

    def is_better_than(self, other: "Reading") -> bool:
        """Return whether it is ahead by more than what chance explains."""
        gain = self.folds - other.folds
        error = _error(gain, self.test_share) if len(gain) > 1 else 0.0  # one fold of a large sample
        return bool(gain.mean() >= max(_LEAST_GAIN, _CLEAR * error))


def _error(values: NDArray[np.float64], test_share: float) -> float:
    """Return the error of a mean over folds, which share most of their rows (Nadeau and Bengio 2003)."""
    return float(math.sqrt(values.var(ddof=1) * (1 / len(values) + test_share)))


@dataclass(frozen=True)
class Regression:
    """A logistic regression on several columns."""

    reading: Reading
    """Its AUC, in one fold of a large sample."""
    residuals: NDArray[np.float64]
    """(n,) the label less its probability, NaN if the label is not known."""

    def clear_crosses(self, columns: Sequence[NDArray[np.int64]]) -> list[tuple[int, int, float]]:
        """Return the pairs of (n,) codes whose values together say more of the label than the columns do, the clearest
        first, each with the smoothing of its label rates: the variance within pairs of values by that between them.

        Two rows with the same values of both columns have residuals alike where that is so: the sum of the products
        of their residuals is compared with what rows alike in one of the columns let expect. No row is multiplied with
        itself, so nothing is learnt from its own label.
        """
        known = np.isfinite(self.residuals)
        residuals = self.residuals[known]
        squares = residuals**2
        powers = np.stack([residuals, squares, squares**2])

        def products(places: NDArray[np.int64], size: int) -> tuple[NDArray[Any], ...]:
            rows = np.bincount(places, minlength=size)
            sums, square, fourth = (np.bincount(places, power, size) for power in powers)
            return rows * (rows - 1.0), sums**2 - square, square**2 - fourth, rows + _PRIOR_ROWS

        codes = [column[known] + 1 for column in columns]
        sizes = [int(column.max(initial=0)) + 1 for column in codes]
        shared = []  # what two rows with the same value of one column have in common
        for column, size in zip(codes, sizes, strict=True):
            pairs, product, _, _ = products(column, size)
            shared.append(max(0.0, product.sum() / max(pairs.sum(), 1.0)))
        found, most = [], min(2 * len(residuals) + 1, _CROSS_PLACES)
        for one, other in itertools.combinations(range(len(codes)), 2):
            places, size = codes[one] * sizes[other] + codes[other], sizes[one] * sizes[other]
            if size > most:
                places, size = places % most, most
            pairs, product, variance, rows = products(places, size)
            gain = ((product - pairs * (shared[one] + shared[other])) / rows).sum()
            error = math.sqrt(2 * (variance / rows**2).sum())
            if error and gain > _CLEAR_CROSS * error:
                between = (product / rows).sum() / max((pairs / rows).sum(), _LEAST_RATE)
                smoothing = squares.mean() / between - 1 if between > 0 else _MOST_SMOOTHING
                found.append((gain / error, one, other, float(np.clip(smoothing, 1.0, _MOST_SMOOTHING))))
        return [(one, other, smoothing) for _, one, other, smoothing in sorted(found, reverse=True)]


class Evidence:
    """Measures readings of columns against one label, always on the same folds."""

    def __init__(self, label: NDArray[np.float64], groups: NDArray[np.int64] | None = None, seed: int = 0) -> None:
        """`label`: (n,) 0 or 1, NaN if it is not known. `groups`: (n,) lists whose rows must be in the same fold.

        If each list has one positive, the other rows of a list tell the label of a row.
        """
        self._label = label
        # Generated columns may be drawn from the same seed; folds must not follow them.
        rng = np.random.default_rng([seed, _STREAM])
        units = np.arange(len(label)) if groups is None else groups
        repeats = 2 if len(label) < _FEW_ROWS else 1
        cuts = [rng.integers(_FOLDS, size=int(units.max(initial=0)) + 1)[units] for _ in range(repeats)]
        is_known = np.isfinite(label)
        self._folds = [
            (is_known & (cut != fold), is_known & (cut == fold))
            for cut in cuts
            for fold in range(_FOLDS)
            if len(np.unique(label[is_known & (cut == fold)])) == 2 == len(np.unique(label[is_known & (cut != fold)]))
        ]

    @cached_property
    def is_possible(self) -> bool:
        """Return whether there are enough rows of both labels for a measurement."""
        return len(self._folds) >= _FOLDS

    def as_category(self, codes: NDArray[np.int64]) -> Reading:
        """Return the scores by the smoothed rate of each value; `codes` (n,) are its places, -1 if it is missing."""
        places, size = codes + 1, int(codes.max(initial=-1)) + 2
        return self._reading([self._rates(places, size, train)[places[test]] for train, test in self._folds])

    def as_words(self, words: NDArray[np.int64], lengths: NDArray[np.int64]) -> Reading:
        """Return the scores by the mean log odds of the smoothed rates of a row's words; a row without one has the mean
        rate.

        `words` (sum of `lengths`,) are the places of the words of one row after the other, `lengths` (n,) how many a
        row has.
        """
        row, size, scores = np.repeat(np.arange(len(lengths)), lengths), int(words.max(initial=-1)) + 1, []
        for train, test in self._folds:
            in_train = np.flatnonzero(train[row])
            rates = self._rates(words, size, in_train, row[in_train])
            mean = self._label[train].mean()
            odds = np.log(rates / (1 - rates)) - np.log(mean / (1 - mean))
            scores.append((np.bincount(row, odds[words], len(lengths)) / np.maximum(lengths, 1))[test])
        return self._reading(scores)

    def as_bins(self, numbers: NDArray[np.float64], bins: int) -> Reading:
        """Score by the smoothed rate of each of `bins` ranges of about as many rows; missing ones are one more."""
        scores = []
        for train, test in self._folds:
            known = numbers[train & np.isfinite(numbers)]
            edges = np.unique(np.quantile(known, np.arange(1, bins) / bins)) if len(known) else np.empty(0)
            places = np.where(np.isfinite(numbers), 1 + np.searchsorted(edges, numbers, side="right"), 0)
            scores.append(self._rates(places, len(edges) + 2, train)[places[test]])
        return self._reading(scores)

    def as_number(self, numbers: NDArray[np.float64]) -> Reading:
        """Return the scores by a logistic regression on the number's rank, which is monotone, and on whether it is
        missing.
        """
        inputs = np.concatenate([np.ones((len(numbers), 1)), _number_inputs(numbers)], axis=1)
        return self._reading(
            [inputs[test] @ _logistic(inputs[train], self._label[train]) for train, test in self._folds]
        )

    def logistic_regression(
        self, categories: Sequence[NDArray[np.int64]], numbers: Sequence[NDArray[np.float64]]
    ) -> "Regression | None":
        """Fit a logistic regression on columns together; measure it on rows that it was not fitted to.

        It is fitted to fewer rows where there are many columns; None if these would be too few.

        `categories`: (n,) codes of columns, which it reads as the log odds of their smoothed rates; `numbers`: (n,)
        columns that it reads as `as_number` does.
        """
        # The first cut alone: a fold of a large sample is enough, and so are five of a small one.
        cut = self._folds[:_FOLDS]
        inputs = [_number_inputs(column) for column in numbers]
        found, residuals = [], np.full(len(self._label), np.nan)
        for train, test in cut if len(self._label) < _FEW_ROWS else cut[:1]:
            rates = np.full((len(self._label), len(categories)), self._label[train].mean())
            for place, codes in enumerate(categories):
                places, size = codes + 1, int(codes.max(initial=-1)) + 2
                # A row's rate must not tell its own label, so each fold gets those of the others.
                for others, fold in cut:
                    rates[fold, place] = self._rates(places, size, others & train)[places[fold]]
            rates = np.clip(rates, _LEAST_RATE, 1 - _LEAST_RATE)  # the other folds may have labels of one kind
            odds = np.log(rates / (1 - rates))
            every = np.concatenate([np.ones((len(odds), 1)), odds - odds[train].mean(axis=0), *inputs], axis=1)
            width = every.shape[1]
            rows = np.flatnonzero(train)
            rows = rows[:: math.ceil(len(rows) * width**2 / _MOST_WORK)]
            if len(rows) < _LEAST_ROWS * width:
                return None
            scores = every @ _logistic(every[rows], self._label[rows])
            found.append(_auc(scores[test], self._label[test]))
            residuals = np.where(np.isnan(residuals), self._label - 1 / (1 + np.exp(-scores)), residuals)
        return Regression(Reading(np.array(found), 1 / (_FOLDS - 1)), residuals)

    def _rates(
        self, places: NDArray[np.int64], size: int, train: NDArray[Any], rows: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Return (size,) the smoothed label rate of each place; `rows`: those that the `train` places belong to, if
        there is not one place a row.
        """
        label = self._label[train if rows is None else rows]
        rows = np.bincount(places[train], minlength=size)
        positives = np.bincount(places[train], weights=label, minlength=size)
        return (positives + _PRIOR_ROWS * label.mean()) / (rows + _PRIOR_ROWS)

    def _reading(self, scores: list[NDArray[np.float64]]) -> Reading:
        values = [_auc(score, self._label[test]) for score, (_, test) in zip(scores, self._folds, strict=True)]
        return Reading(np.array(values), 1 / (_FOLDS - 1))


def _auc(scores: NDArray[np.float64], label: NDArray[np.float64]) -> float:
    """Return the AUC of (n,) scores; `label` (n,) has both 0 and 1."""
    value = auc_of_rows(scores[label == 1], scores[label == 0])
    assert value is not None
    return value


def _number_inputs(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the rank of each of (n,) numbers, around 0, and whether it is missing: (n, 2)."""
    finite = np.isfinite(numbers)
    known = np.sort(numbers[finite])
    middle = (np.searchsorted(known, numbers, "left") + np.searchsorted(known, numbers, "right")) / 2
    rank = np.where(finite, middle / max(len(known), 1) - 0.5, 0.0)
    return np.stack([rank, ~finite], axis=1)


def _logistic(inputs: NDArray[np.float64], label: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weights of a logistic regression with a slight L2 penalty, by Newton's method."""
    weights = np.zeros(inputs.shape[1])
    penalty = np.eye(len(weights))
    # By einsum, as BLAS's threads wait for each other on a busy machine: the same work took ten times as long.
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(np.einsum("ni,i->n", inputs, weights), -30, 30)))
        gradient = np.einsum("ni,n->i", inputs, p - label) + penalty @ weights
        curvature = np.einsum("ni,nj->ij", inputs * (p * (1 - p))[:, None], inputs) + penalty
        # Where all labels are predicted, the curvature vanishes and a whole step would lead away.
        step = np.clip(np.linalg.solve(curvature, gradient), -_LONGEST_STEP, _LONGEST_STEP)
        weights -= step
        if np.abs(step).max() < _SHORTEST_STEP:
            break
    return weights
