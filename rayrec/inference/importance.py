"""How much a model's features matter over a split: permutation importance, and partial dependence.

Both change columns of encoded rows and score them again, so they hold for every model.

- Permutation importance: how much worse a metric becomes when a feature's values are dealt to other rows. Breiman 2001,
  "Random forests", section 10, for any model: Fisher, Rudin and Dominici 2019, "All models are wrong, but many are
  useful", JMLR 20(177). The permuted feature keeps its distribution and loses what it says of the label; what another
  feature says as well, the model may still know. Features that say the same are permuted together, as a group.
- Partial dependence: the mean score of rows that all have one value of a feature, by that value. Friedman 2001, "Greedy
  function approximation: a gradient boosting machine", section 8.2.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.config import ModelConfig
from rayrec.config.evaluate import MAIN_METRICS, EvaluateConfig, higher_is_better
from rayrec.config.sequences import ReadsSequences
from rayrec.config.transforms import Elapsed
from rayrec.features.id_meanings import ValueNames
from rayrec.features.schema import CategoricalFeature, Feature, MultiHotFeature, NumericFeature, Schema
from rayrec.features.transforms import encode_cross, encode_numeric, ids_of, untransformed, with_weights
from rayrec.inference.batch.pool import in_threads
from rayrec.inference.predictor import Predictor
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.packed_rows import SplitColumns
from rayrec.metrics.binary import BinaryMetrics
from rayrec.metrics.ranking import RankingMetrics
from rayrec.models.common.batch import group_numbers
from rayrec.models.common.sequences import read_histories
from rayrec.random.arrays import HashPermutation

# ---- the rows, measured whole and in blocks


_BLOCKS = 20
_T_QUANTILE = 2.093
"""Quantile of Student's distribution with `_BLOCKS` - 1 degrees of freedom: 95 % of it lie between -2.093 and 2.093."""


@dataclass(frozen=True)
class BlockEstimate:
    """A number that rows and permutations are a sample for, and its 95 % interval."""

    value: float
    lower: float | None
    """None where there are too few rows for an interval."""
    upper: float | None


def estimate(value: float, blocks: NDArray[np.float64]) -> BlockEstimate:
    """Return the estimate of a number whose value on all rows is given, and on each of their blocks (`_BLOCKS` or
    none).

    The random group method (Wolter 2007, "Introduction to variance estimation", chapter 2): blocks are samples as the
    whole is one, so the spread of their values tells how far the whole may be off. It holds for any metric, for rows
    that resemble their neighbours, and includes the chance of permutations.
    """
    if len(blocks) == 0 or not np.isfinite(blocks).all():
        return BlockEstimate(value, None, None)
    half = float(_T_QUANTILE * blocks.std(ddof=1) / np.sqrt(len(blocks)))
    return BlockEstimate(value, value - half, value + half)


@dataclass(frozen=True)
class LabelledRows:
    """n encoded rows of a split, with all that metrics need."""

    features: pa.RecordBatch
    """The features alone, in the schema's order."""
    labels: Tensor
    """(n,) float32."""
    weights: Tensor
    """(n,) float32; 1 without a column of weights."""
    groups: Tensor | None
    """(n,) int64 group ids if every group of the rows is whole."""
    items: Tensor | None
    """(n,) ids of the items of a dataset of interactions, whose lists may repeat one."""

    @classmethod
    def read(cls, dataset: Dataset, split: str, most: int) -> "LabelledRows":
        """Return about `most` rows of a split with known labels, in row groups from all over it.

        Raises UserError if there is no such split, or its rows have one label.
        """
        schema, info = dataset.schema, dataset.labelled_split(split)
        with SplitColumns(dataset, split, most) as columns:
            features = {feature.name: columns.read(feature.name) for feature in schema.features}
            others = {name: columns.read(name) for name in schema.other_columns}
        labels = _tensor(others[schema.label], np.float32)
        weights = _tensor(others[schema.weight], np.float32) if schema.weight else torch.ones(len(labels))
        if not _are_both(labels, weights):
            raise UserError(
                f"{dataset.folder}: all {len(labels):,} rows taken from split '{split}' have the same label; take more"
            )
        are_whole = len(labels) == info.rows or info.longest_group is not None
        return cls(
            features=pa.RecordBatch.from_pydict(features),
            labels=labels,
            weights=weights,
            groups=_tensor(others[schema.group], np.int64) if schema.group and are_whole else None,
            items=_tensor(features[schema.interactions.item], np.int64) if schema.interactions else None,
        )

    def __len__(self) -> int:
        return len(self.labels)

    def drawn(self, most: int) -> "LabelledRows":
        """Return at most `most` of the rows, in their order, drawn at random but always the same."""
        if most >= len(self):
            return self
        chosen = np.sort(HashPermutation(len(self), seed=0)(np.arange(most)))
        labels, weights, groups, items = (
            column[torch.from_numpy(chosen)] if column is not None else None
            for column in (self.labels, self.weights, self.groups, self.items)
        )
        assert labels is not None and weights is not None
        return LabelledRows(self.features.take(pa.array(chosen)), labels, weights, groups, items)

    @cached_property
    def blocks(self) -> Sequence[slice]:
        """Blocks of rows that follow each other, of as many groups each; none where there are too few."""
        starts = np.arange(len(self))
        if self.groups is not None:
            starts = np.flatnonzero(np.diff(group_numbers(self.groups).numpy(), prepend=-1))
        if len(starts) < _BLOCKS:
            return ()
        cuts = [*starts[np.arange(_BLOCKS) * len(starts) // _BLOCKS].tolist(), len(self)]
        return [slice(first, end) for first, end in pairwise(cuts)]

    def mean(self, values: NDArray[np.float32]) -> BlockEstimate:
        """Return the mean of (n,) values over the rows, by their weights."""
        weights = self.weights.double().numpy()
        with np.errstate(invalid="ignore"):
            whole, *blocks = (
                values[part] @ weights[part] / weights[part].sum() for part in (slice(None), *self.blocks)
            )
        return estimate(float(whole), np.array(blocks))


class MetricsOfBlocks:
    """Exact metrics of scores of some rows: AUC, log loss, and the ranking metrics of a recipe that ranks groups."""

    def __init__(self, rows: LabelledRows, config: EvaluateConfig) -> None:
        ranking = config.ranking if rows.groups is not None else None
        self._ranking = ranking if ranking is not None and ranking.candidates == "given" else None
        self._rows, self._config = rows, config
        self.names: tuple[str, ...] = (*MAIN_METRICS, *(self._ranking.names if self._ranking is not None else ()))
        have_both = all(_are_both(rows.labels[block], rows.weights[block]) for block in rows.blocks)
        self._parts = [slice(0, len(rows)), *(rows.blocks if have_both else ())]

    def __call__(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return (1 + blocks, metrics) of (n,) logits: of all rows, then of each block, if there are any."""
        return np.array([self._metrics(torch.from_numpy(logits[part]), part) for part in self._parts])

    def _metrics(self, logits: Tensor, part: slice) -> list[float]:
        rows = self._rows
        binary = BinaryMetrics.from_config(self._config)
        binary.update(logits, rows.labels[part], rows.weights[part])
        found = binary.compute()
        if self._ranking is not None:
            assert rows.groups is not None
            ranking = RankingMetrics(self._ranking)
            items = rows.items[part] if rows.items is not None else None
            ranking.update(logits, rows.labels[part], rows.groups[part], rows.weights[part], items)
            found |= ranking.compute()
        return [value for name in self.names if (value := found[name]) is not None]


def permuted_features(config: ModelConfig, schema: Schema) -> dict[str, tuple[str, ...]]:
    """Return the features of a model by the name of what changes as one: each by itself, but the lists of a history
    that it reads event by event together, as their values belong to each other.
    """
    histories = read_histories(config.sequences, schema) if isinstance(config, ReadsSequences) else ()
    together = {name: history.lists for history in histories for name in history.lists}
    found = (together.get(feature.name, (feature.name,)) for feature in schema.features)
    return {" + ".join(names): names for names in found}


def is_cross(feature: Feature) -> bool:
    """Return whether a feature is made of other features, and follows when one of them changes."""
    return feature.reads is None


def with_columns(schema: Schema, rows: pa.RecordBatch, columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """n encoded rows with some columns replaced, and the crosses of these computed anew.

    `rows` has the features in the schema's order; `columns` has new ones (n,) by feature. A cross that is itself
    replaced stays as it is given.
    """
    changed = dict(columns)
    for feature in schema.features:
        if is_cross(feature) and feature.name not in changed and not changed.keys().isdisjoint(feature.inputs):
            assert isinstance(feature, CategoricalFeature)
            inputs = [changed[name] if name in changed else rows.column(name) for name in feature.inputs]
            changed[feature.name] = pa.array(encode_cross(feature, [column.to_numpy() for column in inputs]))
    names = rows.schema.names
    given = zip(names, rows.columns, strict=True)
    return pa.RecordBatch.from_arrays([changed.get(name, column) for name, column in given], schema=rows.schema)


def _are_both(labels: Tensor, weights: Tensor) -> bool:
    """Return whether rows that count have both labels."""
    return len(labels[weights > 0].unique()) == 2


def _tensor(column: pa.Array, dtype: type[np.generic]) -> Tensor:
    return torch.from_numpy(column.to_numpy().astype(dtype))


# ---- permutation importance


@dataclass(frozen=True)
class Importance:
    """The metrics of some rows, and how much worse each becomes, by what was permuted."""

    metrics: dict[str, float]
    worse_by: dict[str, dict[str, BlockEstimate]]
    """Loss of a metric, by feature or group, then by metric: a mean over permutations."""


def permutation_importance(
    predictor: Predictor,
    rows: LabelledRows,
    permuted: Mapping[str, Sequence[str]],
    permutations: int,
    progress: Progress,
) -> Importance:
    """Return how each metric changes when `permuted`, features by the name of their group, are shuffled together.

    The same names, rows and number of permutations give the same numbers, whatever else is measured.
    """
    measure = MetricsOfBlocks(rows, predictor.recipe.evaluate)
    signs = np.array([1.0 if higher_is_better(name) else -1.0 for name in measure.names])
    # By one thread, too: then what changes nothing changes no bit.
    (before,) = in_threads([rows.features], lambda: lambda features: measure(predictor.logits_encoded(features)))
    progress.stage("importance", len(permuted) * permutations * len(rows))

    def worse_by(task: tuple[str, int]) -> np.ndarray:
        name, number = task
        columns = {feature: rows.features.column(feature) for feature in permuted[name]}
        order = pa.array(HashPermutation(len(rows), zlib.crc32(name.encode()) + (number << 32))(np.arange(len(rows))))
        changed = with_columns(predictor.schema, rows.features, {f: c.take(order) for f, c in columns.items()})
        after = measure(predictor.logits_encoded(changed))
        progress.advance(len(rows))
        return (before - after) * signs

    tasks = [(name, number) for name in permuted for number in range(permutations)]
    # (permuted, permutations, all rows and blocks of them, metrics)
    changes = (
        np.array([*in_threads(tasks, lambda: worse_by)])
        .reshape(len(permuted), permutations, *before.shape)
        .mean(axis=1)
    )
    return Importance(
        metrics=dict(zip(measure.names, before[0].tolist(), strict=True)),
        worse_by={
            name: {
                metric: estimate(float(of_metric[0]), of_metric[1:])
                for metric, of_metric in zip(measure.names, change.T, strict=True)
            }
            for name, change in zip(permuted, changes, strict=True)
        },
    )


# ---- partial dependence


_POINTS = 20
"""Most values that a feature is given, unless they are in an order."""
_MOST_ROWS = 20_000
_MOST_DECIMALS = 9


@dataclass(frozen=True)
class Value:
    """A value of a feature, and how it reads."""

    name: str
    """The raw value, or what the encoded one stands for."""
    encoded: float
    raw: float | None
    """The raw number; None of a category, or where it cannot be told."""
    share: float
    """Share of rows (of a list's elements) that have a category, or that are up to a number."""


@dataclass(frozen=True)
class Point(Value):
    """A value that all rows were given."""

    score: BlockEstimate
    """The mean probability of a positive label."""


@dataclass(frozen=True)
class Dependence:
    """The mean score by the value of one feature."""

    feature: str
    is_number: bool
    mean_score: float
    """Mean score of the rows as they are."""
    points: tuple[Point, ...]
    """Points of a number by ascending value, else of values in their order, or the most frequent first."""


def partial_dependence(
    predictor: Predictor, rows: LabelledRows, features: Sequence[str], progress: Progress
) -> list[Dependence]:
    """Return the dependence on each feature, over quantiles of a number or the most frequent ids: at most 20, of ids in
    an order 32.

    A list is given one id alone. The means are those of 20,000 of the rows; a vector has no values to go through.
    """
    rows = rows.drawn(_MOST_ROWS)
    by_name = {feature.name: feature for feature in predictor.schema.features}
    values = {name: _values(by_name[name], rows.features.column(name), predictor) for name in features}
    tasks = [(by_name[name], value) for name in features for value in values[name]]
    progress.stage("partial dependence", len(tasks) * len(rows))

    def point(task: tuple[Feature, Value]) -> Point:
        feature, value = task
        column = _constant(rows.features.column(feature.name), value.encoded)
        scores = predictor.predict_encoded(with_columns(predictor.schema, rows.features, {feature.name: column}))
        progress.advance(len(rows))
        return Point(**vars(value), score=rows.mean(scores))

    mean = rows.mean(predictor.predict_encoded(rows.features)).value
    found = in_threads(tasks, lambda: point)
    return [
        Dependence(name, isinstance(by_name[name], NumericFeature), mean, tuple(next(found) for _ in values[name]))
        for name in features
    ]


def _values(feature: Feature, column: pa.Array, predictor: Predictor) -> list[Value]:
    match feature:
        case NumericFeature():
            return _numbers(feature, column.to_numpy())
        case CategoricalFeature():
            return _ids(feature, column, predictor)
    raise AssertionError(f"'{feature.name}' is a vector")


def _numbers(feature: NumericFeature, column: NDArray[np.float32]) -> list[Value]:
    encoded = np.unique(column)
    if len(encoded) > _POINTS:
        encoded = np.unique(np.quantile(column, np.linspace(0.0, 1.0, _POINTS), method="nearest"))
    raw, missing = _raw_numbers(feature, encoded)
    up_to = np.searchsorted(np.sort(column), encoded, side="right") / len(column)
    return [
        Value(_number_name(value, number, value == missing), float(value), _or_none(number), float(share))
        for value, number, share in zip(encoded, raw.tolist(), up_to, strict=True)
    ]


def _raw_numbers(feature: NumericFeature, encoded: NDArray[np.float32]) -> tuple[NDArray[np.float64], np.float32]:
    """Return the roundest raw numbers (n,) that become these encoded ones, NaN where none does; and a missing one's."""
    # The time between two moments is a number, too.
    transforms = [transform for transform in feature.transforms if not isinstance(transform, Elapsed)]
    exact = untransformed(encoded.astype(np.float64), transforms)
    raw = np.full(len(encoded), np.nan)
    for decimals in range(_MOST_DECIMALS, -1, -1):
        rounded = np.round(exact, decimals) + 0.0  # no -0
        again = encode_numeric(feature.name, pa.array(rounded), transforms)
        raw = np.where(np.isclose(again, encoded, rtol=1e-6, atol=1e-6), rounded, raw)
    (missing,) = encode_numeric(feature.name, pa.nulls(1, pa.float64()), transforms)
    return raw, missing


def _number_name(encoded: np.float32, raw: float, is_missing: bool) -> str:
    name = f"{raw:.6g}" if np.isfinite(raw) else f"encoded as {encoded:.4g}"
    return f"{name} or missing" if is_missing else name


def _or_none(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _ids(feature: CategoricalFeature, column: pa.Array, predictor: Predictor) -> list[Value]:
    elements = ids_of(column.flatten()) if isinstance(feature, MultiHotFeature) else column
    ids, counts = np.unique(elements.to_numpy(), return_counts=True)
    names = ValueNames(feature, predictor.vocabularies.get(feature.name))
    shown = names.to_show(ids[np.argsort(-counts, kind="stable")], _POINTS)
    shares = counts[np.searchsorted(ids, shown)] / len(elements)
    named = zip(names(shown.tolist()), shown.tolist(), shares.tolist(), strict=True)
    return [Value(name, id_, None, share) for name, id_, share in named]


def _constant(column: pa.Array, encoded: float) -> pa.Array:
    """Return a column like `column` whose rows all have one value; a list has it alone."""
    rows = len(column)
    if not pa.types.is_list(column.type):
        return pa.array(np.full(rows, encoded)).cast(column.type)
    kind = column.type.value_type
    ids = np.full(rows, int(encoded))
    if pa.types.is_struct(kind):
        elements = with_weights(ids.astype(kind.field("id").type.to_pandas_dtype()), np.ones(rows, np.float32))
    else:
        elements = pa.array(ids).cast(kind)
    return pa.ListArray.from_arrays(pa.array(np.arange(rows + 1, dtype=np.int32)), elements)
