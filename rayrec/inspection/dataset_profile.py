"""Profile of a dataset folder: the distribution of every feature and how the label goes with it, from encoded rows."""

from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.config.preprocess import RowsPreprocessConfig
from rayrec.features.feature_kinds import CategoricalFeature, Feature, MultiHotFeature, NumericFeature
from rayrec.features.numeric import untransformed
from rayrec.ingest.dataset import REJECTED_FOLDER, Dataset
from rayrec.ingest.split_columns import SplitColumns
from rayrec.inspection.cells import (
    CellProfile,
    cells_of_values,
    label_rates,
    label_rates_along,
    list_lengths,
    values_of,
)
from rayrec.inspection.drift import FeatureDrift, drift_of_counts
from rayrec.store.parquet import open_parquet

MOST_ROWS = 2_000_000
"""Rows of a split that are read; of a larger one, row groups that are spread evenly over it."""
_EXAMPLES = 3
_EXAMPLE_LENGTH = 200
_QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}


@dataclass(frozen=True)
class FeatureProfile:
    """The distribution of one feature in `train`."""

    name: str
    kind: str
    cells: tuple[CellProfile, ...]
    drift: dict[str, FeatureDrift]
    """How each other split differs."""
    missing_share: float | None = None
    """Share of missing values; None for numbers, which are filled before they are written."""
    unlisted_share: float | None = None
    """Share of unlisted values, where they have ids of their own."""
    distinct: int | None = None
    """Ids that occur."""
    table_rows: int | None = None
    """Ids that there are."""
    mean_length: float | None = None
    """Values of a row, if it has a list of them."""
    range: dict[str, float] = field(default_factory=dict)
    """Quantiles and the mean of numbers, in the terms of the raw data."""


@dataclass(frozen=True)
class SplitProfile:
    """One split."""

    rows: int
    rows_read: int
    label_rate: float | None
    """Over all rows; None where the labels are not known."""
    along: tuple[CellProfile, ...]
    """The label rate of parts that follow each other, where rows are in the order of the input, which is often that of
    time."""


@dataclass(frozen=True)
class RejectedRows:
    """The rows that were set aside for one reason."""

    reason: str
    rows: int
    examples: tuple[dict[str, Any], ...]
    """File, line, column, value and text of a few of them."""


@dataclass(frozen=True)
class DatasetProfile:
    """Figures of a dataset."""

    splits: dict[str, SplitProfile]
    features: tuple[FeatureProfile, ...]
    rejected: tuple[RejectedRows, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        figures = asdict(self)
        for feature, found in zip(figures["features"], self.features, strict=True):
            feature["drift"] = {split: drift.as_json() for split, drift in found.drift.items()}
        return figures


def profile_dataset(dataset: Dataset, progress: Progress) -> DatasetProfile:
    """Read the splits of a dataset, one column after the other. Raises UserError if a part is damaged."""
    preprocess = dataset.recipe.preprocess
    splits: dict[str, SplitProfile] = {}
    features: list[FeatureProfile] = []
    # One column at a time is in memory, of every split.
    with ExitStack() as stack:
        names = [name for name, split in dataset.manifest.splits.items() if split.rows]
        columns = {name: stack.enter_context(SplitColumns(dataset, name, MOST_ROWS)) for name in names}
        for name, of_split in columns.items():
            info = dataset.split(name)
            # Rows that were left in the order of the input are often in that of time.
            is_ordered = isinstance(preprocess, RowsPreprocessConfig) and (
                name != "train" or preprocess.order == "input"
            )
            along = label_rates_along(_labels(of_split, dataset)) if info.labelled and is_ordered else ()
            rate = info.positives / info.rows if info.labelled else None
            splits[name] = SplitProfile(info.rows, of_split.rows, rate, tuple(along))
        if "train" in columns:
            labels = _labels(columns["train"], dataset)
            progress.stage("columns", len(dataset.schema.features))
            for feature in dataset.schema.features:
                features.append(_profile_feature(feature, columns, labels, dataset))
                progress.advance(1)
    return DatasetProfile(splits, tuple(features), _rejected(dataset))


def _labels(columns: SplitColumns, dataset: Dataset) -> NDArray[np.float64]:
    return columns.read(dataset.schema.label).to_numpy().astype(np.float64)


def _profile_feature(
    feature: Feature, splits: dict[str, SplitColumns], labels: NDArray[np.float64], dataset: Dataset
) -> FeatureProfile:
    # Frequent values or ranges of `train`, as the cells of all splits.
    column = splits["train"].read(feature.name)
    values = values_of(feature, column)
    cells = cells_of_values(feature, values, dataset.folder)
    # Each value of a list has the label of its row.
    of_values = np.repeat(labels, list_lengths(column)) if isinstance(feature, MultiHotFeature) else labels
    counts = cells.count(values)
    drift = {}
    for name, of_split in splits.items():
        if name != "train":
            now = cells.count(values_of(feature, of_split.read(feature.name)))
            drift[name] = drift_of_counts(feature.name, feature.kind, counts, now)
    rates = tuple(label_rates(cells.names, cells.places(values), of_values))
    return FeatureProfile(feature.name, feature.kind, rates, drift, **_facts(feature, column, values))


def _facts(feature: Feature, column: pa.Array, values: NDArray[Any]) -> dict[str, Any]:
    """Return the fields of a profile that only some kinds of features have."""
    if not isinstance(feature, CategoricalFeature):
        raw = untransformed(values, feature.transforms) if isinstance(feature, NumericFeature) else values
        quantiles = np.quantile(raw, list(_QUANTILES.values())).tolist()
        return {"range": {**dict(zip(_QUANTILES, quantiles, strict=True)), "mean": float(raw.mean())}}
    counts = np.bincount(values, minlength=1)
    total, first = max(len(values), 1), 1 + feature.unlisted_buckets
    return {
        "missing_share": int(counts[0]) / total,
        "unlisted_share": int(counts[1:first].sum()) / total if first > 1 else None,
        "distinct": int(np.count_nonzero(counts)),
        "table_rows": feature.cardinality,
        "mean_length": len(values) / len(column) if isinstance(feature, MultiHotFeature) else None,
    }


def _rejected(dataset: Dataset) -> tuple[RejectedRows, ...]:
    """Return the reasons for which rows were set aside, the most frequent first, each with a few rows."""
    reasons = Counter(dataset.manifest.rejected)
    examples: dict[str, list[dict[str, Any]]] = {reason: [] for reason in reasons}
    for stored in dataset.manifest.files:
        if not stored.path.startswith(f"{REJECTED_FOLDER}/") or not stored.path.endswith(".parquet"):
            continue
        with open_parquet(dataset.folder / stored.path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    of_reason = examples.setdefault(row.pop("reason"), [])
                    if len(of_reason) < _EXAMPLES:
                        row["text"] = row["text"][:_EXAMPLE_LENGTH]
                        of_reason.append(row)
                if all(len(rows) >= min(_EXAMPLES, reasons[reason]) for reason, rows in examples.items()):
                    break
    return tuple(RejectedRows(reason, rows, tuple(examples[reason])) for reason, rows in reasons.most_common())
