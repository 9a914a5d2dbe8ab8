"""Contribution of each feature to the score of one row, compared with reference rows: Shapley values of the logit.

The features of a row replace those of a reference row one after the other, in a random order, and each is credited with
the change that it makes. The changes of one order add up to the difference between the two logits, so their means over
orders and reference rows add up to the row's logit less the mean logit of the reference rows, however few orders there
are: Strumbelj and Kononenko 2014, "Explaining prediction models and individual predictions with feature contributions",
Knowledge and Information Systems 41; Lundberg and Lee 2017, "A unified approach to interpreting model predictions",
NeurIPS. Each order is followed by its reverse, so that what two features do together is split evenly between them at
once (antithetic pairs: Mitchell, Cooper, Frank and Holmes 2022, "Sampling permutations for Shapley value estimation",
JMLR 23(43)): for a model without effects of three features together the values are exact.

A feature that crosses others is computed anew from them, so its effect is part of theirs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.inference.examples import load_reference_rows
from rayrec.inference.folder.facts import REFERENCE_ROWS_FILE
from rayrec.inference.importance import is_cross, permuted_features, with_columns
from rayrec.inference.predictor import Predictor, load_model
from rayrec.inference.scorer import CHUNK_ROWS
from rayrec.random.arrays import StatelessRandom

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Explanation:
    """One row's score as a sum: `base` and all `parts` add up to `logit`."""

    score: float
    """The probability of a positive label: that of `logit`."""
    logit: float
    base: float
    """The mean logit of the reference rows."""
    parts: dict[str, float]
    """What each feature adds, crosses aside; the lists of a history that is read event by event are one part."""


def load_explainer(folder: str | Path) -> "Explainer":
    """Return the explainer of a model folder, on CPU. Raises UserError if the model has no reference rows."""
    predictor = load_model(folder)
    explainer = explainer_of(predictor)
    if explainer is None:
        raise UserError(f"{predictor.folder}: has no {REFERENCE_ROWS_FILE}; export the model from a dataset with rows")
    return explainer


def explainer_of(predictor: Predictor) -> "Explainer | None":
    """Return the explainer of a model; None if it has no reference rows. Raises UserError if they are damaged."""
    rows = load_reference_rows(predictor)
    return None if rows is None else Explainer(predictor, rows)


class Explainer:
    """Explains scores of single rows. Nothing in it changes after construction, so threads may share one.

    A row takes 128 scores for each of its features but one. The same row gets the same explanation.
    """

    def __init__(self, predictor: Predictor, reference: pa.RecordBatch) -> None:
        """`reference`: encoded rows to compare with, 64 of a model folder."""
        self.predictor = predictor
        self._reference = reference
        self._logits = predictor.logits_encoded(reference).astype(np.float64)
        self.base = float(self._logits.mean())
        """The mean logit of the reference rows."""
        crosses = {feature.name for feature in predictor.schema.features if is_cross(feature)}
        permuted = permuted_features(predictor.recipe.model, predictor.schema)
        self.parts = {name: features for name, features in permuted.items() if name not in crosses}
        """The features of each part of an explanation."""
        count = len(self.parts)
        drawn = StatelessRandom(seed=0).uniform("order", np.arange(reference.num_rows), count)
        turns = drawn.argsort(axis=1).argsort(axis=1)
        self._turns: NDArray[np.int64] = np.concatenate([turns, count - 1 - turns])
        """(orders, features) when each feature's turn to be replaced comes in each order, from 0."""
        self._starts = np.tile(np.arange(reference.num_rows), 2)
        """(orders,) the reference row that each order begins with."""

    def explain(self, rows: "Sequence[Mapping[str, Any]] | pa.RecordBatch | pd.DataFrame") -> list[Explanation]:
        """Explain rows of raw features, as `Predictor.predict` takes them.

        Raises UserError naming the row, and the field that is unknown or wrong.
        """
        encoded = self.predictor.encode(self.predictor.columns_of(rows))
        steps = (self.explaining(encoded.slice(index, 1), index) for index in range(encoded.num_rows))
        return [explanation for of_row in steps for explanation in of_row if explanation is not None]

    def explaining(self, row: pa.RecordBatch, index: int = 0) -> Iterator[Explanation | None]:
        """Explain one encoded row step by step: None for each, of the size of one pass of the model, then the result.

        Raises UserError if the score of row number `index` is not a number.
        """
        (logit,) = self.predictor.logits_encoded(row)
        total = np.zeros(len(self.parts))
        at_once = max(1, CHUNK_ROWS // len(self.parts))
        for first in range(0, len(self._turns), at_once):
            yield None
            orders = slice(first, first + at_once)
            total += self._changes(row, logit, self._turns[orders], self._starts[orders]).sum(axis=0)
        if not np.isfinite(total).all():
            raise UserError(f"row {index}: its values are so large that the score is not a number")
        parts = dict(zip(self.parts, (total / len(self._turns)).tolist(), strict=True))
        yield Explanation(float(torch.sigmoid(torch.tensor(logit))), float(logit), self.base, parts)

    def _changes(
        self, row: pa.RecordBatch, logit: np.float32, turns: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the change of the logit that each feature makes when its turn comes, (orders, features)."""
        orders, count = turns.shape
        is_replaced = (turns[:, None, :] < np.arange(1, count)[:, None]).reshape(-1, count)
        origins = np.where(is_replaced, len(self._logits), np.repeat(starts, count - 1)[:, None])
        columns = {
            name: pa.concat_arrays([self._reference.column(name), row.column(name)]).take(pa.array(origins[:, place]))
            for place, features in enumerate(self.parts.values())
            for name in features
        }
        # Every column is replaced, or follows.
        between = self.predictor.logits_encoded(with_columns(self.predictor.schema, self._reference, columns))
        path = np.empty((orders, count + 1))
        path[:, 0], path[:, 1:-1], path[:, -1] = self._logits[starts], between.reshape(orders, count - 1), logit
        with np.errstate(invalid="ignore"):
            return np.take_along_axis(np.diff(path, axis=1), turns, axis=1)
