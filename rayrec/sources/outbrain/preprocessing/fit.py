"""Fitting transforms of numbers: ranges, deviations and medians, exact and the same for any division into tasks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import Fill, MinMax, NumericTransform, Standardize
from rayrec.features.numeric import transformed
from rayrec.features.schema import Feature, NumericFeature
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.preprocessing.spark_tasks import counted_rows, run_tasks
from rayrec.preprocessing.workspace import Workspace
from rayrec.sources.outbrain.features.definitions import Definition, Numeric


def fit_features(
    workspace: Workspace, definitions: Sequence[Definition], segments: Sequence[Segment]
) -> tuple[Feature, ...]:
    """Fit the definitions to the raw features in `segments`; returns the features of a schema."""
    numeric = [d for d in definitions if isinstance(d, Numeric) and d.scale.fit != "none"]
    rows = sum(segment.piece.rows for segment in segments)
    with counted_rows(workspace.spark, workspace.progress, "fit", rows) as counter:

        def run(segment: Segment) -> dict[str, Seen]:
            seen = merge(look(b, numeric) for b in read_piece(segment.piece, [d.name for d in numeric], ()))
            counter.add(segment.piece.rows)
            return seen

        return fitted(definitions, merge(run_tasks(workspace.spark, segments, run)))


@dataclass(frozen=True)
class Seen:
    """Values of a feature, ascending; for a range only the ends are kept.

    Features with a deviation or a median have few distinct values (counts, days), so their rows are counted by value.
    Added up in the order of values, they give a result that does not depend on how rows are dealt to tasks.
    """

    values: NDArray[np.float64]
    counts: NDArray[np.int64]
    """Number of rows with each value."""
    keeps_ends: bool

    @classmethod
    def of(cls, values: NDArray[np.float64], counts: NDArray[np.int64], keeps_ends: bool) -> "Seen":
        """Sort and add up `values`, which are in any order and may repeat; `keeps_ends`: keep the ends alone."""
        distinct, inverse = np.unique(values, return_inverse=True)
        summed = np.zeros(len(distinct), np.int64)
        np.add.at(summed, inverse, counts)
        kept = [0, -1] if keeps_ends else slice(None)
        return cls(distinct[kept], summed[kept], keeps_ends)

    def __add__(self, other: "Seen") -> "Seen":
        values, counts = ((self.values, other.values), (self.counts, other.counts))
        return Seen.of(np.concatenate(values), np.concatenate(counts), self.keeps_ends)


def look(batch: pa.RecordBatch, numeric: Sequence[Numeric]) -> dict[str, Seen]:
    """The values in a batch by feature; features that are missing in every row are left out."""
    found = {}
    for definition in numeric:
        values = transformed(definition.name, batch[definition.name], definition.scale.before)
        values = values[~np.isnan(values)]
        if len(values):
            found[definition.name] = Seen.of(values, np.ones(len(values), np.int64), definition.scale.fit == "range")
    return found


def merge(parts: Iterable[dict[str, Seen]]) -> dict[str, Seen]:
    """The values in several batches by feature."""
    merged: dict[str, Seen] = {}
    for part in parts:
        for name, seen in part.items():
            merged[name] = merged[name] + seen if name in merged else seen
    return merged


def fitted(definitions: Sequence[Definition], seen: dict[str, Seen]) -> tuple[Feature, ...]:
    """The features of a schema, from the values by feature."""
    return tuple(
        d.feature
        if not isinstance(d, Numeric)
        else NumericFeature(
            name=d.name, transforms=(*d.scale.before, *_transforms(d.scale.fit, seen.get(d.name)), *d.scale.after)
        )
        for d in definitions
    )


def _transforms(fit: str, seen: Seen | None) -> tuple[NumericTransform, ...]:
    """What is fitted to a feature; if no row has a value, to a single 0."""
    values, counts = (seen.values, seen.counts) if seen else (np.zeros(1), np.ones(1, np.int64))
    match fit:
        case "range":
            return (MinMax(min=float(values[0]), max=float(values[-1])),)
        case "deviation":
            # Of the population: the variance divides by the number of rows.
            mean = float(np.average(values, weights=counts))
            deviation = float(np.average((values - mean) ** 2, weights=counts) ** 0.5)
            return (Standardize(mean=mean, deviation=deviation),)
        case "median":
            ends = np.cumsum(counts)
            middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
            return (Fill(value=float(values[middle].mean())),)
    return ()
