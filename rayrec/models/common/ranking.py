"""The contract between a model and the code that trains, evaluates or serves it, and that of weights to begin with."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from rayrec.config.optimizers import MAIN_PART
from rayrec.features.schema import Schema
from rayrec.models.common.batch import Batch
from rayrec.models.common.embedding_tables import (
    EmbeddingTable,
    PooledFeature,
    PooledOutputs,
    TableIds,
    build_embeddings,
    distinct_tables,
    require_names,
)
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from torchrec.modules.embedding_modules import EmbeddingBagCollection


class RankingModel(nn.Module):
    """Embedding tables, and a dense network over their pooled outputs; knows nothing about distribution.

    A trainer may shard `embeddings` and replicate `dense_network`, and call the two itself as `forward` does.
    """

    def __init__(
        self,
        schema: Schema,
        pooled: Sequence[PooledFeature],
        dense_network: nn.Module,
        device: torch.device,
        *,
        parts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self.parts = dict(parts or {})
        """Parts that a recipe can train otherwise than the rest, by name: children of `dense_network` that belong to
        each. Tables say themselves which part they belong to."""
        self.pooled = tuple(pooled)
        """What the columns of `pooled` are, in order."""
        self.tables = distinct_tables(pooled)
        """The embedding tables."""
        assert {table.part for table in self.tables} <= {MAIN_PART, *self.parts}, "a table of a part that is not stated"
        self.schema = schema
        """Every embedding_dim is resolved."""
        require_names(self.tables)
        self._device = device
        self.table_ids = TableIds(schema, self.tables)
        """Makes of a batch's ids what `embeddings` takes."""
        self.outputs = PooledOutputs(pooled)
        self.dense_network = dense_network
        """forward(dense (B, `schema.dense_width`) float32, pooled (B, sum of widths) float32) -> logits (B,) float32.

        Initial values are its modules' (`initialize_dense`).
        """

    @property
    def embeddings(self) -> "EmbeddingBagCollection":
        """Tables, by name; takes what `table_ids` gives, and returns sums, of which `outputs` makes `pooled`.

        A sub-module from its first use on: it takes a second to import TorchRec, which scoring does without.
        """
        if "embeddings" not in self._modules:
            is_weighted = bool(self.schema.weighted)
            self._modules["embeddings"] = build_embeddings(self.tables, self._device, is_weighted=is_weighted)
        return cast("EmbeddingBagCollection", self._modules["embeddings"])

    def forward(self, batch: Batch) -> Tensor:
        """Return the logits (B,) float32."""
        pooled = self.outputs(self.embeddings(self.table_ids(batch.sparse)), batch.sparse)
        return self.dense_network(batch.dense, pooled)

    def part_of_dense(self, parameter: str) -> str:
        """Return the part that a parameter of `dense_network` belongs to, by its name there."""
        child = parameter.partition(".")[0]
        return next((part for part, children in self.parts.items() if child in children), MAIN_PART)


@runtime_checkable
class ScoresPairs(Protocol):
    """A dense network over two one-hot features that scores all pairs of their values faster than one by one."""

    def pair_logits(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the pooled embeddings of M values of the schema's first feature and N of the second -> logits (M, N)
        float32.

        `first` is (M, width of the feature's table) float32 and `second` (N, width of its table). The logits are those
        of `forward`, up to the rounding of sums. Memory beside them does not grow with M and N.
        """


@runtime_checkable
class HasItemVectors(Protocol):
    """A dense network in which items whose vectors have a high cosine are alike."""

    def item_vectors(self, embeddings: Tensor) -> Tensor:
        """Return the vectors of items: (N, width of the item's table) -> (N, D); D is 0 where they have none."""


class Weights(Protocol):
    """The undistributed weights of a model."""

    def table(self, table: EmbeddingTable) -> Tensor:
        """Return the (rows, columns) float32 weights of a table."""

    def dense(self) -> Mapping[str, Tensor]:
        """Return the state dict of `dense_network`."""


class TrainedWeights(Weights, Protocol):
    """The weights of a trained model, as a run folder or a model folder holds them."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def tables(self) -> Sequence[EmbeddingTable]: ...
