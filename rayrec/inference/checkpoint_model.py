"""The model of a run's checkpoint: its undistributed weights, and what scoring needs, without an export."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.features.feature_kinds import CategoricalFeature
from rayrec.features.schema import Schema
from rayrec.features.vocabulary import VocabularyLookup
from rayrec.inference.folder.table_files import TABLE_TENSOR, MappedTable, new_table, table_file
from rayrec.ingest.dataset import Dataset
from rayrec.metrics.estimates import SplitMetrics
from rayrec.models.common.embedding_tables import EmbeddingTable
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.store.files import new_file


class CheckpointModel:
    """The model's part of a checkpoint, a folder of torch.distributed.checkpoint; it travels by pickle.

    It holds the unsharded names `model.embeddings.embedding_bags.<table>.weight` and `model.dense_network.*`, whatever
    number of workers and sharding plan wrote it. Every method raises UserError if a weight of the model is missing,
    has another shape or cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        schema: Schema,
        dataset: Path | None = None,
        files: Path | None = None,
    ) -> None:
        """`recipe` is the run's, `schema` its dataset's or its model's.

        To score, `files` is a folder on each node for the tables, which the caller removes; to score raw rows,
        `dataset` is the folder that the model was trained on.
        """
        # Only now: torch's checkpoints take a second to import, which servers of model folders do without.
        from rayrec.store.tensors import StoredTensors

        self.folder, self.recipe, self.metrics = folder, recipe, SplitMetrics()
        self._given = (folder, recipe, schema, dataset, files)
        self._dataset, self._files = dataset, files
        self._model = build_model(recipe.model, schema, device="meta")
        self.schema = self._model.schema
        """The schema with every embedding_dim resolved."""
        self.tables, self.pooled = self._model.tables, self._model.pooled
        self._stored = StoredTensors(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

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

    def mapped_table(self, table: EmbeddingTable) -> MappedTable:
        """Return the table as rows that are looked up in a file on this node.

        It takes disk space, not memory, so a model that was trained on several machines can be scored on one.
        """
        assert self._files is not None
        path = self._files / table_file(table.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The first worker of a node makes the file, the others wait for it.
        with FileLock(f"{path}.lock"):
            if not path.exists():
                with new_file(path) as temporary, new_table(temporary, table, "fp32") as tensors:
                    self.fill_table(table, torch.from_numpy(tensors[TABLE_TENSOR]))
        return MappedTable.open(path, table.dim)

    def path(self, name: str) -> Path:
        """Return where a file or folder of the dataset is that raw rows are encoded by."""
        return self._raw_side / name

    def vocabulary(self, feature: CategoricalFeature) -> VocabularyLookup:
        """Return the look-up of the values of a feature that has a vocabulary."""
        assert feature.vocabulary is not None
        return VocabularyLookup.load(self._raw_side / feature.vocabulary.file)

    @cached_property
    def _raw_side(self) -> Path:
        if self._dataset is None:
            raise UserError(
                f"{self.folder}: the dataset that it was trained on is gone or has changed, so raw rows cannot be "
                "read; bring it back, or give the output of `rayrec export`"
            )
        return Dataset.open(self._dataset).folder
