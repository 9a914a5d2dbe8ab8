"""Figures of the pages on data: a raw table's sample before training, and the encoded rows of a dataset."""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.progress import Progress
from rayrec.common.text import MOST_ORDERED, format_number, format_share, natural_order
from rayrec.config.preprocess import RowsPreprocessConfig
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature
from rayrec.features.transforms import untransformed
from rayrec.inference.past import history_facts
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
from rayrec.inspection.table.decisions import Decision
from rayrec.inspection.table.inspected_table import InspectedTable
from rayrec.metrics.estimates import NORMAL_95
from rayrec.store.parquet import open_parquet

# A raw table.

_BINS, _MOST_VALUES = 12, 15
_MUCH_MISSING = 0.5
_RARE_LABEL = 0.01
_ACTIVITY = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1_000)


@dataclass(frozen=True)
class _RowCells:
    """A column's rows by its values, or ranges of them."""

    names: list[str]
    places: NDArray[np.int64]
    """(n,) the cell of each row."""


def table_figures(found: InspectedTable, subject: str) -> dict[str, Any]:
    """Return what a page shows of an inspected table, as JSON values.

    Everything comes from the sample. The label's evidence is what inspection has measured.
    """
    # Columns whose values can be shown, each cut into cells: values, ranges, or spans of time.
    label, rows = found.label, found.sample.rows.num_rows
    shown = [d for d in found.decisions if d.column.form != "nested" and d.column.present]
    cells = {decision.column.name: _cells_of(decision) for decision in shown}
    # The columns, each with how the label goes with its values.
    columns = found.columns_as_json()
    for column in columns:
        of_column = cells.get(column["name"])
        column["cells"] = [] if of_column is None else label_rates(of_column.names, of_column.places, label)
    # Drift: the second half of the file against the first.
    others = {"label", "time", "user", "item"}
    used = [d for d in shown if d.role not in others and (d.role != "ignored" or d.warning)]
    halves = slice(0, rows // 2), slice(rows // 2, None)
    drift = []
    about_label = None
    if label is not None:
        known = np.isfinite(label)
        name = next((decision.column.name for decision in found.decisions if decision.role == "label"), None)
        about_label = {"name": name, "rate": float(label[known].mean()), "rows": int(known.sum())}
        if name is not None:
            sides = [np.array([(label[half] == side).sum() for side in (0, 1)]) for half in halves]
            drift.append(drift_of_counts(name, "label", *sides).as_json())
    for decision in used:
        of_column = cells[decision.column.name]
        counts = [np.bincount(of_column.places[half], minlength=len(of_column.names)) for half in halves]
        drift.append(drift_of_counts(decision.column.name, decision.kind, *counts).as_json())
    # Everything that the page shows; the alerts come last, as they are drawn from the rest.
    figures: dict[str, Any] = {
        "kind": "inspection",
        "subject": subject,
        "rows": rows,
        "total_rows": found.sample.total_rows,
        "is_whole": found.sample.is_whole,
        "label": about_label,
        "columns": columns,
        "logistic_regression_auc": found.regressed.auc,
        "with_label": _best_readings(found.decisions),
        "along": [] if label is None else label_rates_along(label),
        "drift": drift,
        "new_values": found.new_values,
        "histories": [
            {
                "name": history.name,
                "by": history.by,
                "take": [take if isinstance(take, str) else take["op"] for take in history.take],
                "auc": history.auc,
                "without": history.without,
            }
            for history in found.histories
        ],
        "interactions": _activity(found.decisions),
        "duplicates": _duplicates(found),
        "rejected": {"rows": found.left_out.bad, "reasons": dict(found.left_out.reasons)},
        "recipe": found.recipe,
    }
    return {**figures, "alerts": _alerts(found, figures)}


def _cells_of(decision: Decision) -> _RowCells:
    """Return the values of a column in their order, else the most frequent first; or ranges of its numbers, times or
    lengths of lists.
    """
    column = decision.column
    is_missing = column.codes < 0
    if column.form in ("list", "vector") and column.lengths is not None:
        names, places = _ranges(column.lengths.astype(np.float64))
        names = [f"{name} items" for name in names]
    elif column.form == "time" and column.seconds is not None:
        # Spans of one length, by their beginnings.
        seconds = column.row_seconds
        first, last = float(np.nanmin(seconds)), float(np.nanmax(seconds))
        width = max(last - first, 1.0) / _BINS
        places = np.nan_to_num((seconds - first) // width).astype(np.int64).clip(0, _BINS - 1)
        form = "from %Y-%m-%d" if width >= 86_400 else "from %Y-%m-%d %H:%M"
        names = [datetime.fromtimestamp(first + n * width, UTC).strftime(form) for n in range(_BINS)]
    elif _is_ordered(decision):
        names, places = _ranges(np.where(is_missing, np.nan, column.row_numbers))
    else:
        order = np.argsort(-column.counts, kind="stable")
        order = order[column.counts[order] > 0]
        ordered = natural_order([column.texts[i] for i in order]) if len(order) <= MOST_ORDERED else None
        shown = order[:_MOST_VALUES] if ordered is None else order[ordered]
        place = np.full(len(column.texts) + 1, len(shown))
        place[shown] = np.arange(len(shown))
        others = len(order) - len(shown)
        names = [column.texts[i] for i in shown] + ([f"{others:,} other values"] if others > 0 else [])
        places = place[column.codes]
    if is_missing.any():
        places = np.where(is_missing, len(names), places)
        names = [*names, "missing"]
    return _RowCells(names, places)


def _is_ordered(decision: Decision) -> bool:
    """Tell whether a column is read as numbers, not as names."""
    return decision.column.numbers is not None and decision.kind not in ("categorical", "user", "item", "group")


def _ranges(numbers: NDArray[np.float64]) -> tuple[list[str], NDArray[np.int64]]:
    """Return each of a few numbers, or ranges of about as many rows; a frequent number has a range of its own."""
    known = numbers[np.isfinite(numbers)]
    distinct, counts = np.unique(known, return_counts=True)
    starts = distinct
    if len(distinct) > _MOST_VALUES:
        frequent = np.flatnonzero(counts > len(known) / _BINS)
        others = known[~np.isin(known, distinct[frequent])]
        edges = np.quantile(others, np.arange(1, _BINS) / _BINS, method="higher")
        after = distinct[np.minimum(frequent + 1, len(distinct) - 1)]
        starts = np.unique(np.concatenate([distinct[:1], edges, distinct[frequent], after]))
    ends = np.append(distinct[np.searchsorted(distinct, starts[1:]) - 1], distinct[-1:])
    places = (np.searchsorted(starts, numbers, side="right") - 1).clip(0, len(starts) - 1)

    def text(value: float) -> str:
        return f"{int(value)}" if value.is_integer() and abs(value) < 1e6 else format_number(value)

    return [text(a) if a == b else f"{text(a)} to {text(b)}" for a, b in zip(starts, ends, strict=True)], places


def _best_readings(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the best reading of each column, the best column first."""
    found = []
    for decision in decisions:
        if decision.auc:
            reading, best = max(decision.auc.items(), key=lambda item: item[1].auc)
            low, high = best.auc - NORMAL_95 * best.error, best.auc + NORMAL_95 * best.error
            found.append({"name": decision.column.name, "reading": reading.replace("_", " "), "auc": best.auc,
                          "low": low, "high": min(high, 1.0)})  # fmt: skip
    return sorted(found, key=lambda one: -float(one["auc"]))


def _activity(decisions: Sequence[Decision]) -> dict[str, Any] | None:
    """Return how many rows a user has, and how many rows the most popular items have; None for other tables."""
    of_role = {decision.role: decision.column for decision in decisions}
    if "user" not in of_role or "item" not in of_role:
        return None
    figures: dict[str, Any] = {}
    for role in ("user", "item"):
        counts = np.sort(of_role[role].counts[of_role[role].counts > 0])[::-1]
        place = np.searchsorted(_ACTIVITY, counts, side="right") - 1
        ends = [*(f"{end - 1:,}" for end in _ACTIVITY[1:]), ""]
        names = [
            f"{low:,}" if f"{low:,}" == end else f"{low:,} to {end}" if end else f"{low:,} and more"
            for low, end in zip(_ACTIVITY, ends, strict=True)
        ]
        shares = np.bincount(place, minlength=len(names)) / len(counts)
        steps = np.unique(np.linspace(1, len(counts), min(len(counts), 60)).round().astype(np.int64))
        figures[role] = {
            "count": len(counts),
            "median": float(np.median(counts)),
            "most": int(counts[0]),
            "rows": [{"rows": n, "share": float(s)} for n, s in zip(names, shares, strict=True)],
            "cumulated": {
                "share": (steps / len(counts)).tolist(),
                "of_rows": (np.cumsum(counts)[steps - 1] / counts.sum()).tolist(),
            },
        }
    return figures


def _duplicates(found: InspectedTable) -> int | None:
    """Return the rows of the sample that repeat another one in every column; None if values cannot be compared."""
    key = np.zeros(found.sample.rows.num_rows, np.int64)
    for decision in found.decisions:
        codes = decision.column.codes
        if decision.column.form in ("list", "vector", "nested"):
            # Their codes stand for less than the value.
            try:
                encoded = found.sample.rows[decision.column.name].combine_chunks().dictionary_encode()
            except pa.ArrowException:
                return None
            codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        # Both factors are at most the number of rows, so the product fits.
        _, key = np.unique(key * (int(codes.max(initial=-1)) + 2) + codes + 1, return_inverse=True)
    return len(key) - len(np.unique(key))


Alert = tuple[str, str, str]
"""The kind, the column and the text."""


def _alerts(found: InspectedTable, figures: dict[str, Any]) -> list[dict[str, str]]:
    """Return what a person should look at before training, by kind and column."""
    alerts = [alert for decision in found.decisions for alert in _column_alerts(decision)]
    leaks = {decision.warning for decision in found.decisions}
    alerts += [("warning", "", warning) for warning in found.warnings if warning not in leaks]
    if duplicates := figures["duplicates"]:
        repeated = f"{duplicates:,} rows of the sample ({format_share(duplicates / figures['rows'])})"
        alerts.append(("duplicates", "", f"{repeated} repeat another one in every column"))
    label = figures["label"]
    if label is not None and min(label["rate"], 1 - label["rate"]) < _RARE_LABEL:
        rare = f"{format_share(label['rate'])} of the rows have label 1"
        alerts.append(("skewed label", label["name"], f"{rare}; metrics need many rows"))
    alerts += [
        ("drift", one["name"], f"the second half of the file differs: stability index {format_number(one['index'])}")
        for one in figures["drift"]
        if one["has_drifted"]
    ]
    return [{"kind": kind, "column": column, "what": what} for kind, column, what in alerts]


def _column_alerts(decision: Decision) -> list[Alert]:
    column, found = decision.column, list[Alert]()
    if decision.warning:
        found.append(("leak suspect", column.name, decision.warning.removeprefix(f"{column.name}: ")))
    elif decision.role == "ignored":
        kinds = {"constant": "constant", "a row id": "like an id"}
        kind = next((kind for start, kind in kinds.items() if decision.reason.startswith(start)), "ignored")
        found.append((kind, column.name, decision.reason))
    if column.missing_share >= _MUCH_MISSING:
        found.append(("missing", column.name, f"{format_share(column.missing_share)} of the rows have no value"))
    if decision.role == "time" and column.seconds is not None:
        steps = np.diff(column.row_seconds[np.isfinite(column.row_seconds)])
        if (steps < 0).any():
            early = f"{format_share(float((steps < 0).mean()))} of the rows are earlier than the row before"
            found.append(("order of time", column.name, f"{early}; a split by place in the file would mix times"))
    return found


# A dataset.

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
    `histories`: see `history_facts`. `rejected`: the reasons, the most frequent first, each with a few rows.
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
    return {
        "splits": splits,
        "features": features,
        "found_keys": found_keys,
        "histories": history_facts(dataset.schema),
        "rejected": _rejected(dataset),
    }


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
