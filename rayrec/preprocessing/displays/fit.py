"""What transforms of numbers need to know of the rows: ranges, deviations, medians, exactly and whatever the tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config import Config
from rayrec.features.numeric import transformed
from rayrec.features.schema import Feature, NumericFeature
from rayrec.features.transforms import Fill, MinMax, NumericTransform, Standardize
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import counted_rows, run_tasks
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.definitions import Definition, Fit, Numeric


class FittedNumbers(Config):
    """The fitted transforms by feature."""

    ranges: dict[str, tuple[float, float]]
    """Least and largest value; absent where no row has one."""
    deviations: dict[str, tuple[float, float]]
    """Mean and standard deviation (of the rows themselves, divided by their number)."""
    medians: dict[str, float]
    """The mean of the two in the middle for an even number; absent where no row has a value."""

    def features(self, definitions: Sequence[Definition], *, clip: bool) -> tuple[Feature, ...]:
        """The features of a schema; `clip`: whether what is beyond a range is cut."""
        return tuple(
            NumericFeature(name=d.name, transforms=self._transforms(d, clip)) if isinstance(d, Numeric) else d.feature
            for d in definitions
        )

    def _transforms(self, definition: Numeric, clip: bool) -> tuple[NumericTransform, ...]:
        name = definition.name
        fitted: tuple[NumericTransform, ...] = ()
        match definition.fit:
            case "range":
                low, high = self.ranges.get(name, (0.0, 0.0))
                fitted = (MinMax(min=low, max=high, clip=clip),)
            case "deviation":
                mean, deviation = self.deviations.get(name, (0.0, 0.0))
                fitted = (Standardize(mean=mean, deviation=deviation),)
            case "median":
                fitted = (Fill(value=self.medians.get(name, 0.0)),)
        return (*definition.before, *fitted, *definition.after)


def fit_numbers(workspace: Workspace, definitions: Sequence[Definition], segments: Sequence[Segment]) -> FittedNumbers:
    """Fit to the rows of `segments`, files of raw features.

    Deviations and medians come of the numbers of rows by value, of which there are few (counts, days), added in the
    order of values: the result does not depend on how rows are dealt to tasks.
    """
    numeric = [d for d in definitions if isinstance(d, Numeric) and d.fit != "none"]
    rows = sum(segment.piece.rows for segment in segments)
    with counted_rows(workspace.spark, workspace.progress, "fit", rows) as counter:

        def run(segment: Segment) -> dict[str, _Seen]:
            seen = [_look(batch, numeric) for batch in read_piece(segment.piece, [d.name for d in numeric], ())]
            counter.add(segment.piece.rows)
            return _merge(seen)

        seen = _merge(run_tasks(workspace.spark, segments, run))
    ranges, deviations, medians = {}, {}, {}
    for definition in numeric:
        name = definition.name
        if name not in seen:
            continue
        values, counts = seen[name].values, seen[name].counts
        match definition.fit:
            case "range":
                ranges[name] = float(values[0]), float(values[-1])
            case "deviation":
                mean = float(np.average(values, weights=counts))
                deviations[name] = mean, float(np.average((values - mean) ** 2, weights=counts) ** 0.5)
            case "median":
                medians[name] = _median(values, counts)
    return FittedNumbers(ranges=ranges, deviations=deviations, medians=medians)


@dataclass(frozen=True)
class _Seen:
    """Values of a feature, ascending; of a range only its ends are kept."""

    fit: Fit
    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Rows with each."""

    @classmethod
    def of(cls, fit: Fit, values: NDArray[np.float64], counts: NDArray[np.int64]) -> "_Seen":
        """`values` in any order, and repeated."""
        distinct, place = np.unique(values, return_inverse=True)
        summed = np.zeros(len(distinct), np.int64)
        np.add.at(summed, place, counts)
        kept = [0, -1] if fit == "range" else slice(None)
        return cls(fit, distinct[kept], summed[kept])

    def __add__(self, other: "_Seen") -> "_Seen":
        values, counts = ((self.values, other.values), (self.counts, other.counts))
        return _Seen.of(self.fit, np.concatenate(values), np.concatenate(counts))


def _look(batch: pa.RecordBatch, numeric: Sequence[Numeric]) -> dict[str, _Seen]:
    found = {}
    for definition in numeric:
        values = transformed(definition.name, batch[definition.name], definition.before)
        values = values[~np.isnan(values)]
        if len(values):
            found[definition.name] = _Seen.of(definition.fit, values, np.ones(len(values), np.int64))
    return found


def _merge(parts: Iterable[dict[str, _Seen]]) -> dict[str, _Seen]:
    merged: dict[str, _Seen] = {}
    for part in parts:
        for name, seen in part.items():
            merged[name] = merged[name] + seen if name in merged else seen
    return merged


def _median(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    ends = np.cumsum(counts)
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(values[middle].mean())
