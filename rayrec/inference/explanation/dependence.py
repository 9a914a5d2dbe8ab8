"""Partial dependence: the mean score of rows that all have one value of a feature, by that value.

Friedman 2001, "Greedy function approximation: a gradient boosting machine", section 8.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.config.transforms import Elapsed
from rayrec.features.id_meanings import ValueNames
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature
from rayrec.features.transforms import encode_numeric, ids_of, untransformed, with_weights
from rayrec.inference.batch.pool import in_threads
from rayrec.inference.explanation.rows import BlockEstimate, LabelledRows, with_columns
from rayrec.inference.predictor import Predictor

_POINTS = 20
"""Most values that a feature is given, unless they are in an order."""
_MOST_ROWS = 20_000
_MOST_DECIMALS = 9


@dataclass(frozen=True)
class Value:
    """A value of a feature, and how it reads."""

    name: str
    """The raw value, or what the encoded one stands for."""
    encoded: float
    raw: float | None
    """The raw number; None of a category, or where it cannot be told."""
    share: float
    """Share of rows (of a list's elements) that have a category, or that are up to a number."""


@dataclass(frozen=True)
class Point(Value):
    """A value that all rows were given."""

    score: BlockEstimate
    """The mean probability of a positive label."""


@dataclass(frozen=True)
class Dependence:
    """The mean score by the value of one feature."""

    feature: str
    is_number: bool
    mean_score: float
    """Mean score of the rows as they are."""
    points: tuple[Point, ...]
    """Points of a number by ascending value, else of values in their order, or the most frequent first."""


def partial_dependence(
    predictor: Predictor, rows: LabelledRows, features: Sequence[str], progress: Progress
) -> list[Dependence]:
    """Return the dependence on each feature, over quantiles of a number or the most frequent ids: at most 20, of ids in
    an order 32.

    A list is given one id alone. The means are those of 20,000 of the rows; a vector has no values to go through.
    """
    rows = rows.drawn(_MOST_ROWS)
    by_name = {feature.name: feature for feature in predictor.schema.features}
    values = {name: _values(by_name[name], rows.features.column(name), predictor) for name in features}
    tasks = [(by_name[name], value) for name in features for value in values[name]]
    progress.stage("partial dependence", len(tasks) * len(rows))

    def point(task: tuple[Feature, Value]) -> Point:
        feature, value = task
        column = _constant(rows.features.column(feature.name), value.encoded)
        scores = predictor.predict_encoded(with_columns(predictor.schema, rows.features, {feature.name: column}))
        progress.advance(len(rows))
        return Point(**vars(value), score=rows.mean(scores))

    mean = rows.mean(predictor.predict_encoded(rows.features)).value
    found = in_threads(tasks, lambda: point)
    return [
        Dependence(name, isinstance(by_name[name], NumericFeature), mean, tuple(next(found) for _ in values[name]))
        for name in features
    ]


def _values(feature: Feature, column: pa.Array, predictor: Predictor) -> list[Value]:
    match feature:
        case NumericFeature():
            return _numbers(feature, column.to_numpy())
        case CategoricalFeature():
            return _ids(feature, column, predictor)
    raise AssertionError(f"'{feature.name}' is a vector")


def _numbers(feature: NumericFeature, column: NDArray[np.float32]) -> list[Value]:
    encoded = np.unique(column)
    if len(encoded) > _POINTS:
        encoded = np.unique(np.quantile(column, np.linspace(0.0, 1.0, _POINTS), method="nearest"))
    raw, missing = _raw_numbers(feature, encoded)
    up_to = np.searchsorted(np.sort(column), encoded, side="right") / len(column)
    return [
        Value(_number_name(value, number, value == missing), float(value), _or_none(number), float(share))
        for value, number, share in zip(encoded, raw.tolist(), up_to, strict=True)
    ]


def _raw_numbers(feature: NumericFeature, encoded: NDArray[np.float32]) -> tuple[NDArray[np.float64], np.float32]:
    """Return the roundest raw numbers (n,) that become these encoded ones, NaN where none does; and a missing one's."""
    # The time between two moments is a number, too.
    transforms = [transform for transform in feature.transforms if not isinstance(transform, Elapsed)]
    exact = untransformed(encoded.astype(np.float64), transforms)
    raw = np.full(len(encoded), np.nan)
    for decimals in range(_MOST_DECIMALS, -1, -1):
        rounded = np.round(exact, decimals) + 0.0  # no -0
        again = encode_numeric(feature.name, pa.array(rounded), transforms)
        raw = np.where(np.isclose(again, encoded, rtol=1e-6, atol=1e-6), rounded, raw)
    (missing,) = encode_numeric(feature.name, pa.nulls(1, pa.float64()), transforms)
    return raw, missing


def _number_name(encoded: np.float32, raw: float, is_missing: bool) -> str:
    name = f"{raw:.6g}" if np.isfinite(raw) else f"encoded as {encoded:.4g}"
    return f"{name} or missing" if is_missing else name


def _or_none(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _ids(feature: CategoricalFeature, column: pa.Array, predictor: Predictor) -> list[Value]:
    elements = ids_of(column.flatten()) if isinstance(feature, MultiHotFeature) else column
    ids, counts = np.unique(elements.to_numpy(), return_counts=True)
    names = ValueNames(feature, predictor.vocabularies.get(feature.name))
    shown = names.to_show(ids[np.argsort(-counts, kind="stable")], _POINTS)
    shares = counts[np.searchsorted(ids, shown)] / len(elements)
    named = zip(names(shown.tolist()), shown.tolist(), shares.tolist(), strict=True)
    return [Value(name, id_, None, share) for name, id_, share in named]


def _constant(column: pa.Array, encoded: float) -> pa.Array:
    """Return a column like `column` whose rows all have one value; a list has it alone."""
    rows = len(column)
    if not pa.types.is_list(column.type):
        return pa.array(np.full(rows, encoded)).cast(column.type)
    kind = column.type.value_type
    ids = np.full(rows, int(encoded))
    if pa.types.is_struct(kind):
        elements = with_weights(ids.astype(kind.field("id").type.to_pandas_dtype()), np.ones(rows, np.float32))
    else:
        elements = pa.array(ids).cast(kind)
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), elements)
