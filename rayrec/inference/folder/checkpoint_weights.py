"""The undistributed weights of a run's checkpoint, read by one process without torch.distributed."""

from pathlib import Path

import torch
from torch import Tensor

from rayrec.features.schema import Schema
from rayrec.models.common.tables import EmbeddingTable
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.store.tensors import StoredTensors


class CheckpointWeights:
    """The model's part of a checkpoint, a folder of torch.distributed.checkpoint.

    It holds the unsharded names `model.embeddings.embedding_bags.<table>.weight` and `model.dense_network.*`, whatever
    number of workers and sharding plan wrote it. Every method raises UserError if a weight of the model is missing,
    has another shape or cannot be read.
    """

    def __init__(self, folder: Path, recipe: Recipe, schema: Schema) -> None:
        """`recipe` is the run's, `schema` its dataset's or its model's."""
        self.recipe = recipe
        self._model = build_model(recipe.model, schema, device="meta")
        self.schema = self._model.schema
        """The schema with every embedding_dim resolved."""
        self.tables = self._model.tables
        self.pooled = self._model.pooled
        """What the columns of pooled embeddings are."""
        self._stored = StoredTensors(folder)

    def dense(self) -> dict[str, Tensor]:
        """Return the state dict of the model's `dense_network`."""
        empty = self._model.dense_network.state_dict()
        dense = {name: torch.empty_like(value, device="cpu") for name, value in empty.items()}
        self._stored.fill({f"model.dense_network.{name}": value for name, value in dense.items()})
        return dense

    def table(self, table: EmbeddingTable) -> Tensor:
        """Return the (rows, columns) float32 weights of a table."""
        weights = torch.empty(table.shape)
        self.fill_table(table, weights)
        return weights

    def fill_table(self, table: EmbeddingTable, weights: Tensor) -> None:
        """Fill `weights` in place; each shard of the checkpoint is read on its own, so memory holds one of them."""
        self._stored.fill({f"model.embeddings.embedding_bags.{table.name}.weight": weights})
