"""Compares new files with a dataset: how the features of their rows are distributed, and what is missing or new."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.config.table import TableSourceConfig, matches
from rayrec.config.transforms import Elapsed, HashIds, TimePart, Vocabulary
from rayrec.features.encoder import FeatureEncoder
from rayrec.features.id_meanings import EarlierIds
from rayrec.features.labels import label_column
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import needs
from rayrec.features.schema import CategoricalFeature, Feature, NumericFeature, Schema
from rayrec.features.transforms import encode_numeric, ids_of, untransformed
from rayrec.ingest.dataset import COUNTS_FOLDER, Dataset
from rayrec.metrics.estimates import stability_index
from rayrec.preprocessing.vocabularies import read_counts
from rayrec.raw.input_files import list_inputs
from rayrec.raw.rows import Cell, RawCells, RowTypes, as_text
from rayrec.raw.sample import sample_rows

LIMIT = 0.25
"""The stability index beyond what chance explains from which a feature has drifted."""
UNREADABLE_LIMIT = 0.01
"""The share of values of another form from which a column has drifted."""
_REFERENCE_ROWS = 20_000
_FREQUENT = 20
"""Ids that are compared one by one; all others are one cell."""
_BINS = 10
_EXPLAINED = 0.9
"""Share of unknown values that have to be new, not missing, to explain a drift."""


@dataclass(frozen=True)
class FeatureDrift:
    """How one feature, or the label, differs."""

    name: str
    kind: str
    index: float
    """The stability index."""
    limit: float
    """The index from which it has drifted: 0.25, and what samples of this size differ by chance."""
    unknown_share: float | None = None
    """Share of the ids in the files that are missing or not listed, of features with a vocabulary."""
    unknown_share_before: float | None = None
    """The same in the dataset."""
    became_constant: bool = False
    """Whether all rows have one value, and rows of the dataset have several."""

    @property
    def chance(self) -> float:
        """Return what the index of samples of this size is by chance."""
        return self.limit - LIMIT

    @property
    def has_drifted(self) -> bool:
        return self.index > self.limit

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        return {**vars(self), "has_drifted": self.has_drifted}


@dataclass(frozen=True)
class Drift:
    """How files differ from a dataset."""

    rows: int
    """Rows of the sample."""
    features: tuple[FeatureDrift, ...]
    problems: tuple[str, ...]
    """Columns that are missing, or hold other values."""
    new_columns: tuple[str, ...]
    """Columns that the dataset does not know of."""

    @property
    def verdict(self) -> str | None:
        """Return what has drifted, in a line; None if nothing has."""
        drifted = sorted((f for f in self.features if f.has_drifted), key=lambda f: -f.index)
        found = [*self.problems, *(f"{f.name} (stability index {f.index:.2f})" for f in drifted)]
        return "; ".join(found) if found else None

    def as_json(self) -> dict[str, Any]:
        """Return the figures, as JSON values."""
        return {
            "limit": LIMIT,
            "features": [feature.as_json() for feature in self.features],
            "problems": list(self.problems),
            "new_columns": list(self.new_columns),
        }


def compare(paths: Sequence[str], dataset: Dataset, rows: int, seed: int = 0) -> Drift:
    """Compare `rows` rows of the files at `paths` with the rows of `train`.

    Raises UserError if the dataset is not one of tables, or the files cannot be read.
    """
    config = dataset.recipe.source
    if not isinstance(config, TableSourceConfig):
        raise UserError(f"{dataset.folder}: made from source.kind '{config.kind}'; only tables can be compared")
    # Read the files as the dataset's recipe has it; what has another form is counted by column.
    sample = sample_rows(list_inputs(paths), config, rows, seed).rows
    if not sample.num_rows:
        raise UserError(f"{paths[0]}: no row can be read like the dataset's rows; give files with the same columns")
    label = config.label if config.label_column in sample.column_names else None
    schema = dataset.schema
    columns = schema.given_columns
    missing = [column.name for column in columns if column.name not in sample.column_names]
    cells = RawCells(
        {name: column.combine_chunks() for name, column in zip(sample.column_names, sample.columns, strict=True)},
        np.arange(sample.num_rows), sample.num_rows, {}, lambda _: b"",
    )  # fmt: skip
    types = RowTypes(columns, label, None, frozenset(), schema.list_lengths, label_column(config), needs_label=False)
    parsed = types.parse(cells)
    if not parsed.rows.num_rows:
        raise UserError(f"{paths[0]}: no row can be read like the dataset's rows; give files with the same columns")
    # Columns that are missing, or have too many values of another form.
    problems = [f"no column '{name}'" for name in missing]
    labels = pa.nulls(0) if label is None else parsed.rows.column(0)
    wrong = [row.cell for row in parsed.rejected.values() if row.cell is not None]
    if label is not None:
        given = sample[config.label_column].take(pa.array(parsed.positions))
        no_labels = given.filter(pc.and_(labels.is_null(), pc.invert(given.is_null(nan_is_null=True))))
        wrong += [(config.label_column, as_text(value)) for value in no_labels.to_pylist() if value != ""]
    problems += _unreadable(wrong, {column.name: column for column in columns}, sample.num_rows)
    # Encode the rows as those of `train` are, and compare the shares of their cells.
    raw = parsed.rows.select([column.name for column in columns])
    encoded = FeatureEncoder(schema, dataset.folder).encode(raw)
    names = [feature.name for feature in schema.features]
    reference = pa.concat_batches(list(dataset.rows("train", names, _REFERENCE_ROWS, spread=True)))
    features = [
        _feature_drift(feature, reference.column(feature.name), encoded.column(feature.name))
        for feature in schema.features
        if not set(missing).intersection(feature.columns)
    ]
    if labels.null_count < len(labels):
        features.insert(0, _label_drift(config.label_column, labels, dataset))
    known = (*raw.schema.names, *dataset.recipe.unneeded_columns)
    new = tuple(name for name in sample.column_names if not any(matches(name, pattern) for pattern in known))
    return Drift(sample.num_rows, tuple(features), tuple(problems), new)


def drift_of_extension(dataset: Dataset, parent: Dataset) -> list[FeatureDrift]:
    """Return how the rows of `train` of a dataset, and their labels, differ from those of the one that it extends.

    Values that were not listed there count as unknown. Counts, sums and ages of the past grow with every day, so they
    are not compared.
    """
    found, split = [], dataset.split("train")
    before_labels, labels = (np.array([s.rows - s.positives, s.positives]) for s in (parent.split("train"), split))
    if dataset.schema.interactions is None:
        found.append(drift_of_counts(dataset.schema.label, "label", before_labels, labels))
    # Yesterday's ids and numbers of today's rows: only then do equal values have equal encodings.
    names = [feature.name for feature in dataset.schema.features]
    rows_before, rows = (
        pa.concat_batches(list(of.rows("train", names, _REFERENCE_ROWS, spread=True))) for of in (parent, dataset)
    )
    takes = [taken for history in dataset.schema.histories for taken in history.takes]
    growing = {taken.column for taken in takes if taken.op in ("count", "sum", "age")}
    own = rows
    rows = EarlierIds(dataset.schema, dataset.folder, parent.schema, parent.folder)(rows)
    rows = _with_numbers_of(rows, dataset.schema, parent.schema)
    for feature in dataset.schema.features:
        distinct, distinct_before = (
            len(pc.unique(pa.array(_flat(of.column(feature.name))))) for of in (own, rows_before)
        )
        drift = _feature_drift(feature, rows_before.column(feature.name), rows.column(feature.name))
        drift = replace(drift, index=0.0) if growing.intersection(feature.columns) else drift
        found.append(replace(drift, became_constant=distinct_before > 1 == distinct and len(rows) > 1))
    return found


def is_explained_by_new_values(drift: FeatureDrift, dataset: Dataset, parent: Dataset) -> bool:
    """Tell whether a feature has drifted as the rows of an extension have new values that look like the earlier ones.

    New items come every day. The same items in another form (`U-7` for `u7`, `7.0` for `7`) come by mistake, and
    missing values are none.
    """
    if drift.unknown_share is None or drift.unknown_share_before is None:
        return False
    (before, _), (now, counts) = (_counted_values(of, drift.name) for of in (parent, dataset))
    is_new = pc.invert(pc.is_in(now, value_set=before)).to_numpy(zero_copy_only=False)
    unknown = drift.unknown_share * dataset.split("train").rows
    if not len(before) or counts[is_new].sum() < _EXPLAINED * unknown:
        return False
    # Each kind of characters that a value consists of is a cell.
    kinds = [
        Counter(map(_characters, values.slice(0, _REFERENCE_ROWS).to_pylist()))
        for values in (before, now.filter(is_new))
    ]
    cells = list(kinds[0] | kinds[1])
    index = drift_of_counts(drift.name, drift.kind, *(np.array([of[cell] for cell in cells]) for of in kinds))
    return not index.has_drifted


def _counted_values(dataset: Dataset, name: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the values of a feature (string), listed or not, of all days, and how often each was there."""
    found = [rows for path in dataset.files_in(COUNTS_FOLDER) for _, rows in read_counts(path, [name])]
    table = pa.Table.from_batches(found) if found else pa.table({"value": pa.array([], pa.string()), "count": []})
    return table["value"].combine_chunks(), table["count"].to_numpy()


def _characters(value: str) -> tuple[str, ...]:
    """Return the kinds of characters of a value, and whether it begins with a zero as a number does not."""
    kinds = {"0" if c.isdigit() else "a" if c.islower() else "A" if c.isupper() else c for c in value}
    return (*sorted(kinds), "00" if value[:1] == "0" else "")


def drift_between(dataset: Dataset, before: Dataset) -> tuple[list[FeatureDrift], dict[str, str]]:
    """Return how the rows of `train` of a dataset differ from those of another one, and by feature why it cannot be
    compared.

    The two may list other values and be fitted to other numbers: the rows are compared as `before` encodes them. As
    they are samples, an index has to exceed what chance explains (`FeatureDrift.limit`).
    """
    # Pairs of features whose encoded values mean the same in both.
    earlier = {feature.name: feature for feature in before.schema.features}
    alike: list[tuple[Feature, Feature]] = []
    unlike: dict[str, str] = {}
    for feature in dataset.schema.features:
        other = earlier.get(feature.name)
        reason = "the other dataset does not have it" if other is None else _why_unlike(feature, other)
        if reason is None and feature.reads is None and not set(feature.inputs) <= {one.name for one, _ in alike}:
            reason = "a feature that it is made of cannot be compared"
        if reason is None:
            assert other is not None
            alike.append((feature, other))
        else:
            unlike[feature.name] = reason
    now, then = (
        replace(opened, schema=opened.schema.model_copy(update={"features": features, "interactions": None}))
        for opened, features in zip((dataset, before), zip(*alike, strict=True) if alike else ((), ()), strict=True)
    )
    return drift_of_extension(now, then), unlike


def _why_unlike(now: Feature, before: Feature) -> str | None:
    """Say why encoded values of two features cannot be compared; None if they can."""
    if now.kind != before.kind:
        return f"it is {before.kind} there, {now.kind} here"
    if not isinstance(now, CategoricalFeature) or not isinstance(before, CategoricalFeature):
        return None if getattr(now, "size", 0) == getattr(before, "size", 0) else "its vectors have another size there"
    own, other = ([t for t in f.transforms if not isinstance(t, Vocabulary)] for f in (now, before))
    if own != other or (now.vocabulary is None) != (before.vocabulary is None):
        return "its values get ids by different rules there"
    if now.vocabulary != before.vocabulary and any(isinstance(transform, HashIds) for transform in own):
        return "its table is capped, so ids stand for several values, which differ there"
    return None


def _with_numbers_of(rows: pa.RecordBatch, now: Schema, before: Schema) -> pa.RecordBatch:
    """Return the encoded rows with the numbers that the transforms of `before` give."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    for feature, earlier in zip(now.features, before.features, strict=True):
        if isinstance(feature, NumericFeature) and isinstance(earlier, NumericFeature):
            own, other = ([t for t in f.transforms if not isinstance(t, Elapsed)] for f in (feature, earlier))
            if own != other:
                raw = untransformed(columns[feature.name].to_numpy().astype(np.float64), own)
                columns[feature.name] = pa.array(encode_numeric(feature.name, pa.array(raw), other))
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _unreadable(cells: Sequence[Cell], columns: Mapping[str, RawColumn], rows: int) -> list[str]:
    """Return the columns with too many values of another form, given these values."""
    counts = Counter(name for name, _ in cells)
    examples = dict(cells)
    return [
        f"'{name}' has {count / rows:.1%} values that are not {needs(columns[name])} (such as '{examples[name]}')"
        if name in columns
        else f"'{name}' has {count / rows:.1%} values that are not labels (such as '{examples[name]}')"
        for name, count in counts.items()
        if count > UNREADABLE_LIMIT * rows
    ]


def _label_drift(name: str, values: pa.Array, dataset: Dataset) -> FeatureDrift:
    split = dataset.split("train")
    labels = values.drop_null().to_numpy()
    before = np.array([split.rows - split.positives, split.positives])
    now = np.array([len(labels) - labels.sum(), labels.sum()])
    return drift_of_counts(name, "label", before, now)


def _feature_drift(feature: Feature, before: pa.Array, now: pa.Array) -> FeatureDrift:
    if isinstance(feature, CategoricalFeature):
        return _category_drift(feature, _flat(before), _flat(now))
    if isinstance(feature, NumericFeature):
        numbers = before.to_numpy(), now.to_numpy()
    else:
        # A vector is compared by its length.
        numbers = tuple(np.linalg.norm(_flat(part).reshape(len(part), -1), axis=1) for part in (before, now))
    edges = np.unique(np.quantile(numbers[0].astype(np.float64), np.arange(1, _BINS) / _BINS))
    counts = [np.bincount(np.searchsorted(edges, n, side="right"), minlength=len(edges) + 1) for n in numbers]
    return drift_of_counts(feature.name, feature.kind, *counts)


def _category_drift(feature: CategoricalFeature, before: NDArray[np.int64], now: NDArray[np.int64]) -> FeatureDrift:
    """Compare the shares of unknown values, of each frequent id and of all others.

    Tomorrow is another weekday, day and month, so of these only the share of missing times is compared.
    """
    # Unlisted values may have ids by hashing.
    before, now = (np.where(ids <= feature.unlisted_buckets, 0, ids) for ids in (before, now))
    counts = np.bincount(before)
    is_calendar = any(isinstance(t, TimePart) and t.part != "hour" for t in feature.transforms)
    frequent = np.argsort(-counts[1:], kind="stable")[: 0 if is_calendar else _FREQUENT] + 1
    cells = np.full(int(max(before.max(initial=0), now.max(initial=0))) + 1, len(frequent) + 1)
    cells[0] = 0
    cells[frequent] = np.arange(1, len(frequent) + 1)
    drift = drift_of_counts(
        feature.name, feature.kind, *(np.bincount(cells[ids], minlength=len(frequent) + 2) for ids in (before, now))
    )
    if feature.vocabulary is None:
        return drift
    shares = [float((ids == 0).mean()) if len(ids) else 0.0 for ids in (now, before)]
    return replace(drift, unknown_share=shares[0], unknown_share_before=shares[1])


def _flat(column: pa.Array) -> NDArray[Any]:
    """Return the values of a column, of lists one after the other, without weights."""
    elements = column.flatten() if pa.types.is_nested(column.type) else column
    return ids_of(elements).to_numpy(zero_copy_only=False)


def drift_of_counts(name: str, kind: str, before: NDArray[Any], now: NDArray[Any]) -> FeatureDrift:
    """Return how (n,) counts in the same cells differ."""
    if not before.sum() or not now.sum():
        # Lists that are all empty have no ids.
        filled = [np.array([not counts.sum(), counts.sum() > 0], np.float64) for counts in (before, now)]
        return FeatureDrift(name, kind, stability_index(*filled), LIMIT)
    used = (before > 0) | (now > 0)
    # The index of two samples of one distribution is about chi-squared by the harmonic mean of their sizes.
    chance = (int(used.sum()) - 1) * (1 / before.sum() + 1 / now.sum())
    index = stability_index(before[used].astype(np.float64), now[used].astype(np.float64))
    return FeatureDrift(name, kind, index, LIMIT + float(chance))
