"""Fits transforms of numbers to rows; the result does not depend, in any bit, on how rows are spread over tasks.

A column is summarized exactly if few values are distinct, else by ranges. Summaries of some rows and of others make
that of all of them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.table import FitFill, FitMinMax, FitQuantile, FitStandardize
from rayrec.config.transforms import Fill, MinMax, NumericTransform, Quantile, Standardize
from rayrec.features.transforms import transformed
from rayrec.preprocessing.engine import ShuffleInput
from rayrec.preprocessing.segments import ReadRows, Segment, count_rows
from rayrec.preprocessing.workspace import Workspace, counted_rows

MOST_RANGES = 16_384
"""A column with more distinct values is kept by ranges of a width relative to the value: about 1 in 1,000 or less."""
Fit = FitFill | FitStandardize | FitMinMax | FitQuantile
"""A transform to be fitted."""
_UNIT = 1_200
"""Exact sums are integers in units of 2 to the power of minus this; all float64 are whole numbers of units."""
_LARGEST_SQUARED = 1e150


@dataclass(frozen=True)
class Summary:
    """Numbers (finite float64) as counts by range: the numbers that agree in all but their last `shift` bits."""

    keys: NDArray[np.int64]
    """The other bits of the numbers of each range, as integers that have the numbers' order; ascending."""
    counts: NDArray[np.int64]
    """Number of values in each range, at least 1."""
    shift: int
    """The number of last bits in which the numbers of a range may differ; 0 if each range is one value."""
    least: float
    most: float
    total: int
    """Exact sum of the values, in units of 2^-1200."""
    squares: int
    """Exact sum of the squares of the values, in units of 2^-1200, but for what is lost below 1e-290."""

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> "Summary | None":
        """Return the summary of values; what is not finite does not count, and None is the summary of nothing."""
        values = values[np.isfinite(values)] + 0.0  # makes 0 of -0
        if not len(values):
            return None
        keys, counts = np.unique(_ordered(values), return_counts=True)
        least, most = float(values.min()), float(values.max())
        return cls(*_coarse(keys, counts, 0), least, most, _sum(values), _sum_of_squares(values))

    def __add__(self, other: "Summary") -> "Summary":
        shift = max(self.shift, other.shift)
        keys = np.concatenate([one.keys >> (shift - one.shift) for one in (self, other)])
        return Summary(
            *_coarse(*_added(keys, np.concatenate([self.counts, other.counts])), shift),
            min(self.least, other.least),
            max(self.most, other.most),
            self.total + other.total,
            self.squares + other.squares,
        )

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def values(self) -> NDArray[np.float64] | None:
        """Distinct values, ascending; None if they are not known."""
        return None if self.shift else _number(self.keys)

    def mean_and_deviation(self) -> tuple[float, float]:
        """Return the mean, and the standard deviation of the population: the variance divides by the number of
        values.
        """
        values = self.values
        if values is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                mean = float(np.average(values, weights=self.counts))
                deviation = float(np.average((values - mean) ** 2, weights=self.counts) ** 0.5)
            if math.isfinite(deviation):
                return mean, deviation
        exact = Fraction(self.total, self.rows << _UNIT)
        variance = max(Fraction(self.squares, self.rows << _UNIT) - exact**2, Fraction(0))
        product = variance.numerator * variance.denominator
        return float(exact), float(Fraction(math.isqrt(product << 128), variance.denominator << 64))

    def quantiles(self, shares: Sequence[Fraction]) -> tuple[float, ...]:
        """Return the values at ascending shares of the way from the least to the most, as NumPy interpolates between
        two.

        Without the values, they are taken to be evenly spaced in their range.
        """
        ends = np.cumsum(self.counts)
        places = [share * (self.rows - 1) for share in shares]
        below = np.array([math.floor(place) for place in places])
        beyond = np.array([float(place - math.floor(place)) for place in places])
        low, high = (self._at(np.minimum(below + step, self.rows - 1), ends) for step in (0, 1))
        between = low * (1.0 - beyond) + high * beyond  # the difference of the two may be infinite
        values = np.where((beyond == 0.0) | (low == high), low, between)
        return tuple(np.maximum.accumulate(values).tolist())  # rounding may let one fall behind

    def _at(self, ranks: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the values of these ranks, from 0."""
        place = np.searchsorted(ends, ranks, side="right")
        if self.shift == 0:
            return _number(self.keys[place])
        share = (ranks - (ends[place] - self.counts[place]) + 0.5) / self.counts[place]
        first, last = _ordered(np.array([self.least, self.most]))
        low = self.keys[place] << self.shift
        low, high = np.maximum(low, first), np.minimum(low + ((1 << self.shift) - 1), last)
        inside = _number(low) * (1.0 - share) + _number(high) * share
        return np.where(ranks == 0, self.least, np.where(ranks == self.rows - 1, self.most, inside))


Summaries = dict[str, Summary]
"""The summaries of numbers by name; a number that is missing in every row has none."""
_SUMMARY = pa.schema([
    ("keys", pa.list_(pa.int64())), ("counts", pa.list_(pa.int64())), ("shift", pa.int64()),
    ("least", pa.float64()), ("most", pa.float64()), ("total", pa.string()), ("squares", pa.string()),
])  # fmt: skip
"""A summary as it is shuffled; integers of any size are hexadecimal."""


@dataclass(frozen=True)
class Number:
    """A number of each row."""

    name: str
    inputs: tuple[str, ...]
    """The raw columns that it is computed from; of lists every value counts."""
    transforms: tuple[NumericTransform, ...] = ()


@dataclass(frozen=True)
class UnfittedNumber:
    """A number of each row with transforms of which some are to be fitted, each to what those before it give."""

    name: str
    inputs: tuple[str, ...]
    steps: tuple[Fit | NumericTransform, ...]


def fit_numbers(
    workspace: Workspace, read: ReadRows, segments: Sequence[Segment], numbers: Sequence[UnfittedNumber]
) -> dict[str, tuple[NumericTransform, ...]]:
    """Return the transforms of numbers, by name, fitted to the rows of `segments`."""
    done: dict[str, tuple[NumericTransform, ...]] = {number.name: () for number in numbers}
    while True:
        pending: dict[str, tuple[Number, Fit]] = {}
        for number in numbers:
            transforms = done[number.name]
            for given in number.steps[len(transforms) :]:
                step: Fit | NumericTransform = given
                if isinstance(given, FitFill) and not isinstance(given.value, str):
                    step = Fill(value=given.value)  # of which nothing has to be fitted
                if isinstance(step, Fit):
                    pending[number.name] = (Number(number.name, number.inputs, transforms), step)
                    break
                transforms = (*transforms, step)
            done[number.name] = transforms
        if not pending:
            return done
        summaries = summarize(workspace, "fit numbers", read, segments, [before for before, _ in pending.values()])
        for name, (_, fit) in pending.items():
            done[name] = (*done[name], fitted(fit, summaries.get(name)))


def summarize(
    workspace: Workspace, stage: str, read: ReadRows, segments: Sequence[Segment], numbers: Sequence[Number]
) -> Summaries:
    """Return what is known of numbers in the rows of `segments`."""
    columns = list(dict.fromkeys(name for number in numbers for name in number.inputs))
    with counted_rows(workspace.engine, workspace.progress, stage, count_rows(segments)) as counter:
        # A task summarizes the numbers of its rows ...
        def of_segment(segment: Segment) -> Iterator[tuple[int, pa.RecordBatch]]:
            summaries = merged(look(batch, numbers) for batch in read(segment, columns))
            for place, number in enumerate(numbers):
                if number.name in summaries:
                    yield place, _as_row(summaries[number.name])
            counter.add(segment.piece.rows)

        # ... and one for each number brings its summaries together, of which all segments have as many as one has.
        def of_all(place: int, tables: Mapping[str, pa.Table]) -> Summaries:
            return merged({numbers[place].name: _of_row(row)} for row in zip(*tables["found"].columns, strict=True))

        source = ShuffleInput(segments, _SUMMARY, of_segment)
        return merged(workspace.engine.shuffle({"found": source}, len(numbers), of_all))


def look(batch: pa.RecordBatch, numbers: Sequence[Number]) -> Summaries:
    """Return what is known of numbers in a batch."""
    found = {number.name: Summary.of(_values(number, batch)) for number in numbers}
    return {name: summary for name, summary in found.items() if summary is not None}


def merged(several: Iterable[Mapping[str, Summary]]) -> Summaries:
    """Return what is known of numbers in several batches."""
    result: Summaries = {}
    for summaries in several:
        for name, summary in summaries.items():
            result[name] = result[name] + summary if name in result else summary
    return result


def _values(number: Number, batch: pa.RecordBatch) -> NDArray[np.float64]:
    column = batch[number.inputs[0]]
    if pa.types.is_list(column.type):
        column = column.flatten()
    if pa.types.is_timestamp(column.type) and not number.transforms:
        column = column.cast(pa.int64())
    return transformed(number.name, column, number.transforms, *(batch[name] for name in number.inputs[1:]))


def _as_row(summary: Summary) -> pa.RecordBatch:
    sums = {"total": f"{summary.total:x}", "squares": f"{summary.squares:x}"}
    return pa.RecordBatch.from_pylist([{**vars(summary), **sums}], schema=_SUMMARY)


def _of_row(row: Sequence[pa.Scalar]) -> Summary:
    keys, counts, *rest = row
    shift, least, most, total, squares = (value.as_py() for value in rest)
    ranges = keys.values.to_numpy(), counts.values.to_numpy()
    return Summary(*ranges, shift, least, most, int(total, 16), int(squares, 16))


def fitted(fit: Fit, summary: Summary | None) -> NumericTransform:
    """Return the transform fitted to the values of a summary; if there are none, to a single 0."""
    summary = summary or Summary.of(np.zeros(1))
    assert summary is not None
    match fit:
        case FitFill(value="mean"):
            return Fill(value=summary.mean_and_deviation()[0])
        case FitFill():
            return Fill(value=summary.quantiles([Fraction(1, 2)])[0])
        case FitStandardize():
            mean, deviation = summary.mean_and_deviation()
            return Standardize(mean=mean, deviation=deviation)
        case FitMinMax():
            return MinMax(min=summary.least, max=summary.most)
        case FitQuantile(count=count):
            return Quantile(boundaries=summary.quantiles([Fraction(i, count) for i in range(count + 1)]))


def _coarse(
    keys: NDArray[np.int64], counts: NDArray[np.int64], shift: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return ranges as wide as it takes for no more than `MOST_RANGES` of them: twice, four times ... the width."""
    while len(keys) > MOST_RANGES:
        shift += 1
        keys, counts = _added(keys >> 1, counts)
    return keys, counts, shift


def _added(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    distinct, inverse = np.unique(keys, return_inverse=True)
    added = np.zeros(len(distinct), np.int64)
    np.add.at(added, inverse, counts)
    return distinct, added


def _ordered(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the integers in the order of the numbers."""
    bits = values.view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))


def _number(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the numbers of integers that `_ordered` gave."""
    return (keys ^ ((keys >> 63) & np.int64(2**63 - 1))).view(np.float64)


def _sum(values: NDArray[np.float64]) -> int:
    """Return the exact sum in units: added up by exponent, the 53 bits of the mantissa in two halves."""
    if not len(values):
        return 0
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    first = int(exponent.min())
    low = np.bincount(exponent - first, weights=whole & (2**26 - 1))
    high = np.bincount(exponent - first, weights=whole >> 26)
    units = range(first - 53 + _UNIT, first - 53 + _UNIT + len(low))
    return sum(((int(h) << 26) + int(w)) << unit for h, w, unit in zip(high, low, units, strict=True))


def _sum_of_squares(values: NDArray[np.float64]) -> int:
    """Return the exact sum of squares in units: each is the sum of two numbers, itself rounded and the error of
    that.
    """
    is_large = np.abs(values) > _LARGEST_SQUARED
    if is_large.any():
        return _sum_of_squares(values[~is_large]) + (_sum_of_squares(values[is_large] * 2.0**-600) << 1200)
    rounded = values * values
    # Dekker's product: halves of the mantissa, whose products are exact.
    scaled = values * (2.0**27 + 1.0)
    high = scaled - (scaled - values)
    low = values - high
    error = ((high * high - rounded) + 2.0 * high * low) + low * low
    return _sum(rounded) + _sum(error)
