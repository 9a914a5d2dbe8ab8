"""Fitting transforms of numbers: ranges, deviations and medians, exact and the same for any division into tasks."""

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
    """The fitted numbers by feature."""

    ranges: dict[str, tuple[float, float]]
    """Least and largest value; absent if no row has a value."""
    deviations: dict[str, tuple[float, float]]
    """Mean and standard deviation (of the population: the variance divides by the number of rows)."""
    medians: dict[str, float]
    """The median, or the mean of the middle two of an even number; absent if no row has a value."""

    def features(self, definitions: Sequence[Definition]) -> tuple[Feature, ...]:
        """The features of a schema."""
        return tuple(
            NumericFeature(name=d.name, transforms=self._transforms(d)) if isinstance(d, Numeric) else d.feature
            for d in definitions
        )

    def _transforms(self, definition: Numeric) -> tuple[NumericTransform, ...]:
        name = definition.name
        fitted: tuple[NumericTransform, ...] = ()
        match definition.fit:
            case "range":
                low, high = self.ranges.get(name, (0.0, 0.0))
                fitted = (MinMax(min=low, max=high),)
            case "deviation":
                mean, deviation = self.deviations.get(name, (0.0, 0.0))
                fitted = (Standardize(mean=mean, deviation=deviation),)
            case "median":
                fitted = (Fill(value=self.medians.get(name, 0.0)),)
        return (*definition.before, *fitted, *definition.after)


def fit_numbers(workspace: Workspace, definitions: Sequence[Definition], segments: Sequence[Segment]) -> FittedNumbers:
    """Fit the definitions to the raw features in `segments`."""
    numeric = [d for d in definitions if isinstance(d, Numeric) and d.fit != "none"]
    rows = sum(segment.piece.rows for segment in segments)
    with counted_rows(workspace.spark, workspace.progress, "fit", rows) as counter:

        def run(segment: Segment) -> dict[str, Seen]:
            seen = merge(look(b, numeric) for b in read_piece(segment.piece, [d.name for d in numeric], ()))
            counter.add(segment.piece.rows)
            return seen

        return fitted(merge(run_tasks(workspace.spark, segments, run)))


@dataclass(frozen=True)
class Seen:
    """Values of a feature, ascending; for a range only the ends are kept.

    Features with a deviation or a median have few distinct values (counts, days), so their rows are counted by value.
    Added up in the order of values, they give a result that does not depend on how rows are dealt to tasks.
    """

    fit: Fit
    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Number of rows with each value."""

    @classmethod
    def of(cls, fit: Fit, values: NDArray[np.float64], counts: NDArray[np.int64]) -> "Seen":
        """Sort and add up `values`, which are in any order and may repeat."""
        distinct, inverse = np.unique(values, return_inverse=True)
        summed = np.zeros(len(distinct), np.int64)
        np.add.at(summed, inverse, counts)
        kept = [0, -1] if fit == "range" else slice(None)
        return cls(fit, distinct[kept], summed[kept])

    def __add__(self, other: "Seen") -> "Seen":
        values, counts = ((self.values, other.values), (self.counts, other.counts))
        return Seen.of(self.fit, np.concatenate(values), np.concatenate(counts))


def look(batch: pa.RecordBatch, numeric: Sequence[Numeric]) -> dict[str, Seen]:
    """The values in a batch by feature; features that are missing in every row are left out."""
    found = {}
    for definition in numeric:
        values = transformed(definition.name, batch[definition.name], definition.before)
        values = values[~np.isnan(values)]
        if len(values):
            found[definition.name] = Seen.of(definition.fit, values, np.ones(len(values), np.int64))
    return found


def merge(parts: Iterable[dict[str, Seen]]) -> dict[str, Seen]:
    """The values in several batches by feature."""
    merged: dict[str, Seen] = {}
    for part in parts:
        for name, seen in part.items():
            merged[name] = merged[name] + seen if name in merged else seen
    return merged


def fitted(seen: dict[str, Seen]) -> FittedNumbers:
    """Ranges, deviations and medians of the values by feature."""
    ranges, deviations, medians = {}, {}, {}
    for name, found in seen.items():
        match found.fit:
            case "range":
                ranges[name] = float(found.values[0]), float(found.values[-1])
            case "deviation":
                mean = float(np.average(found.values, weights=found.counts))
                deviations[name] = mean, float(np.average((found.values - mean) ** 2, weights=found.counts) ** 0.5)
            case "median":
                medians[name] = _median(found.values, found.counts)
    return FittedNumbers(ranges=ranges, deviations=deviations, medians=medians)


def _median(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    ends = np.cumsum(counts)
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(values[middle].mean())
