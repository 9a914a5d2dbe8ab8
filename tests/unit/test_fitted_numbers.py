"""What transforms are fitted to: the same bits however tasks share the rows; exact, or close where it cannot be."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayrec.config.table import FitFill, FitMinMax, FitQuantile, FitStandardize
from rayrec.config.transforms import Elapsed, Fill, Log, Log2, MinMax, Quantile, Standardize
from rayrec.preprocessing import numbers as summary
from rayrec.preprocessing.numbers import Number, Summary, fitted, look, merged

NAN = np.nan
COLUMNS = {
    "share": [0.5, NAN, -0.5, 0.1],  # 1 + 1000 x of -0.5 has no logarithm
    "views": [0.0, 7.0, 3.0, NAN],
    "count": [1.0, NAN, 5.0, 1.0],
    "days": [NAN, 10.0, 3.0, NAN],
}
BEFORE = (
    Number("share", ("share",), (Log2(scale=1000.0),)),
    Number("views", ("views",), (Log2(scale=1.0),)),
    Number("count", ("count",), (Fill(value=0.0), Log(offset=1.0))),
    Number("days", ("days",)),
)
FITS = (FitFill(value="mean"), FitFill(value="median"), FitStandardize(), FitMinMax(), FitQuantile(count=7))


def spread(values: np.ndarray, cuts: list[int]) -> Summary:
    """Return the summary of values that were summarised in parts and put together in another order."""
    parts = [Summary.of(part) for part in np.split(values, sorted(cuts))]
    found = [part for part in parts if part is not None]
    result = found[-1]
    for part in found[:-1]:
        result = part + result
    return result


@pytest.mark.parametrize("cuts", [[4], [1, 2, 3, 4], [0, 3, 4]])
def test_transforms_by_hand(cuts: list[int]) -> None:
    table = pa.RecordBatch.from_pydict(COLUMNS)
    parts = [table.slice(a, b - a) for a, b in zip([0, *cuts], cuts, strict=False)]
    found = merged(look(part, BEFORE) for part in parts)
    logs = np.log1p([1.0, 0.0, 5.0, 1.0])
    standardize = fitted(FitStandardize(), found["count"])
    assert isinstance(standardize, Standardize)
    assert (standardize.mean, standardize.deviation) == pytest.approx((logs.mean(), logs.std()))
    assert fitted(FitMinMax(), found["share"]) == MinMax(min=np.log2(101), max=np.log2(501))
    assert fitted(FitMinMax(), found["views"]) == MinMax(min=0.0, max=3.0)
    assert fitted(FitFill(value="median"), found["days"]) == Fill(value=6.5)


def test_of_no_values_nothing_is_known() -> None:
    assert look(pa.RecordBatch.from_pydict({"x": [NAN, None]}), [Number("x", ("x",))]) == {}
    assert [fitted(fit, None) for fit in FITS] == [
        Fill(value=0.0),
        Fill(value=0.0),
        Standardize(mean=0.0, deviation=0.0),
        MinMax(min=0.0, max=0.0),
        Quantile(boundaries=(0.0,) * 8),
    ]


def test_values_of_lists_and_of_two_times() -> None:
    time = pa.array([86_400_000_000, None], pa.timestamp("us", "UTC"))
    batch = pa.RecordBatch.from_pydict({"ids": [[3, 1], None], "now": time, "then": pa.array([0, 0], time.type)})
    found = look(batch, [Number("ids", ("ids",)), Number("age", ("now", "then"), (Elapsed(per="hour"), Log(offset=0)))])
    assert (found["ids"].least, found["ids"].most, found["ids"].rows) == (1.0, 3.0, 2)
    assert found["age"].least == found["age"].most == np.log(24.0)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(values=st.lists(NUMBERS, min_size=1, max_size=60), data=st.data())
def test_bits_do_not_depend_on_the_tasks(values: list[float], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=4))
    ranges = data.draw(st.integers(2, 30))  # positive numbers and negative ones are apart
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "MOST_RANGES", ranges)
        whole, parts = Summary.of(np.array(values)), spread(np.array(values[::-1]), cuts)
        assert whole is not None
        assert len(whole.keys) <= ranges
        assert np.array_equal(whole.keys, parts.keys) and np.array_equal(whole.counts, parts.counts)
        assert [fitted(fit, whole) for fit in FITS] == [fitted(fit, parts) for fit in FITS]


@given(values=st.lists(NUMBERS, min_size=1, max_size=60))
def test_sums_are_exact(values: list[float]) -> None:
    found = Summary.of(np.array(values))
    assert found is not None
    assert Fraction(found.total, 2**1200) == sum(map(Fraction, values))
    squares = sum(Fraction(value) ** 2 for value in values if 1e-120 < abs(value) < 1e140)
    if all(value == 0.0 or 1e-120 < abs(value) < 1e140 for value in values):
        assert Fraction(found.squares, 2**1200) == squares


@pytest.mark.parametrize("rows", [1, 2, 3, 100, 101])
def test_exact_quantiles_are_numpys(rows: int) -> None:
    values = np.random.default_rng(rows).integers(-30, 30, rows) / 7
    found = Summary.of(values)
    assert found is not None
    shares = [Fraction(i, 8) for i in range(9)]
    assert found.quantiles(shares) == pytest.approx(np.quantile(values, [float(share) for share in shares]), rel=1e-15)
    assert found.quantiles([Fraction(1, 2)]) == (np.median(values),)


@pytest.mark.parametrize("offset", [0.0, 1e9])
def test_many_values_are_fitted_closely(offset: float) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(3.0, 2.0, 100_000), rng.lognormal(0.0, 3.0, 100_000)]) + offset
    found = spread(values, [10, 50_000, 120_000])
    assert found.shift and found.values is None and len(found.keys) <= summary.MOST_RANGES
    mean, deviation = found.mean_and_deviation()
    assert (mean, deviation) == pytest.approx((values.mean(), values.std()), rel=1e-9)
    shares = [Fraction(i, 100) for i in range(101)]
    quantiles = found.quantiles(shares)
    assert quantiles[0] == values.min() and quantiles[-1] == values.max()
    ranks = np.searchsorted(np.sort(values), quantiles) / len(values)
    assert np.abs(ranks - [float(share) for share in shares]).max() < 0.005


def test_huge_values_have_a_deviation() -> None:
    found = Summary.of(np.array([1e300, -1e300, 0.0, 1.5e308]))
    assert found is not None
    mean, deviation = found.mean_and_deviation()
    assert np.isfinite(mean) and np.isfinite(deviation) and deviation > 0


def test_logarithms_before_a_fit() -> None:
    batch = pa.RecordBatch.from_pydict({"x": [0.0, 1.0, -5.0, None]})
    found = look(batch, [Number("x", ("x",), (Log2(scale=1.0),))])["x"]
    assert (found.least, found.most, found.rows) == (0.0, 1.0, 2)
