"""Numeric transforms over Arrow and NumPy: the one implementation that Spark, prediction and serving run."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import (
    Clip,
    Elapsed,
    Fill,
    Log,
    Log2,
    MinMax,
    NumericTransform,
    Quantile,
    Standardize,
)

_ROUNDED = 1e-5
"""More than float32 rounds off, by the number's size."""
_MICROSECONDS = {"second": 10**6, "hour": 3600 * 10**6, "day": 86_400 * 10**6}


def encode_numeric(
    name: str, column: pa.Array, transforms: Sequence[NumericTransform], since: pa.Array | None = None
) -> NDArray[np.float32]:
    """Apply `transforms` in order to a raw column of integers, floats or nulls; `Elapsed` to times, `since` others.

    Return float32, finite everywhere: what is missing or undefined after the last transform is 0. The arithmetic is
    float64 and is rounded once at the end, so the bits depend neither on the raw column's type nor on the batch.
    Raises UserError naming the feature if the column does not hold numbers (or times).
    """
    return finite_float32(transformed(name, column, transforms, since))


def finite_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Round to float32; what is not finite then becomes 0."""
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    return np.where(np.isfinite(result), result, np.float32(0.0))


def transformed(
    name: str, column: pa.Array, transforms: Sequence[NumericTransform], since: pa.Array | None = None
) -> NDArray[np.float64]:
    """Return (n,) float64 after `transforms`, NaN if missing or undefined; later transforms are fitted to these values.

    `since`: the second column of `Elapsed`. Raises UserError naming the feature if a column holds something else than
    its transforms need.
    """
    if transforms and isinstance(transforms[0], Elapsed):
        assert since is not None, f"'{name}' has two columns"
        micros, earlier = (_micros(name, times) for times in (column, since))
        values = as_float64(name, pc.subtract(micros, earlier)) / _MICROSECONDS[transforms[0].per]
        transforms = transforms[1:]
    else:
        values = as_float64(name, column)
    return transformed_numbers(values, transforms)


def transformed_numbers(values: NDArray[np.float64], transforms: Sequence[NumericTransform]) -> NDArray[np.float64]:
    """Apply transforms other than `Elapsed` to (n,) finite numbers, NaN if missing, as `transformed` does."""
    with np.errstate(over="ignore"):
        for transform in transforms:
            values = _apply(transform, values)
    return values


def _apply(transform: NumericTransform, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply one transform; missing values are NaN before and after."""
    match transform:
        case Log(offset=offset):
            shifted = values + offset
            return np.log(shifted, out=np.full(shifted.shape, np.nan), where=shifted > 0.0)
        case Log2(scale=scale):
            scaled = 1.0 + scale * values
            return np.log2(scaled, out=np.full(scaled.shape, np.nan), where=scaled > 0.0)
        case MinMax(min=low, max=high, clip=clip):
            # NaN stays NaN through all of these.
            shares = (values - low) / (high - low) if high > low else values * 0.0
            return _clipped(shares, 0.0, 1.0) if clip else shares
        case Standardize(mean=mean, deviation=deviation):
            return (values - mean) / deviation if deviation > 0.0 else values * 0.0
        case Fill(value=value):
            return np.where(np.isnan(values), value, values)
        case Clip(min=lowest, max=highest, outside=outside):
            inside = _clipped(values, lowest, highest)
            return inside if outside == "bound" else np.where(inside == values, values, np.nan)
        case Quantile(boundaries=boundaries):
            return _shares_below(values, np.array(boundaries))
        case Elapsed():
            raise AssertionError("the schema has 'elapsed' first")


def untransformed(values: NDArray[np.float64], transforms: Sequence[NumericTransform]) -> NDArray[np.float64]:
    """Return (n,) the raw numbers that encoded ones come from, as far as `transforms` and float32 have kept them.

    What was cut or filled stays as it is; `Elapsed` gives the time between. Numbers next to a whole one are that one.
    """
    with np.errstate(over="ignore"):
        for transform in reversed(transforms):
            values = _undone(transform, values)
    whole = np.rint(values) + 0.0  # which makes -0 a 0
    return np.where(np.abs(values - whole) <= _ROUNDED * np.maximum(np.abs(values), 1.0), whole, values)


def _undone(transform: NumericTransform, values: NDArray[np.float64]) -> NDArray[np.float64]:
    match transform:
        case Log(offset=offset):
            return np.exp(values) - offset
        case Log2(scale=scale):
            return (np.exp2(values) - 1.0) / scale
        case MinMax(min=low, max=high):
            return low + values * (high - low)
        case Standardize(mean=mean, deviation=deviation):
            return mean + values * deviation
        case Quantile(boundaries=boundaries):
            return np.interp(values, np.linspace(0.0, 1.0, len(boundaries)), boundaries)
        case Fill() | Clip() | Elapsed():
            return values


def _clipped(values: NDArray[np.float64], low: float | None, high: float | None) -> NDArray[np.float64]:
    # NumPy's minimum and maximum give the one zero or the other by the place of a value in its array.
    values = values if low is None else np.where(values < low, low, values)
    return values if high is None else np.where(values > high, high, values)


def _shares_below(values: NDArray[np.float64], boundaries: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares that `np.interp` gives between equal ones at the boundaries.

    A boundary that occurs several times has the lowest of its shares.
    """
    last = len(boundaries) - 1
    above = np.searchsorted(boundaries, values)  # the first boundary that is not below the value
    inside = (above > 0) & (above <= last)
    shares = np.where(above > last, 1.0, 0.0)
    upper, x = above[inside], values[inside]
    lower = boundaries[upper - 1]
    with np.errstate(over="ignore", invalid="ignore"):
        shares[inside] = (upper - 1 + (x - lower) / (boundaries[upper] - lower)) / last
    return np.where(np.isnan(values), np.nan, shares)


def _micros(name: str, column: pa.Array) -> pa.Array:
    """Return the times as int64 microseconds since 1970."""
    return as_times(name, column).cast(pa.int64())


def as_times(name: str, column: pa.Array) -> pa.Array:
    """Return the column as timestamp[us, UTC].

    Raises UserError naming the feature if it holds something else than times.
    """
    utc = pa.timestamp("us", "UTC")
    if not (pa.types.is_null(column.type) or column.type == utc):
        raise UserError(f"feature '{name}': needs times, got {column.type}")
    return column.cast(utc)


def as_float64(name: str, column: pa.Array) -> NDArray[np.float64]:
    """Return (n,) float64 of integers, floats or nulls; null, NaN and infinity become NaN.

    Raises UserError naming the feature if the column holds something else.
    """
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise UserError(f"feature '{name}': needs numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)
