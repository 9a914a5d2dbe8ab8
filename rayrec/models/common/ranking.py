"""The contract between a model and whoever trains, evaluates or serves it."""

from torch import Tensor, nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from rayrec.features.schema import Schema
from rayrec.models.common.batch import Batch
from rayrec.models.common.embeddings import concat_pooled
from rayrec.models.common.table_values import TableValues


class RankingModel(nn.Module):
    """Embedding tables, and a dense network over their pooled outputs; knows nothing about distribution.

    A trainer may shard `embeddings` and replicate `dense_network`, and call the two itself as `forward` does.
    """

    def __init__(
        self, schema: Schema, embeddings: EmbeddingBagCollection, dense_network: nn.Module, table_values: TableValues
    ) -> None:
        super().__init__()
        self.schema = schema
        """Every embedding_dim is resolved."""
        self.embeddings = embeddings
        """One table for each categorical feature; table name = feature name = key."""
        self.dense_network = dense_network
        """forward(dense (B, numeric features) float32, pooled (B, sum of widths)) -> logits (B,) float32.

        `pooled` is in the schema's order of categorical features (`concat_pooled`).
        """
        self.table_values = table_values
        """Initial values of every table; those of the dense network are its modules' (`initialize_dense`)."""
        self.keys = tuple(feature.name for feature in schema.categorical)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B,) float32."""
        pooled = concat_pooled(self.embeddings(batch.sparse), self.keys)
        return self.dense_network(batch.dense, pooled)
