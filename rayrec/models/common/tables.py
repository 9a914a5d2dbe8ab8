"""What a model states of its embedding tables; whoever shards, saves, exports or reads them walks these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from rayrec.common.errors import UserError
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema
from rayrec.models.common.table_values import TableValues

COLUMN_GRAIN = 4
"""FBGEMM's kernels take tables whose number of columns is a multiple of this, on any device."""

Part = Literal["deep", "wide"]
"""Which optimizer trains it: every part of a model is `deep` but the wide one of Wide & Deep."""


@dataclass(frozen=True)
class EmbeddingTable:
    """A table of (rows, columns) float32, of which a model reads the first `dim` columns; the others are 0."""

    name: str
    """Of its parameter, of its file in a model folder, in `train.sharding.tables` and in a plan."""
    feature: str
    """The categorical feature whose ids it is looked up by; a feature may have several tables."""
    rows: int
    dim: int
    values: TableValues
    """Initial values."""
    pooling: Literal["sum", "mean"] = "sum"
    """Of a row's ids; without ids the result is 0."""
    part: Part = "deep"

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
    """One-hot features are bags of one id, so their pooling changes nothing."""
    return feature.pooling if isinstance(feature, MultiHotFeature) else "sum"
