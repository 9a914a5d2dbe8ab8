"""Numeric transforms over Arrow and NumPy: the one implementation that Spark, prediction and serving run."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.transforms import Fill, Log, Log2, MinMax, NumericTransform, Standardize


def encode_numeric(name: str, column: pa.Array, transforms: Sequence[NumericTransform]) -> NDArray[np.float32]:
    """Apply `transforms` in order to a raw column of integers, floats or nulls.

    Returns float32, finite everywhere: what is missing or undefined after the last transform is 0. The arithmetic is
    float64 and is rounded once at the end, so the bits depend neither on the raw column's type nor on the batch.
    Raises UserError naming the feature if the column does not hold numbers.
    """
    values = transformed(name, column, transforms)
    with np.errstate(over="ignore"):
        result = values.astype(np.float32)
    return np.where(np.isfinite(result), result, np.float32(0.0))


def transformed(name: str, column: pa.Array, transforms: Sequence[NumericTransform]) -> NDArray[np.float64]:
    """(n,) float64 after `transforms`, NaN if missing or undefined; later transforms are fitted to these values.

    Raises UserError naming the feature if the column does not hold numbers.
    """
    values = _as_float64(name, column)
    for transform in transforms:
        values = _apply(transform, values)
    return values


def _apply(transform: NumericTransform, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply one transform; missing values are NaN before and after."""
    match transform:
        case Log(offset=offset):
            shifted = values + offset
            return np.log(shifted, out=np.full_like(shifted, np.nan), where=shifted > 0.0)
        case Log2(scale=scale):
            scaled = 1.0 + scale * values
            return np.log2(scaled, out=np.full_like(scaled, np.nan), where=scaled > 0.0)
        case MinMax(min=low, max=high, clip=clip):
            # NaN stays NaN through all of these.
            shares = (values - low) / (high - low) if high > low else values * 0.0
            return np.clip(shares, 0.0, 1.0) if clip else shares
        case Standardize(mean=mean, deviation=deviation):
            return (values - mean) / deviation if deviation > 0.0 else values * 0.0
        case Fill(value=value):
            return np.where(np.isnan(values), value, values)


def _as_float64(name: str, column: pa.Array) -> NDArray[np.float64]:
    """The column as float64; null, NaN and infinity become NaN."""
    if pa.types.is_null(column.type):
        return np.full(len(column), np.nan)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise UserError(f"feature '{name}': needs numbers, got {column.type}")
    values = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return np.where(np.isfinite(values), values, np.nan)
