"""Rows of a split that a model is explained on: columns changed, measured whole and in blocks."""

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
from rayrec.config.evaluate import MAIN_METRICS, EvaluateConfig
from rayrec.features.schema import CategoricalFeature, Feature, Schema
from rayrec.features.transforms import encode_cross
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.packed_rows import SplitColumns
from rayrec.metrics.binary import BinaryMetrics
from rayrec.metrics.ranking import RankingMetrics
from rayrec.models.common.batch import group_numbers
from rayrec.random.arrays import HashPermutation

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
