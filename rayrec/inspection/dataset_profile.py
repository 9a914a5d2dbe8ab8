"""Profile of a dataset folder: the distribution of every feature and how the label goes with it, from encoded rows."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.config.preprocess import RowsPreprocessConfig
from rayrec.features.feature_kinds import CategoricalFeature, Feature, MultiHotFeature, NumericFeature
from rayrec.features.numeric import untransformed
from rayrec.ingest.dataset import REJECTED_FOLDER, Dataset
from rayrec.ingest.packed_rows import SplitColumns
from rayrec.inspection.cells import (
    cells_of_values,
    label_rates,
    label_rates_along,
    list_lengths,
    values_of,
)
from rayrec.inspection.drift import drift_of_counts
from rayrec.store.parquet import open_parquet

MOST_ROWS = 2_000_000
"""Rows of a split that are read; of a larger one, row groups that are spread evenly over it."""
_EXAMPLES = 3
_EXAMPLE_LENGTH = 200
_QUANTILES = {"min": 0.0, "5%": 0.05, "median": 0.5, "95%": 0.95, "max": 1.0}


def dataset_figures(dataset: Dataset, progress: Progress) -> dict[str, Any]:
    """Read the splits of a dataset, one column after the other; return what a page shows of them, as JSON values.

    `splits` by name: `rows`, of which `rows_read` for this; `label_rate` over all rows, None where it is not known; and
    `along`, that of parts that follow each other, where rows are in the order of the input, which is often that of
    time. `features`: see `_feature_figures`. `found_keys`: how many rows find their key, by look-up, as a text.
    `rejected`: the reasons, the most frequent first, each with a few rows.
    Raises UserError if a part is damaged.
    """
    preprocess = dataset.recipe.preprocess
    splits: dict[str, dict[str, Any]] = {}
    features: list[dict[str, Any]] = []
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
            splits[name] = {
                "rows": info.rows,
                "rows_read": of_split.rows,
                "label_rate": info.positives / info.rows if info.labelled else None,
                "along": label_rates_along(_labels(of_split, dataset)) if info.labelled and is_ordered else [],
            }
        if "train" in columns:
            labels = _labels(columns["train"], dataset)
            progress.stage("columns", len(dataset.schema.features))
            for feature in dataset.schema.features:
                features.append(_feature_figures(feature, columns, labels, dataset))
                progress.advance(1)
    found_keys = {name: found.described("a key") for name, found in dataset.manifest.found_keys.items()}
    return {"splits": splits, "features": features, "found_keys": found_keys, "rejected": _rejected(dataset)}


def _labels(columns: SplitColumns, dataset: Dataset) -> NDArray[np.float64]:
    return columns.read(dataset.schema.label).to_numpy().astype(np.float64)


def _feature_figures(
    feature: Feature, splits: dict[str, SplitColumns], labels: NDArray[np.float64], dataset: Dataset
) -> dict[str, Any]:
    """Return the distribution of a feature in `train` by cells, and by other split how it differs (`drift`).

    Of ids: the shares of missing values, and of unlisted ones if these have ids of their own; the ids that occur
    (`distinct`) and that there are (`table_rows`); and the values of a row, if it has a list of them. Of other
    features: quantiles and mean in the terms of the raw data (`range`); what was missing of them was filled.
    """
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
            drift[name] = drift_of_counts(feature.name, feature.kind, counts, now).as_json()
    figures: dict[str, Any] = {
        "name": feature.name,
        "kind": feature.kind,
        "cells": label_rates(cells.names, cells.places(values), of_values),
        "drift": drift,
        **dict.fromkeys(("missing_share", "unlisted_share", "distinct", "table_rows", "mean_length")),
        "range": {},
    }
    if isinstance(feature, CategoricalFeature):
        of_id = np.bincount(values, minlength=1)
        total, first = max(len(values), 1), 1 + feature.unlisted_buckets
        return figures | {
            "missing_share": int(of_id[0]) / total,
            "unlisted_share": int(of_id[1:first].sum()) / total if first > 1 else None,
            "distinct": int(np.count_nonzero(of_id)),
            "table_rows": feature.cardinality,
            "mean_length": len(values) / len(column) if isinstance(feature, MultiHotFeature) else None,
        }
    raw = untransformed(values, feature.transforms) if isinstance(feature, NumericFeature) else values
    quantiles = np.quantile(raw, list(_QUANTILES.values())).tolist()
    return figures | {"range": {**dict(zip(_QUANTILES, quantiles, strict=True)), "mean": float(raw.mean())}}


def _rejected(dataset: Dataset) -> list[dict[str, Any]]:
    """Return the reasons for which rows were set aside, with file, line, column, value and text of a few rows each."""
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
    return [{"reason": reason, "rows": rows, "examples": examples[reason]} for reason, rows in reasons.most_common()]
