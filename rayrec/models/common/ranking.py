"""The contract between a model and whoever trains, evaluates or serves it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rayrec.features.schema import Schema
from rayrec.models.common.batch import Batch
from rayrec.models.common.embeddings import PooledOutputs, build_embeddings
from rayrec.models.common.tables import EmbeddingTable


class RankingModel(nn.Module):
    """Embedding tables, and a dense network over their pooled outputs; knows nothing about distribution.

    A trainer may shard `embeddings` and replicate `dense_network`, and call the two itself as `forward` does.
    """

    def __init__(
        self,
        schema: Schema,
        tables: Sequence[EmbeddingTable],
        dense_network: nn.Module,
        device: torch.device,
        *,
        wide: nn.Module | None = None,
    ) -> None:
        super().__init__()
        assert sorted(tables, key=lambda table: table.part == "wide") == list(tables), "wide tables come last"
        self.schema = schema
        """Every embedding_dim is resolved."""
        self.tables = tuple(tables)
        """In the order of their outputs in `pooled`; those of a wide part come last."""
        self.embeddings = build_embeddings(tables, device)
        """The tables, by name; sums, of which `outputs` makes `pooled`."""
        self.outputs = PooledOutputs(tables)
        self.dense_network = dense_network
        """forward(dense (B, numeric features) float32, pooled (B, sum of dims) float32) -> logits (B,) float32.

        Initial values are its modules' (`initialize_dense`).
        """
        self.wide_names = frozenset(name for name, module in dense_network.named_children() if module is wide)
        """Children of `dense_network` that belong to a wide part."""

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B,) float32."""
        pooled = self.outputs(self.embeddings(batch.sparse), batch.sparse)
        return self.dense_network(batch.dense, pooled)
