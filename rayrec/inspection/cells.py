"""Cells of rows, by the values of a column or a feature, or by their place: how many rows they have, and how many are
positive.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.transforms import HashIds
from rayrec.features.id_meanings import ValueNames
from rayrec.features.raw_columns import History
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, Schema
from rayrec.features.transforms import fold_ids, ids_of, untransformed
from rayrec.features.vocabulary import vocabulary_files
from rayrec.metrics.estimates import wilson
from rayrec.store.parquet import open_parquet

MOST_VALUES = 20
"""Values that have a cell of their own; others share one, or a range."""
_RANGES = 10
_OUTER_SHARE = 0.005
"""The share of the rows in the first and in the last of ranges of even width, so that outliers do not set the width."""
_PARTS = 20
"""Parts of the rows, one after the other, by which the label rate is shown."""


def label_rates(
    names: Sequence[str], places: NDArray[np.int64], label: NDArray[np.float64] | None
) -> list[dict[str, Any]]:
    """Return the cells that have rows, as JSON values.

    A cell is a `value`, with the `rows` (of lists: values) that have it, their `share` of all, and the `label_rate` of
    those whose label is known, with its 95 % interval from `low` to `high`; all None if none is.
    `places` (n,) are the cells of the rows, by their places in `names`; `label` (n,) is 0 or 1, NaN where not known.
    """
    counts = np.bincount(places, minlength=len(names))
    label = np.full(len(places), np.nan) if label is None else label
    known = np.isfinite(label)
    labelled = np.bincount(places[known], minlength=len(names))
    positives = np.bincount(places[known], weights=label[known], minlength=len(names))
    found, total = [], int(counts.sum())
    for place in np.flatnonzero(counts).tolist():
        rate = low = high = None
        if labelled[place]:
            rate = float(positives[place] / labelled[place])
            low, high = wilson(rate, int(labelled[place]))
        rows = int(counts[place])
        found.append({
            "value": names[place], "rows": rows, "share": rows / total, "label_rate": rate, "low": low, "high": high
        })  # fmt: skip
    return found


def label_rates_along(label: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Return the label rates of twentieths of the rows, one after the other; `label` (n,) as for `label_rates`."""
    names = [f"{100 * n // _PARTS} to {100 * (n + 1) // _PARTS} %" for n in range(_PARTS)]
    return label_rates(names, np.arange(len(label)) * _PARTS // max(len(label), 1), label)


@dataclass(frozen=True)
class FeatureCells:
    """The cells of an encoded feature's values, which have names in the terms of the raw data."""

    names: tuple[str, ...]
    places: Callable[[NDArray[Any]], NDArray[np.int64]]
    """The place of each of (n,) values of `values_of` or `values_of_rows`."""

    def count(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of values in each cell."""
        return np.bincount(self.places(values), minlength=len(self.names))


def values_of(feature: Feature, column: pa.Array) -> NDArray[Any]:
    """Return (n,) the values of an encoded column: numbers, ids (of lists in a row), the lengths of vectors."""
    if isinstance(feature, MultiHotFeature):
        return ids_of(column.flatten()).to_numpy()
    if isinstance(feature, CategoricalFeature):
        return column.to_numpy()
    if isinstance(feature, NumericFeature):
        return column.to_numpy().astype(np.float64)
    numbers = column.flatten().to_numpy().reshape(len(column), -1)
    return np.linalg.norm(numbers.astype(np.float64), axis=1)


def values_of_rows(feature: Feature, column: pa.Array) -> NDArray[Any]:
    """Return (rows,) one value for each row: as `values_of`, but the number of ids of a list."""
    return list_lengths(column) if isinstance(feature, MultiHotFeature) else values_of(feature, column)


def list_lengths(column: pa.ListArray) -> NDArray[np.int64]:
    """Return (rows,) the number of values of each list."""
    return np.diff(column.offsets.to_numpy()).astype(np.int64)


def cells_of_values(feature: Feature, values: NDArray[Any], folder: Path) -> FeatureCells:
    """Return the cells for the distribution of `values_of`: frequent values, or ranges of the same width as the model
    sees it.

    `folder`: that of the schema, whose vocabularies name values.
    """
    if isinstance(feature, CategoricalFeature):
        return _of_ids(feature, values, ValueNames.load(feature, folder))
    return _of_numbers(values, "width", _as_raw(feature))


def cells_of_rows(feature: Feature, values: NDArray[Any], folder: Path) -> FeatureCells:
    """Return the cells that divide rows by `values_of_rows`: frequent values, or ranges with as many rows each."""
    if isinstance(feature, MultiHotFeature):
        return _of_numbers(values, "rows", _as_raw(feature), unit="value")
    if isinstance(feature, CategoricalFeature):
        return _of_ids(feature, values, ValueNames.load(feature, folder))
    return _of_numbers(values, "rows", _as_raw(feature))


def cells_by_frequency(feature: CategoricalFeature, folder: Path) -> FeatureCells | None:
    """Return the cells of ids by how often their values occurred in `train`; None if the feature lists few values, or
    none.
    """
    vocabulary = feature.vocabulary
    if vocabulary is None or vocabulary.size <= MOST_VALUES or isinstance(feature, MultiHotFeature):
        return None
    counts = np.empty(vocabulary.size, np.int64)
    start = 0
    for path in vocabulary_files(folder / vocabulary.file):
        with open_parquet(path) as file:
            read = file.read(["count"])["count"].to_numpy()
        counts[start : start + len(read)] = read
        start += len(read)
    ids = 1 + feature.unlisted_buckets + np.arange(len(counts))
    for transform in feature.transforms:
        if isinstance(transform, HashIds):
            ids = fold_ids(ids, transform.buckets)
    tens = _tens(np.bincount(ids, weights=counts, minlength=feature.cardinality))
    first = ValueNames.load(feature, folder).missing if not feature.unlisted_buckets else "missing or not listed"
    return FeatureCells((first, *_names_of_tens(int(tens.max()), "times")), lambda values: tens[values])


def past_counts(schema: Schema) -> dict[str, History]:
    """Return the features that are how many events of a history happened before a row, with this history."""
    counts = {
        taken.column: lookup
        for lookup in schema.lookups
        if isinstance(lookup, History)
        for taken in lookup.takes
        if taken.op == "count"
    }
    return {feature.name: counts[feature.columns[0]] for feature in schema.numeric if feature.columns[0] in counts}


def cells_of_past(feature: Feature, values: NDArray[Any]) -> FeatureCells:
    """Return the cells that divide rows by how many events happened before them: those of `past_counts`."""
    raw = _as_raw(feature)

    def places(new: NDArray[Any]) -> NDArray[np.int64]:
        return _tens(np.rint(raw(new)))

    return FeatureCells(("no event", *_names_of_tens(int(places(values).max(initial=0)), "events")), places)


def _tens(counts: NDArray[Any]) -> NDArray[np.int64]:
    """Return 0 for a count of 0, and for others how many digits they have."""
    tens = np.zeros(len(counts), np.int64)
    tens[counts > 0] = 1 + np.log10(counts[counts > 0]).astype(np.int64)
    return tens


def _names_of_tens(most: int, unit: str) -> list[str]:
    return [f"{10**n:,} to {10 ** (n + 1) - 1:,} {unit}" for n in range(most)]


def _of_ids(feature: CategoricalFeature, ids: NDArray[Any], names: ValueNames) -> FeatureCells:
    counts = np.bincount(ids, minlength=feature.cardinality)
    first = 1 + feature.unlisted_buckets
    listed = np.arange(first, feature.cardinality)
    shown = names.to_show(listed[np.argsort(-counts[first:], kind="stable")], MOST_VALUES)
    # Missing, not listed, the shown ones, others.
    cell = np.full(feature.cardinality, len(shown) + 2)
    cell[0], cell[1:first] = 0, 1
    cell[shown] = np.arange(2, len(shown) + 2)
    return FeatureCells(
        (names.missing, "not listed", *names(shown.tolist()), "other values"), lambda values: cell[values]
    )


def _of_numbers(
    values: NDArray[Any], even: Literal["rows", "width"], raw: Callable[[NDArray[Any]], NDArray[Any]], unit: str = ""
) -> FeatureCells:
    """Return the cells of numbers, named by the raw numbers (`raw`) of the lowest and the highest value in each."""
    distinct = np.unique(values)
    if len(distinct) <= MOST_VALUES:
        edges = distinct[1:]
    elif even == "rows":
        edges = np.unique(np.quantile(values, np.arange(1, _RANGES) / _RANGES))
    else:
        low, high = np.quantile(values, [_OUTER_SHARE, 1 - _OUTER_SHARE])
        if low == high:  # nearly all values are one
            low, high = distinct[0], distinct[-1]
        edges = np.linspace(low, high, MOST_VALUES - 1)

    def places(new: NDArray[Any]) -> NDArray[np.int64]:
        return np.searchsorted(edges, new, side="right")

    cells = np.arange(len(edges) + 1)
    firsts, ends = (np.searchsorted(places(distinct), cells, side=side) for side in ("left", "right"))
    texts = distinct_texts(raw(distinct[np.concatenate([firsts.clip(0, len(distinct) - 1), ends - 1])]))
    names = []
    for low_text, high_text, count in zip(texts[: len(cells)], texts[len(cells) :], ends - firsts, strict=True):
        name = "nothing" if not count else low_text if low_text == high_text else f"{low_text} to {high_text}"
        names.append(f"{name} {unit}{'' if name == '1' else 's'}" if unit else name)
    return FeatureCells(tuple(names), places)


def _as_raw(feature: Feature) -> Callable[[NDArray[Any]], NDArray[np.float64]]:
    transforms = feature.transforms if isinstance(feature, NumericFeature) else ()
    return lambda values: untransformed(values.astype(np.float64), transforms)


def distinct_texts(numbers: NDArray[np.float64]) -> list[str]:
    """Return the texts of numbers, with no more digits than it takes to tell different ones apart."""
    texts: list[str] = []
    for digits in range(4, 10):
        texts = [f"{n:,.0f}" if abs(n) >= 10 ** (digits - 1) else f"{n:.{digits}g}" for n in numbers]
        if len(set(texts)) == len(set(numbers.tolist())):
            break
    return texts
