"""Rows with a model's scores: what curves, slices and comparisons of reports are made from."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST_PROBABILITY = 1e-9


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """n rows in ascending order of their scores. A row counts by its weight; rows of weight 0 are absent."""

    score: NDArray[np.float64]
    """(n,) probabilities."""
    label: NDArray[np.float64]
    """(n,) 0 or 1."""
    weight: NDArray[np.float64]
    """(n,) above 0."""
    unit: NDArray[np.int64]
    """(n,) numbers from 0. Rows of a unit, such as those of one display, were drawn together: each unit is one piece of
    evidence, however many rows it has."""
    row: NDArray[np.int64]
    """(n,) the place of each row among those that were given."""
    has_units: bool
    """Whether units were given; otherwise each row is one."""

    @classmethod
    def of(
        cls,
        score: NDArray[Any],
        label: NDArray[Any],
        weight: NDArray[Any] | None = None,
        unit: NDArray[Any] | None = None,
    ) -> "ScoredRows":
        """Return the rows in any order: (n,) columns, units as any integers."""
        order = np.argsort(score, kind="stable")
        if weight is not None:
            order = order[weight[order] > 0]
        units = np.arange(len(score)) if unit is None else np.unique(unit, return_inverse=True)[1]
        return cls(
            score=score[order].astype(np.float64),
            label=label[order].astype(np.float64),
            weight=np.ones(len(order)) if weight is None else weight[order].astype(np.float64),
            unit=units[order],
            row=order,
            has_units=unit is not None,
        )

    def __len__(self) -> int:
        return len(self.score)

    def take(self, places: NDArray[np.int64]) -> "ScoredRows":
        """Return some of the rows; `places` ascend."""
        return ScoredRows(
            score=self.score[places],
            label=self.label[places],
            weight=self.weight[places],
            unit=self.unit[places],
            row=self.row[places],
            has_units=self.has_units,
        )

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """(n,) -ln p(label) of each row."""
        return log_losses(self.label, self.score)

    @cached_property
    def run(self) -> NDArray[np.int64]:
        """(n,) the number of each row's score among the distinct ones, from 0."""
        changes = np.zeros(len(self), np.int64)
        changes[1:] = self.score[1:] != self.score[:-1]
        return np.cumsum(changes)

    def class_weights(self, weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the weight of positives and of negatives at each distinct score, if rows count by `weight` (n,)."""
        positives = sums(self.run, weight * self.label)
        return positives, sums(self.run, weight) - positives

    def error_of(self, influence: NDArray[np.float64]) -> float:
        """Return the standard error of a statistic, of which `influence` (n,) says how much each row moves it.

        The infinitesimal jackknife (Efron 1982): the root of the sum of squares, over units.
        """
        if self.has_units:
            influence = sums(self.unit, influence)
        return float(np.sqrt((influence**2).sum()))


def log_losses(label: NDArray[np.floating], score: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n,) -ln p(label) of n rows with labels of 0 or 1, and probabilities, none of which counts as less than 1e-9."""
    right = np.where(label > 0, score.astype(np.float64), 1.0 - score.astype(np.float64))
    return -np.log(np.maximum(right, _LEAST_PROBABILITY))


def sums(place: NDArray[np.int64], weights: NDArray[np.float64], places: int = 0) -> NDArray[np.float64]:
    """Return the sum of the weights at each place, of at least so many places."""
    return np.bincount(place, weights=weights, minlength=places).astype(np.float64, copy=False)


def weighted_auc(positives: NDArray[np.float64], negatives: NDArray[np.float64]) -> float:
    """Return the area under the ROC curve from the weights of both classes at ascending distinct scores; ties count
    half.

    Not a number if a class is empty.
    """
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float((positives * (below + negatives / 2)).sum() / pairs) if pairs else float("nan")
