"""What a feature is: its name, how its raw values come of rows, and how they become what a model reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.schema import CategoricalFeature, MultiHotFeature
from rayrec.features.transforms import CategoricalTransform, Fill, Hash, Log, Log2, NumericTransform
from rayrec.sources.outbrain.features.rows import Rows

Fit = Literal["none", "range", "deviation", "median"]
"""What a numeric feature needs to know of the rows of train, after the transforms that come before: nothing, its least
and largest value, its mean and standard deviation, or its median."""


@dataclass(frozen=True)
class Numeric:
    """A number; NaN where missing, which a model reads as 0."""

    name: str
    compute: Callable[[Rows], NDArray[np.float64]]
    fit: Fit = "none"
    before: tuple[NumericTransform, ...] = ()
    """Applied before what is fitted."""
    after: tuple[NumericTransform, ...] = ()

    @property
    def raw_type(self) -> pa.DataType:
        return pa.float64()

    def raw(self, rows: Rows) -> pa.Array:
        return pa.array(self.compute(rows))


@dataclass(frozen=True)
class OneHot:
    """A category; null where missing."""

    name: str
    compute: Callable[[Rows], pa.Array]
    cardinality: int
    of: Literal["integers", "strings", "codes"] = "integers"
    """What the raw values are; codes are ids already, the others are hashed."""

    @property
    def raw_type(self) -> pa.DataType:
        return pa.string() if self.of == "strings" else pa.int64()

    def raw(self, rows: Rows) -> pa.Array:
        return self.compute(rows)

    @property
    def feature(self) -> CategoricalFeature:
        transforms: tuple[CategoricalTransform, ...] = ()
        if self.of != "codes":
            transforms = (Hash(buckets=self.cardinality, of=self.of),)
        return CategoricalFeature(name=self.name, transforms=transforms, cardinality=self.cardinality)


@dataclass(frozen=True)
class MultiHot:
    """A list of integers, hashed one by one."""

    name: str
    compute: Callable[[Rows], pa.Array]
    cardinality: int
    hotness: int
    pooling: Literal["sum", "mean"]

    @property
    def raw_type(self) -> pa.DataType:
        return pa.list_(pa.int64())

    def raw(self, rows: Rows) -> pa.Array:
        return self.compute(rows)

    @property
    def feature(self) -> MultiHotFeature:
        return MultiHotFeature(
            name=self.name,
            transforms=(Hash(buckets=self.cardinality, of="integers"),),
            cardinality=self.cardinality,
            pooling=self.pooling,
            hotness=self.hotness,
        )


Definition = Numeric | OneHot | MultiHot


def plain(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """A number as it is."""
    return Numeric(name, compute)


def scaled_share(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """log2(1 + 1000 x), then into 0 ... 1."""
    return Numeric(name, compute, "range", (Log2(scale=1000.0),))


def scaled_count(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """log2(1 + x), then into 0 ... 1."""
    return Numeric(name, compute, "range", (Log2(scale=1.0),))


def standardized_count(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """ln(1 + x), missing 0, less its mean and over its standard deviation."""
    return Numeric(name, compute, "deviation", (Fill(value=0.0), Log(offset=1.0)))


def filled_days(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """Missing values filled with the median, then ln(1 + x)."""
    return Numeric(name, compute, "median", after=(Log(offset=1.0),))
