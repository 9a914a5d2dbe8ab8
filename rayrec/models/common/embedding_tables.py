"""Embedding tables: what a model states about them, which whoever shards, saves, exports or reads them walks; the
collection of them, and their pooled outputs in the model's order."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rayrec.common.errors import UserError
from rayrec.config.optimizers import MAIN_PART
from rayrec.features.schema import MultiHotFeature, Schema

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

COLUMN_GRAIN = 4
"""FBGEMM's kernels take tables whose number of columns is a multiple of this, on any device."""


class TableValues(Protocol):
    """The distribution of a table's values before training, independent of row and column."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        """Draw every value of `block`, a part of a table of `rows` rows, in place on the CPU."""

    def quantiles(self, shares: Tensor, *, rows: int) -> Tensor:
        """Return the values below which `shares` of the distribution lie: its inverse CDF.

        `shares` are of any shape, float64, between 0 and 1, neither of which they are; so is the result.
        """


@dataclass(frozen=True)
class UniformByRows:
    """U(-1/sqrt(rows), 1/sqrt(rows)), as NVIDIA published it for DLRM and DCNv2."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        bound = 1.0 / math.sqrt(rows)
        block.uniform_(-bound, bound, generator=generator)

    def quantiles(self, shares: Tensor, *, rows: int) -> Tensor:
        return (2 * shares - 1) / math.sqrt(rows)


@dataclass(frozen=True)
class Normal:
    """N(0, std^2)."""

    std: float

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        block.normal_(0.0, self.std, generator=generator)

    def quantiles(self, shares: Tensor, *, rows: int) -> Tensor:
        return (2 * shares - 1).erfinv_() * (math.sqrt(2) * self.std)


@dataclass(frozen=True)
class TruncatedNormal:
    """N(0, std^2), drawn again beyond two `std`."""

    std: float

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        bound = 2 * self.std
        nn.init.trunc_normal_(block, 0.0, self.std, -bound, bound, generator=generator)

    def quantiles(self, shares: Tensor, *, rows: int) -> Tensor:
        within = math.erf(2 / math.sqrt(2))  # the share of a normal distribution that is within two deviations
        return (within * (2 * shares - 1)).erfinv_() * (math.sqrt(2) * self.std)


@dataclass(frozen=True)
class Zeros:
    """All 0."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        block.zero_()

    def quantiles(self, shares: Tensor, *, rows: int) -> Tensor:
        return torch.zeros_like(shares)


@dataclass(frozen=True)
class EmbeddingTable:
    """A table of (rows, columns) float32, of which a model reads the first `dim` columns; the others are 0."""

    name: str
    """The name of its parameter and of its file, also in `train.sharding.tables` and in a sharding plan."""
    features: tuple[str, ...]
    """The categorical features whose ids select rows of the table; a feature may have several tables."""
    rows: int
    dim: int
    values: TableValues
    """Initial values."""
    part: str = MAIN_PART
    """The part of the model that the table belongs to (`RankingModel.parts`)."""

    @property
    def columns(self) -> int:
        """`dim` rounded up to a multiple of `COLUMN_GRAIN`."""
        return -(-self.dim // COLUMN_GRAIN) * COLUMN_GRAIN

    @property
    def shape(self) -> tuple[int, int]:
        """Return (rows, columns)."""
        return self.rows, self.columns


@dataclass(frozen=True)
class PooledFeature:
    """A feature whose ids are looked up in a table: `table.dim` columns of a model's pooled embeddings."""

    feature: str
    table: EmbeddingTable
    pooling: Literal["sum", "mean"] = "sum"
    """How the embeddings of a row's ids, times their weights, become one; without ids, or weights above 0, it is 0."""


def pooled_features(schema: Schema, values: TableValues) -> tuple[PooledFeature, ...]:
    """Return every categorical feature in the schema's order, with its table or the one that it shares.

    A table is named as the feature that it belongs to, of (cardinality, embedding_dim). Every embedding_dim must be
    resolved. Raises UserError where the schema has no categorical feature.
    """
    if not schema.categorical:
        raise UserError("schema.features: no categorical feature; this model needs at least one embedding table")
    readers: dict[str, list[str]] = {}
    for feature in schema.categorical:
        readers.setdefault(feature.table or feature.name, []).append(feature.name)
    pooled = []
    for feature in schema.categorical:
        assert feature.embedding_dim is not None, f"embedding_dim of '{feature.name}' is not resolved"
        name = feature.table or feature.name
        table = EmbeddingTable(name, tuple(readers[name]), feature.cardinality, feature.embedding_dim, values)
        # A one-hot feature is a bag of one id, so that pooling changes nothing.
        pooling = feature.pooling if isinstance(feature, MultiHotFeature) else "sum"
        pooled.append(PooledFeature(feature.name, table, pooling))
    return tuple(pooled)


def distinct_tables(pooled: Sequence[PooledFeature]) -> tuple[EmbeddingTable, ...]:
    """Return the tables of features, each once, in the order of the first that reads it."""
    return tuple(dict.fromkeys(output.table for output in pooled))


def require_names(tables: Sequence[EmbeddingTable]) -> None:
    """Raise UserError where torch cannot give a table's name to a module, or two tables have one name."""
    names = [table.name for table in tables]
    for name in names:
        # Tables become sub-modules by name: torch forbids dots and the names of nn.ModuleDict's own attributes.
        if not name or "." in name or hasattr(nn.ModuleDict(), name):
            raise UserError(f"schema.features: '{name}' cannot name an embedding table; rename the feature")
        if names.count(name) > 1:
            raise UserError(f"schema.features: two embedding tables would be named '{name}'; rename the feature")


def build_embeddings(
    tables: Sequence[EmbeddingTable], device: torch.device, *, is_weighted: bool = False
) -> "EmbeddingBagCollection":
    """Return the tables as one collection, which sums the embeddings of a row's ids; `PooledOutputs` makes means of
    sums.

    `is_weighted`: whether ids come with weights, which multiply their embeddings.

    TorchRec's own mean is not used: in a sharded collection a row-wise table with mean pooling makes it divide the
    outputs of multi-hot features of other tables, too, and all outputs by 1 + 1e-6.
    """
    from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.rows,
            embedding_dim=table.columns,
            feature_names=list(table.features),
            pooling=PoolingType.SUM,
        )
        for table in tables
    ]
    return EmbeddingBagCollection(configs, is_weighted=is_weighted, device=device)


class PooledOutputs:
    """Pooled embeddings of features side by side, in the order given.

    A sharded collection returns its outputs in an order that depends on the sharding plan, so they are taken by key.
    """

    def __init__(self, pooled: Sequence[PooledFeature]) -> None:
        self._pooled = tuple(pooled)
        tables = Counter(output.feature for output in pooled)
        # TorchRec's keys: a feature that has several tables is named with each of them.
        self._keys = [f"{o.feature}@{o.table.name}" if tables[o.feature] > 1 else o.feature for o in pooled]
        self._order: list[str] = []
        """The keys of the last sums, in their order; what follows holds for it."""
        self._runs: list[_ColumnRun] = []
        self._starts: list[tuple[int, int]] = []
        """The first column of each output in the sums, and in what is returned."""

    def __call__(self, sums: "KeyedTensor", sparse: "KeyedJaggedTensor") -> Tensor:
        """Return (B, sum of dims) from a collection's outputs for the ids `sparse`, in the outputs' dtype."""
        if self._order != sums.keys():
            self._follow(sums)
        means = [
            (*starts, output.table.dim, _divisors(sparse[output.feature]).unsqueeze(1))
            for starts, output in zip(self._starts, self._pooled, strict=True)
            if output.pooling == "mean"
        ]
        if not means and len(self._runs) == 1 and self._runs[0].dim == self._runs[0].columns:
            return sums.values()
        return cast(Tensor, _TakenColumns.apply(sums.values(), self._runs, means))

    def _follow(self, sums: "KeyedTensor") -> None:
        self._order, self._runs, self._starts = list(sums.keys()), [], []
        starts = dict(zip(self._order, sums.offset_per_key(), strict=False))
        end = 0
        for key, output in zip(self._keys, self._pooled, strict=True):
            dim, columns = output.table.dim, output.table.columns
            run = (
                _ColumnRun(starts[key], end, dim, 1, 1)
                if dim == columns
                else _ColumnRun(starts[key], end, 1, dim, columns)
            )
            self._starts.append((starts[key], end))
            end += dim
            if self._runs and (longer := self._runs[-1].followed_by(run)) is not None:
                self._runs[-1] = longer
            else:
                self._runs.append(run)


@dataclass(frozen=True)
class _ColumnRun:
    """Outputs side by side, in a collection's sums and in the pooled columns: the first `dim` of `columns` of each.

    Of whole tables every column counts as an output, so that their widths may differ.
    """

    start: int
    """The first column in the sums."""
    target: int
    """The first column in what is returned."""
    outputs: int
    dim: int
    columns: int

    def followed_by(self, other: "_ColumnRun") -> "_ColumnRun | None":
        """Return both as one, or None where they are not side by side, or not of one width."""
        follows = other == _ColumnRun(
            self.start + self.outputs * self.columns,
            self.target + self.outputs * self.dim,
            other.outputs,
            self.dim,
            self.columns,
        )
        return replace(self, outputs=self.outputs + other.outputs) if follows else None

    def of_sums(self, sums: Tensor) -> Tensor:
        """Return a view of (B, outputs, columns)."""
        width = self.outputs * self.columns
        return sums[:, self.start : self.start + width].unflatten(1, (self.outputs, self.columns))

    def of_pooled(self, pooled: Tensor) -> Tensor:
        """Return a view of (B, outputs, dim)."""
        width = self.outputs * self.dim
        return pooled[:, self.target : self.target + width].unflatten(1, (self.outputs, self.dim))


class _TakenColumns(torch.autograd.Function):
    """The runs of a collection's sums, with the means of what is in `means`: one copy a run in either direction.

    `means`: (first column in the sums, first column in the result, columns, divisors (B, 1)) of each.
    """

    @staticmethod
    def forward(ctx: Any, sums: Tensor, runs: list[_ColumnRun], means: list[tuple[int, int, int, Tensor]]) -> Tensor:
        ctx.runs, ctx.means, ctx.width = runs, means, sums.shape[1]
        pooled = sums.new_empty(sums.shape[0], sum(run.outputs * run.dim for run in runs))
        for run in runs:
            run.of_pooled(pooled).copy_(run.of_sums(sums)[:, :, : run.dim])
        for _, start, dim, divisors in means:
            pooled[:, start : start + dim].div_(divisors)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad_sums = grad.new_empty(grad.shape[0], ctx.width)
        for run in ctx.runs:
            of_sums = run.of_sums(grad_sums)
            of_sums[:, :, : run.dim].copy_(run.of_pooled(grad))
            of_sums[:, :, run.dim :].zero_()  # the padding of tables stays 0
        for start, _, dim, divisors in ctx.means:
            grad_sums[:, start : start + dim].div_(divisors)
        return grad_sums, None, None


def _divisors(ids: "JaggedTensor") -> Tensor:
    """Return (B,) divisors that make means of sums: the number of a row's ids, or the sum of their weights; never 0."""
    weights = ids.weights_or_none()
    if weights is None:
        return ids.lengths().clamp(min=1)
    sums = torch.segment_reduce(weights, "sum", lengths=ids.lengths(), unsafe=True)
    return torch.where(sums > 0, sums, 1.0)
