"""What transforms are fitted to: ranges, deviations, medians; the same however rows are dealt to tasks."""

import numpy as np
import pyarrow as pa
import pytest

from rayrec.config.transforms import Fill, Hash, Log, Log2, MinMax, Standardize
from rayrec.features.schema import CategoricalFeature, NumericFeature
from rayrec.sources.outbrain.features.definitions import (
    COUNT,
    DAYS,
    LOG_COUNT,
    SHARE,
    Numeric,
    OneHot,
)
from rayrec.sources.outbrain.preprocessing.fit import fitted, look, merge

NAN = np.nan


def _unused(_: object) -> np.ndarray:
    raise AssertionError


DEFINITIONS = (
    Numeric("as it is", _unused),
    Numeric("share", _unused, SHARE),
    Numeric("views", _unused, COUNT),
    Numeric("count", _unused, LOG_COUNT),
    Numeric("days", _unused, DAYS),
    OneHot("id", _unused, 50),
)
NUMERIC = DEFINITIONS[1:-1]
COLUMNS = {
    "share": [0.5, NAN, -0.5, 0.1],  # 1 + 1000 x of -0.5 has no logarithm
    "views": [0.0, 7.0, 3.0, NAN],
    "count": [1.0, NAN, 5.0, 1.0],
    "days": [NAN, 10.0, 3.0, NAN],
}


@pytest.mark.parametrize("cuts", [[4], [1, 2, 3, 4], [0, 3, 4]])
def test_transforms_by_hand(cuts: list[int]) -> None:
    table = pa.RecordBatch.from_pydict(COLUMNS)
    parts = [table.slice(a, b - a) for a, b in zip([0, *cuts], cuts, strict=False)]
    features = fitted(DEFINITIONS, merge(look(part, NUMERIC) for part in parts))
    logs = np.log1p([1.0, 0.0, 5.0, 1.0])
    *_, standardize = features[3].transforms
    assert isinstance(standardize, Standardize)
    assert (standardize.mean, standardize.deviation) == pytest.approx((logs.mean(), logs.std()))
    assert features == (
        NumericFeature(name="as it is"),
        NumericFeature(name="share", transforms=(Log2(scale=1000.0), MinMax(min=np.log2(101), max=np.log2(501)))),
        NumericFeature(name="views", transforms=(Log2(), MinMax(min=0.0, max=3.0))),
        NumericFeature(name="count", transforms=(Fill(), Log(offset=1.0), standardize)),
        NumericFeature(name="days", transforms=(Fill(value=6.5), Log(offset=1.0))),
        CategoricalFeature(name="id", transforms=(Hash(buckets=50, of="integers"),), cardinality=50),
    )


def test_of_no_values_nothing_is_known() -> None:
    nothing = pa.RecordBatch.from_pydict({name: [NAN, NAN] for name in COLUMNS})
    features = fitted(DEFINITIONS, merge([look(nothing, NUMERIC)]))
    assert [feature.transforms[-1] for feature in features[1:3]] == [MinMax(min=0.0, max=0.0)] * 2
    assert features[3].transforms[-1] == Standardize(mean=0.0, deviation=0.0)  # missing counts are 0
    assert features[4].transforms[0] == Fill(value=0.0)


@pytest.mark.parametrize("rows", [1, 2, 3, 100, 101])
def test_medians_are_numpys(rows: int) -> None:
    values = np.random.default_rng(rows).integers(0, 30, rows).astype(float)
    columns = {**{name: np.zeros(rows) for name in COLUMNS}, "days": values}
    features = fitted(DEFINITIONS, merge([look(pa.RecordBatch.from_pydict(columns), NUMERIC)]))
    assert features[4].transforms[0] == Fill(value=np.median(values))


def test_bits_do_not_depend_on_the_tasks() -> None:
    rng = np.random.default_rng(0)
    columns = {name: np.where(rng.random(3_000) < 0.1, NAN, rng.integers(0, 900, 3_000)) for name in COLUMNS}
    table = pa.RecordBatch.from_pydict(columns)
    results = []
    for size in (3_000, 1_000, 7):
        parts = [table.slice(start, size) for start in range(0, 3_000, size)]
        results.append(fitted(DEFINITIONS, merge(look(part, NUMERIC) for part in reversed(parts))))
    assert results[0] == results[1] == results[2]
