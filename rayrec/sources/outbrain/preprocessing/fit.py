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
    """Fit to the rows of `segments`, files of raw features."""
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
    """Values of a feature, ascending; of a range only its ends are kept.

    Of numbers whose deviation or median is wanted there are few (counts, days), so their rows are counted by value.
    Added in the order of values, they give a result that does not depend on how rows are dealt to tasks.
    """

    fit: Fit
    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Rows with each."""

    @classmethod
    def of(cls, fit: Fit, values: NDArray[np.float64], counts: NDArray[np.int64]) -> "Seen":
        """`values` in any order, and repeated."""
        distinct, place = np.unique(values, return_inverse=True)
        summed = np.zeros(len(distinct), np.int64)
        np.add.at(summed, place, counts)
        kept = [0, -1] if fit == "range" else slice(None)
        return cls(fit, distinct[kept], summed[kept])

    def __add__(self, other: "Seen") -> "Seen":
        values, counts = ((self.values, other.values), (self.counts, other.counts))
        return Seen.of(self.fit, np.concatenate(values), np.concatenate(counts))


def look(batch: pa.RecordBatch, numeric: Sequence[Numeric]) -> dict[str, Seen]:
    """What the rows of a batch have, by feature, where not all of them are missing."""
    found = {}
    for definition in numeric:
        values = transformed(definition.name, batch[definition.name], definition.before)
        values = values[~np.isnan(values)]
        if len(values):
            found[definition.name] = Seen.of(definition.fit, values, np.ones(len(values), np.int64))
    return found


def merge(parts: Iterable[dict[str, Seen]]) -> dict[str, Seen]:
    """What several batches have."""
    merged: dict[str, Seen] = {}
    for part in parts:
        for name, seen in part.items():
            merged[name] = merged[name] + seen if name in merged else seen
    return merged


def fitted(seen: dict[str, Seen]) -> FittedNumbers:
    """What transforms need to know of the features."""
    ranges, deviations, medians = {}, {}, {}
    for name, of in seen.items():
        match of.fit:
            case "range":
                ranges[name] = float(of.values[0]), float(of.values[-1])
            case "deviation":
                mean = float(np.average(of.values, weights=of.counts))
                deviations[name] = mean, float(np.average((of.values - mean) ** 2, weights=of.counts) ** 0.5)
            case "median":
                medians[name] = _median(of.values, of.counts)
    return FittedNumbers(ranges=ranges, deviations=deviations, medians=medians)


def _median(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    ends = np.cumsum(counts)
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(values[middle].mean())
