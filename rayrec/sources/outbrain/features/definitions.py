"""Defines a feature: its name, how its raw values are computed, and how they are encoded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.config.table import FitFill, FitMinMax, FitStandardize, NumericStep
from rayrec.config.transforms import Fill, Hash, Log, Log2, NumericTransform
from rayrec.features.feature_kinds import CategoricalFeature, MultiHotFeature
from rayrec.features.table_parts import Numbers
from rayrec.sources.outbrain.features.ad_rows import AdRows
from rayrec.sources.outbrain.statistics import Aspect, Referred

LIST_ROWS: dict[Aspect, int] = {"topic": 350, "entity": 10_000, "category": 100}
"""Rows of the embedding table of a list, by aspect."""


Steps = tuple[NumericStep | NumericTransform, ...]
"""The transforms of a number, some of them to be fitted to the rows of `train`."""

AS_IS: Steps = ()
SHARE: Steps = (Log2(scale=1000.0), FitMinMax())
"""A share x becomes log2(1 + 1000 x), scaled to 0 ... 1."""
COUNT: Steps = (Log2(scale=1.0), FitMinMax())
"""A count x becomes log2(1 + x), scaled to 0 ... 1."""
LOG_COUNT: Steps = (Fill(value=0.0), Log(offset=1.0), FitStandardize())
"""A count x becomes ln(1 + x), 0 if missing, minus the mean and divided by the standard deviation."""
DAYS: Steps = (FitFill(value="median"), Log(offset=1.0))
"""A number of days x becomes ln(1 + x), the median if missing."""


@dataclass(frozen=True)
class Definition:
    """A feature: how the raw values of n rows are computed, and how they are encoded."""

    name: str
    raw_type: pa.DataType
    compute: Callable[[AdRows], NDArray[np.float64] | pa.Array]
    feature: CategoricalFeature | MultiHotFeature | None = None
    """None for a number."""
    steps: Steps = ()
    """The transforms of a number."""


def number(name: str, steps: Steps, compute: Callable[..., Numbers | NDArray[np.float64]], *what: str) -> Definition:
    """Return the number that `compute` makes of rows and `what`; NaN if missing, which a model reads as 0."""

    def values(rows: AdRows) -> NDArray[np.float64]:
        found = compute(rows, *what)
        return np.where(found.valid, found.values, np.nan) if isinstance(found, Numbers) else found

    return Definition(name, pa.float64(), values, steps=steps)


def id_feature(name: str, cardinality: int, column: str, of: Referred | None = None) -> Definition:
    """Return an id of the row or of what it refers to, hashed into a table of `cardinality` rows; null if missing."""
    feature = _hashed(name, cardinality, "integers")
    return Definition(name, pa.int64(), lambda rows: _ids(rows.numbers(column, of)), feature)


def place_feature(
    name: str, cardinality: int, part: Callable[[pa.Array], pa.Array] = lambda place: place
) -> Definition:
    """Return the place, or a part, of the event, hashed into a table of `cardinality` rows; null if missing."""
    return Definition(name, pa.string(), lambda rows: part(rows.place), _hashed(name, cardinality, "strings"))


def _hashed(name: str, cardinality: int, of: Literal["integers", "strings"]) -> CategoricalFeature:
    transforms = (Hash(buckets=cardinality, of=of),)
    return CategoricalFeature(name=name, transforms=transforms, cardinality=cardinality)


def code_feature(name: str, first: int, size: int, compute: Callable[..., Numbers], *what: str) -> Definition:
    """Return the code that `compute` makes of rows and `what`: `size` of them count from `first` as 1; missing is 0."""

    def values(rows: AdRows) -> pa.Array:
        found = compute(rows, *what)
        return _ids(Numbers(found.values - first + 1, found.valid))

    return Definition(name, pa.int64(), values, CategoricalFeature(name=name, cardinality=size + 1))


def list_feature(
    name: str, aspect: Aspect, document: Literal["landing", "ad_document"], length: int, pooling: Literal["sum", "mean"]
) -> Definition:
    """Return the first `length` values of the landing or the ad document's list of an aspect, hashed one by one."""

    def compute(rows: AdRows) -> pa.Array:
        lists = rows.lists(f"{aspect}_list", document)
        offsets = np.append(0, np.cumsum(lists.lengths)).astype(np.int32)
        return pc.list_slice(pa.ListArray.from_arrays(offsets, lists.field()), 0, length)

    rows = LIST_ROWS[aspect]
    transforms = (Hash(buckets=rows, of="integers"),)
    feature = MultiHotFeature(name=name, transforms=transforms, cardinality=rows, pooling=pooling, hotness=length)
    return Definition(name, pa.list_(pa.int64()), compute, feature)


def _ids(numbers: Numbers) -> pa.Array:
    return pa.array(numbers.values, pa.int64(), mask=~numbers.valid)
