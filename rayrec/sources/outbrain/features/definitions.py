"""What a feature is: its name, how its raw values are computed, and how they become what a model reads."""

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
"""What is fitted to a numeric feature in the rows of `train`, after the transforms in `before`: nothing, its least and
largest value, its mean and standard deviation, or its median."""


@dataclass(frozen=True)
class Numeric:
    """A number; NaN if missing, which a model reads as 0."""

    name: str
    compute: Callable[[Rows], NDArray[np.float64]]
    """(n,) the raw values of rows."""
    fit: Fit = "none"
    before: tuple[NumericTransform, ...] = ()
    """Applied before what is fitted."""
    after: tuple[NumericTransform, ...] = ()

    raw_type = pa.float64()


@dataclass(frozen=True)
class OneHot:
    """A category; null if missing."""

    name: str
    compute: Callable[[Rows], pa.Array]
    cardinality: int
    of: Literal["integers", "strings", "codes"] = "integers"
    """What the raw values are; codes are ids already, the others are hashed."""

    @property
    def raw_type(self) -> pa.DataType:
        return pa.string() if self.of == "strings" else pa.int64()

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

    raw_type = pa.list_(pa.int64())

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
    """A number without transforms."""
    return Numeric(name, compute)


def scaled_share(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """A share x as log2(1 + 1000 x), scaled to 0 ... 1."""
    return Numeric(name, compute, "range", (Log2(scale=1000.0),))


def scaled_count(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """A count x as log2(1 + x), scaled to 0 ... 1."""
    return Numeric(name, compute, "range", (Log2(scale=1.0),))


def standardized_count(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """A count x as ln(1 + x), 0 if missing, minus the mean and divided by the standard deviation."""
    return Numeric(name, compute, "deviation", (Fill(value=0.0), Log(offset=1.0)))


def filled_days(name: str, compute: Callable[[Rows], NDArray[np.float64]]) -> Numeric:
    """A number of days x as ln(1 + x), the median if missing."""
    return Numeric(name, compute, "median", after=(Log(offset=1.0),))
