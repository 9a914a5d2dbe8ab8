"""Embedding tables: what a model states about them, which whoever shards, saves, exports or reads them walks; the
collection of them, and their pooled outputs in the model's order."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
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
    sequences: tuple[tuple[str, int], ...] = ()
    """Those of the features whose ids are not pooled (`PooledFeature.length`), with the most ids of a row."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the ids that are summed in the table: features, and positions in sequences."""
        lengths = dict(self.sequences)
        return tuple(key for name in self.features for key in _keys(name, lengths.get(name, 0)))

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
    """A feature whose ids are looked up in a table: `width` columns of a model's pooled embeddings."""

    feature: str
    table: EmbeddingTable
    pooling: Literal["sum", "mean", "sequence"] = "sum"
    """How the embeddings of a row's ids, times their weights, become one; without ids, or weights above 0, it is 0.
    Those of a `sequence` stay side by side, the last id's first, in `length` places that are 0 beyond the row's ids;
    then the number of ids."""
    length: int = 0
    """The most ids of a row of a `sequence`."""

    @property
    def width(self) -> int:
        """Return the number of its columns."""
        return self.length * self.table.dim + 1 if self.pooling == "sequence" else self.table.dim

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of the ids whose sums stand in its columns."""
        return _keys(self.feature, self.length)


def pooled_features(
    schema: Schema, values: TableValues, sequences: Mapping[str, int] | None = None
) -> tuple[PooledFeature, ...]:
    """Return every categorical feature in the schema's order, with its table or the one that it shares.

    A table is named as the feature that it belongs to, of (cardinality, embedding_dim). Every embedding_dim must be
    resolved. `sequences`: the lists that are not pooled, and their most ids. Raises UserError where the schema has no
    categorical feature.
    """
    lengths = sequences or {}
    if not schema.categorical:
        raise UserError("schema.features: no categorical feature; this model needs at least one embedding table")
    readers: dict[str, list[str]] = {}
    for feature in schema.categorical:
        readers.setdefault(feature.table or feature.name, []).append(feature.name)
    pooled = []
    for feature in schema.categorical:
        assert feature.embedding_dim is not None, f"embedding_dim of '{feature.name}' is not resolved"
        name = feature.table or feature.name
        table = EmbeddingTable(
            name,
            features=tuple(readers[name]),
            rows=feature.cardinality,
            dim=feature.embedding_dim,
            values=values,
            sequences=tuple((reader, lengths[reader]) for reader in readers[name] if reader in lengths),
        )
        if feature.name in lengths:
            pooled.append(PooledFeature(feature.name, table, "sequence", lengths[feature.name]))
            continue
        # A one-hot feature is a bag of one id, so that pooling changes nothing.
        pooling = feature.pooling if isinstance(feature, MultiHotFeature) else "sum"
        pooled.append(PooledFeature(feature.name, table, pooling))
    return tuple(pooled)


def distinct_tables(pooled: Sequence[PooledFeature]) -> tuple[EmbeddingTable, ...]:
    """Return the tables of features, each once, in the order of the first that reads it."""
    return tuple(dict.fromkeys(output.table for output in pooled))


def can_name_module(name: str) -> bool:
    """Return whether torch takes a name for a module."""
    # It forbids dots and the names of nn.ModuleDict's own attributes.
    return bool(name) and "." not in name and not hasattr(nn.ModuleDict(), name)


def require_names(tables: Sequence[EmbeddingTable]) -> None:
    """Raise UserError where torch cannot give a table's name to a module, or two tables have one name."""
    names = [table.name for table in tables]
    for name in names:
        if not can_name_module(name):
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
            feature_names=list(table.keys),
            pooling=PoolingType.SUM,
        )
        for table in tables
    ]
    return EmbeddingBagCollection(configs, is_weighted=is_weighted, device=device)


class TableIds:
    """The ids of a batch by the keys that tables take: those of features, and of each position in a sequence.

    TorchRec cannot share a table between a collection that pools and one that does not. A position is a bag of at most
    one id, so that a sequence shares the table of the row's own feature in one collection that pools.
    """

    def __init__(self, schema: Schema, tables: Sequence[EmbeddingTable]) -> None:
        pooled = {key for table in tables for key in table.keys}
        read = {name for table in tables for name in table.features}
        lengths = {name: length for table in tables for name, length in table.sequences}
        self._features = [
            (feature.name, lengths.get(feature.name, 0), feature.name in pooled or feature.name not in lengths)
            for feature in schema.categorical
            if feature.name in read
        ]
        """Each feature that a table reads, its positions, and whether its ids are pooled, perhaps as well."""
        self._has_sequences = bool(lengths)
        self.keys = [
            key
            for name, length, is_pooled in self._features
            for key in (*(_keys(name, length) if length else ()), *((name,) if is_pooled else ()))
        ]
        """The keys of what is returned, in its order."""

    def __call__(self, sparse: "KeyedJaggedTensor") -> "KeyedJaggedTensor":
        """Return the ids by these keys; `sparse`: those by feature."""
        if not self._has_sequences:
            return sparse
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        columns = [sparse.values()] if sparse.weights_or_none() is None else [sparse.values(), sparse.weights()]
        starts, rows = sparse.offset_per_key(), sparse.stride()
        lengths_of = sparse.lengths().view(-1, rows)
        pieces: list[list[Tensor]] = [[] for _ in columns]
        lengths: list[Tensor] = []
        ids_per_key: list[int] = []
        for number, (_, length, is_pooled) in enumerate(self._features):
            own = slice(starts[number], starts[number + 1])
            if length:
                is_there, order = _by_position(lengths_of[number], own.stop - own.start, length)
                for piece, column in zip(pieces, columns, strict=True):
                    piece.append(torch.empty_like(column[own]).index_copy_(0, order, column[own]))
                lengths.append(is_there.to(lengths_of.dtype))
                ids_per_key += is_there.sum(1).tolist()
            if is_pooled:
                for piece, column in zip(pieces, columns, strict=True):
                    piece.append(column[own])
                lengths.append(lengths_of[number : number + 1])
                ids_per_key.append(own.stop - own.start)
        values, *weights = (torch.cat(piece) for piece in pieces)
        return KeyedJaggedTensor(
            self.keys,
            values,
            weights=weights[0] if weights else None,
            lengths=torch.cat(lengths).view(-1),
            stride=rows,
            length_per_key=ids_per_key,
            offset_per_key=list(accumulate(ids_per_key, initial=0)),
        )


def _by_position(lengths: Tensor, total: int, most: int) -> tuple[Tensor, Tensor]:
    """Return (most, B) whether a row has a position, counted from its last id, and (total,) the place of each of the
    ids when they are in the order of position, then row; `lengths` (B,) sum to `total`.
    """
    rows = len(lengths)
    is_there = torch.arange(most, device=lengths.device).unsqueeze(1) < lengths
    row = torch.arange(rows, device=lengths.device).repeat_interleave(lengths, output_size=total)
    position = lengths.cumsum(0).index_select(0, row) - 1 - torch.arange(total, device=lengths.device)
    return is_there, (is_there.view(-1).cumsum(0) - 1).index_select(0, position * rows + row)


def _keys(feature: str, length: int) -> tuple[str, ...]:
    return tuple(f"{feature}#{position}" for position in range(length)) if length else (feature,)


class PooledOutputs:
    """Pooled embeddings of features side by side, in the order given.

    A sharded collection returns its outputs in an order that depends on the sharding plan, so they are taken by key.
    """

    def __init__(self, pooled: Sequence[PooledFeature]) -> None:
        self._pooled = tuple(pooled)
        self._width = sum(output.width for output in pooled)
        tables = Counter(key for output in pooled for key in output.keys)
        # TorchRec's keys: one that has several tables is named with each of them.
        self._keys = [[f"{key}@{o.table.name}" if tables[key] > 1 else key for key in o.keys] for o in pooled]
        self._order: list[str] = []
        """The keys of the last sums, in their order; what follows holds for it."""
        self._runs: list[_ColumnRun] = []
        self._starts: list[tuple[int, int]] = []
        """The first column of each output in the sums, and in what is returned."""

    def __call__(self, sums: "KeyedTensor", sparse: "KeyedJaggedTensor") -> Tensor:
        """Return (B, sum of widths) from a collection's outputs, in their dtype; `sparse`: the ids by feature."""
        if self._order != sums.keys():
            self._follow(sums)
        # In bfloat16, in which GPUs alone train, numbers above 256 are rounded, as all else is.
        numbers = [
            (target + output.width - 1, sparse[output.feature].lengths())
            for (_, target), output in zip(self._starts, self._pooled, strict=True)
            if output.pooling == "sequence"
        ]
        means = [
            (*starts, output.table.dim, _divisors(sparse[output.feature]).unsqueeze(1))
            for starts, output in zip(self._starts, self._pooled, strict=True)
            if output.pooling == "mean"
        ]
        if not means and not numbers and len(self._runs) == 1 and self._runs[0].dim == self._runs[0].columns:
            return sums.values()
        return cast(Tensor, _TakenColumns.apply(sums.values(), self._width, self._runs, means, numbers))

    def _follow(self, sums: "KeyedTensor") -> None:
        self._order, self._runs, self._starts = list(sums.keys()), [], []
        starts = dict(zip(self._order, sums.offset_per_key(), strict=False))
        end = 0
        for keys, output in zip(self._keys, self._pooled, strict=True):
            dim, columns = output.table.dim, output.table.columns
            self._starts.append((starts[keys[0]], end))
            for place, key in enumerate(keys):
                target = end + place * dim
                run = (
                    _ColumnRun(starts[key], target, dim, 1, 1)
                    if dim == columns
                    else _ColumnRun(starts[key], target, 1, dim, columns)
                )
                if self._runs and (longer := self._runs[-1].followed_by(run)) is not None:
                    self._runs[-1] = longer
                else:
                    self._runs.append(run)
            end += output.width


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

    `means`: (first column in the sums, first column in the result, columns, divisors (B, 1)) of each. `numbers`:
    (column in the result, values (B,)) of the other columns of the `width` of the result.
    """

    @staticmethod
    def forward(
        ctx: Any,
        sums: Tensor,
        width: int,
        runs: list[_ColumnRun],
        means: list[tuple[int, int, int, Tensor]],
        numbers: list[tuple[int, Tensor]],
    ) -> Tensor:
        ctx.runs, ctx.means, ctx.width = runs, means, sums.shape[1]
        pooled = sums.new_empty(sums.shape[0], width)
        for run in runs:
            run.of_pooled(pooled).copy_(run.of_sums(sums)[:, :, : run.dim])
        for _, start, dim, divisors in means:
            pooled[:, start : start + dim].div_(divisors)
        for column, values in numbers:
            pooled[:, column] = values
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        grad_sums = grad.new_empty(grad.shape[0], ctx.width)
        for run in ctx.runs:
            of_sums = run.of_sums(grad_sums)
            of_sums[:, :, : run.dim].copy_(run.of_pooled(grad))
            of_sums[:, :, run.dim :].zero_()  # the padding of tables stays 0
        for start, _, dim, divisors in ctx.means:
            grad_sums[:, start : start + dim].div_(divisors)
        return grad_sums, None, None, None, None


def _divisors(ids: "JaggedTensor") -> Tensor:
    """Return (B,) divisors that make means of sums: the number of a row's ids, or the sum of their weights; never 0."""
    weights = ids.weights_or_none()
    if weights is None:
        return ids.lengths().clamp(min=1)
    sums = torch.segment_reduce(weights, "sum", lengths=ids.lengths(), unsafe=True)
    return torch.where(sums > 0, sums, 1.0)
