"""The undistributed weights of a run's checkpoint, read by one process without torch.distributed."""

import pickle
import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rayrec.common.errors import UserError, first_failure
from rayrec.features.schema import Schema
from rayrec.internals.torch_checkpoint import load, read_metadata
from rayrec.models.common.tables import EmbeddingTable
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.storage.files import checkpoint_streams, on_this_node


class CheckpointWeights:
    """The model's part of a checkpoint, a folder of torch.distributed.checkpoint.

    It holds the unsharded names `model.embeddings.embedding_bags.<table>.weight` and `model.dense_network.*`, whatever
    number of workers and sharding plan wrote it. Every method raises UserError if a weight of the model is missing,
    has another shape or cannot be read.
    """

    def __init__(self, folder: Path, recipe: Recipe, schema: Schema) -> None:
        """`recipe` is the run's, `schema` its dataset's or its model's."""
        # It is meant to be. Settings of warnings belong to the process, so threads cannot set them for a block.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        self.recipe = recipe
        self._model = build_model(recipe.model, schema, device="meta")
        self.schema = self._model.schema
        """The schema with every embedding_dim resolved."""
        self.tables = self._model.tables
        self._folder, self._streams = on_this_node(folder), checkpoint_streams(folder)
        try:
            metadata = read_metadata(self._folder, self._streams)
        except OSError as error:
            raise UserError(f"{folder}: not a whole checkpoint ({type(error).__name__}); give another one") from None
        except pickle.UnpicklingError as error:
            raise UserError(f"{folder}: not a checkpoint: {error}; give another one") from None
        self._shapes = {
            name: tuple(stored.size)
            for name, stored in metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }

    def dense(self) -> dict[str, Tensor]:
        """The state dict of the model's `dense_network`."""
        empty = self._model.dense_network.state_dict()
        dense = {name: torch.empty_like(value, device="cpu") for name, value in empty.items()}
        self._load({f"dense_network.{name}": value for name, value in dense.items()})
        return dense

    def table(self, table: EmbeddingTable) -> Tensor:
        """The (rows, columns) float32 weights of a table."""
        weights = torch.empty(table.shape)
        self.fill_table(table, weights)
        return weights

    def fill_table(self, table: EmbeddingTable, weights: Tensor) -> None:
        """Fill `weights` in place; each shard of the checkpoint is read on its own, so memory holds one of them."""
        self._load({f"embeddings.embedding_bags.{table.name}.weight": weights})

    def _load(self, weights: dict[str, Tensor]) -> None:
        for name, tensor in weights.items():
            found = self._shapes.get(f"model.{name}")
            if found != tuple(tensor.shape):
                raise UserError(
                    f"{self._folder}: weight '{name}' is {found or 'missing'}, the run's recipe and schema make it "
                    f"{tuple(tensor.shape)}; the checkpoint is of another run"
                )
        try:
            load({"model": weights}, self._folder, self._streams, no_dist=True)
        except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
            raise first_failure(error.failures, f"{self._folder}: cannot be read") from None
