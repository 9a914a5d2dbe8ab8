"""What a model states about its embedding tables; whoever shards, saves, exports or reads them walks these."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from rayrec.common.errors import UserError
from rayrec.config.train import MAIN_PART
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema

COLUMN_GRAIN = 4
"""FBGEMM's kernels take tables whose number of columns is a multiple of this, on any device."""


class TableValues(Protocol):
    """The distribution of a table's values before training, independent of row and column."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        """Draw every value of `block`, a part of a table of `rows` rows, in place on the CPU."""


@dataclass(frozen=True)
class UniformByRows:
    """U(-1/sqrt(rows), 1/sqrt(rows)), as NVIDIA published it for DLRM and DCNv2."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        bound = 1.0 / math.sqrt(rows)
        block.uniform_(-bound, bound, generator=generator)


@dataclass(frozen=True)
class Normal:
    """N(0, std^2)."""

    std: float

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        block.normal_(0.0, self.std, generator=generator)


@dataclass(frozen=True)
class TruncatedNormal:
    """N(0, std^2), drawn again beyond two `std`."""

    std: float

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        bound = 2 * self.std
        nn.init.trunc_normal_(block, 0.0, self.std, -bound, bound, generator=generator)


@dataclass(frozen=True)
class Zeros:
    """All 0."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        block.zero_()


@dataclass(frozen=True)
class EmbeddingTable:
    """A table of (rows, columns) float32, of which a model reads the first `dim` columns; the others are 0."""

    name: str
    """The name of its parameter and of its file, also in `train.sharding.tables` and in a sharding plan."""
    feature: str
    """The categorical feature whose ids select rows of the table; a feature may have several tables."""
    rows: int
    dim: int
    values: TableValues
    """Initial values."""
    pooling: Literal["sum", "mean"] = "sum"
    """How the embeddings of a row's ids become one; without ids the result is 0."""
    part: str = MAIN_PART
    """The part of the model that the table belongs to (`RankingModel.parts`)."""

    @property
    def columns(self) -> int:
        """`dim` rounded up to a multiple of `COLUMN_GRAIN`."""
        return -(-self.dim // COLUMN_GRAIN) * COLUMN_GRAIN

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns


def feature_tables(schema: Schema, values: TableValues) -> tuple[EmbeddingTable, ...]:
    """One table for each categorical feature, named as the feature, of (cardinality, embedding_dim), in their order.

    Every embedding_dim must be resolved. Raises UserError where the schema has no categorical feature.
    """
    if not schema.categorical:
        raise UserError("schema.features: no categorical feature; this model needs at least one embedding table")
    tables = []
    for feature in schema.categorical:
        assert feature.embedding_dim is not None, f"embedding_dim of '{feature.name}' is not resolved"
        tables.append(
            EmbeddingTable(
                name=feature.name,
                feature=feature.name,
                rows=feature.cardinality,
                dim=feature.embedding_dim,
                values=values,
                pooling=_pooling(feature),
            )
        )
    return tuple(tables)


def require_usable(tables: Sequence[EmbeddingTable]) -> None:
    """Raise UserError where torch cannot give a table's name to a module, or two tables have one name."""
    names = [table.name for table in tables]
    for table in tables:
        # Tables become sub-modules by name: torch forbids dots and the names of nn.ModuleDict's own attributes.
        if not table.name or "." in table.name or hasattr(nn.ModuleDict(), table.name):
            raise UserError(f"schema.features: '{table.name}' cannot name an embedding table; rename the feature")
        if names.count(table.name) > 1:
            raise UserError(f"schema.features: two embedding tables would be named '{table.name}'; rename the feature")


def _pooling(feature: CategoricalFeature) -> Literal["sum", "mean"]:
    # A one-hot feature is a bag of one id, so that pooling changes nothing.
    return feature.pooling if isinstance(feature, MultiHotFeature) else "sum"
