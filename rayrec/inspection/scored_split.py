"""Scores the held-out rows of a dataset with a model in this process, and looks at them from all sides."""

from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.features.feature_kinds import CategoricalFeature
from rayrec.inference.batch.scoring import collect_split
from rayrec.inference.scorer import StoredModel
from rayrec.ingest.dataset import Dataset
from rayrec.inspection.cells import cells_by_frequency, cells_of_rows, values_of_rows
from rayrec.metrics.curves import Curve, score_histogram, threshold_curves
from rayrec.metrics.estimates import Estimate
from rayrec.metrics.scored_rows import (
    SLICE_METRICS,
    ScoredRows,
    SliceMetrics,
    by_score,
    expected_calibration_error,
    reliability,
    slices,
)

MOST_ROWS = 1_000_000
"""Rows that are scored: the first ones of the split."""
_WORST = 20
_BY_SCORE = "score"


@dataclass(frozen=True)
class ScoredSplit:
    """Scored rows of a split."""

    split: str
    rows: int
    """Rows of the split, of which the first `MOST_ROWS` are scored."""
    scored: ScoredRows
    columns: pa.Table
    """The encoded features of the scored rows, in the order of the split."""


Division = tuple[str, list[SliceMetrics]]
"""What all rows were divided by, and the parts."""


def score_held_out(
    model: StoredModel, dataset: Dataset, split: str, progress: Progress, name: str | None = None
) -> ScoredSplit:
    """Score the first rows of a labelled split of a dataset that is encoded as the model reads it.

    Rows of a group are one unit. `name` is the model's in the progress. Raises UserError if the split has no labels, or
    no row that counts.
    """
    schema, rows = dataset.schema, dataset.labelled_split(split).rows
    features = [feature.name for feature in schema.features]
    progress.stage(f"score {split}" + (f" with {name}" if name is not None else ""), min(rows, MOST_ROWS))
    columns, logits = collect_split(model, dataset, split, [*features, *schema.other_columns], MOST_ROWS, progress)
    label, weight, group = (
        None if name is None else columns[name].to_numpy() for name in (schema.label, schema.weight, schema.group)
    )
    assert label is not None
    scored = ScoredRows.of(logits, label, weight, group)
    if not len(scored):
        raise UserError(f"{dataset.folder}: no row of '{split}' has a weight above 0; give a dataset with such rows")
    return ScoredSplit(split, rows, scored, columns.select(features).combine_chunks())


def divisions(held_out: ScoredSplit, dataset: Dataset, progress: Progress) -> list[Division]:
    """Return the rows by tenths of the score, by the values of each feature, and by how often values occurred in
    `train`.
    """
    scored = held_out.scored
    found: list[Division] = [(_BY_SCORE, slices(scored, *by_score(scored)))]
    progress.stage("slices", len(dataset.schema.features))
    for feature in dataset.schema.features:
        column = held_out.columns[feature.name].combine_chunks()
        values = values_of_rows(feature, column)
        by = {feature.name: cells_of_rows(feature, values, dataset.folder)}
        if isinstance(feature, CategoricalFeature):
            by_frequency = cells_by_frequency(feature, dataset.folder)
            if by_frequency is not None:
                by[f"{feature.name} in train"] = by_frequency
        found += [(name, slices(scored, cells.places(values), cells.names)) for name, cells in by.items()]
        progress.advance(1)
    return found


def held_out_figures(held_out: ScoredSplit, dataset: Dataset, progress: Progress) -> dict[str, Any]:
    """Return the metrics with standard errors, curves with bands, and slices of scored rows, as JSON values.

    Curves are None where all rows have the same label. `worst` has the places in `slices` of the worst ones by metric.
    """
    scored = held_out.scored
    metrics = scored.metrics.estimates()
    found = [(by, one) for by, parts in divisions(held_out, dataset, progress) for one in parts]
    progress.stage("curves")
    figures: dict[str, Any] = {
        "split": held_out.split,
        "rows": held_out.rows,
        "rows_scored": len(scored),
        "has_groups": scored.has_units,
        "label_rate": _estimate(scored.metrics.label_rate),
        "metrics": {name: _estimate(value) for name, value in metrics.items()},
        "curves": None,
        "slices": [_slice(by, one) for by, one in found],
        "worst": {metric: _worst(found, metric) for metric in SLICE_METRICS},
    }
    if metrics["auc"] is not None:
        curves = threshold_curves(scored)
        bins = reliability(scored)
        edges, negatives, positives = score_histogram(scored)
        figures["curves"] = {
            "roc": _curve(curves.roc),
            "precision_recall": _curve(curves.precision_recall),
            "average_precision": curves.average_precision,
            "lift": _curve(curves.lift),
            "reliability": [asdict(of_bin) for of_bin in bins],
            "expected_calibration_error": expected_calibration_error(bins),
            "histogram": {"edges": edges.tolist(), "negatives": negatives.tolist(), "positives": positives.tolist()},
        }
    progress.finish()
    return figures


def _estimate(found: Estimate | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _curve(curve: Curve) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in vars(curve).items()}


def _slice(by: str, one: SliceMetrics) -> dict[str, Any]:
    metrics = {name: _estimate(found) for name, found in one.metrics.items()}
    return {"by": by, "value": one.value, "rows": one.rows, "positives": one.positives, "metrics": metrics}


def _worst(found: list[tuple[str, SliceMetrics]], metric: str) -> list[int]:
    """Return the places of the worst slices by a metric, the worst first.

    Rows of about the same score are hard to rank for any model, so slices by score count for calibration alone.
    """
    bad = {
        place: how
        for place, (by, one) in enumerate(found)
        if (by != _BY_SCORE or metric == "calibration") and (how := one.badness(metric)) is not None
    }
    return sorted(bad, key=lambda place: -bad[place])[:_WORST]
