"""The model of a run's checkpoint, as scoring needs it: without an export, and with tables that are mapped."""

from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.features.schema import CategoricalFeature, Schema
from rayrec.features.vocabularies.vocabulary import VocabularyLookup
from rayrec.inference.folder.checkpoint_weights import CheckpointWeights
from rayrec.inference.folder.table_files import TABLE_TENSOR, MappedTable, new_table, table_file
from rayrec.ingest.dataset import Dataset
from rayrec.metrics.estimates import SplitMetrics
from rayrec.models.common.tables import EmbeddingTable, PooledFeature
from rayrec.recipes import Recipe
from rayrec.store.files import new_file


class CheckpointModel:
    """A `StoredModel` that any process can open where the checkpoint is in reach; it travels by pickle.

    The shards of a table are brought together in a file on the node that scores, each shard on its own, and the file is
    mapped: it takes disk space, not memory, so a model that was trained on several machines can be scored on one.
    """

    def __init__(self, checkpoint: Path, recipe: Recipe, schema: Schema, dataset: Path | None, files: Path) -> None:
        """`recipe`, `schema`: the run's. `dataset`: what it was trained on, for raw rows; None if that is not in reach.

        `files`: folder for the tables on each node, which the caller removes.
        """
        self.folder, self.recipe, self.metrics = checkpoint, recipe, SplitMetrics()
        self._schema, self._dataset, self._files = schema, dataset, files

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder, self.recipe, self._schema, self._dataset, self._files)

    @cached_property
    def _weights(self) -> CheckpointWeights:
        return CheckpointWeights(self.folder, self.recipe, self._schema)

    @property
    def schema(self) -> Schema:
        """The schema with every embedding dimension resolved."""
        return self._weights.schema

    @property
    def tables(self) -> tuple[EmbeddingTable, ...]:
        return self._weights.tables

    @property
    def pooled(self) -> tuple[PooledFeature, ...]:
        return self._weights.pooled

    def path(self, name: str) -> Path:
        return self._raw_side / name

    def vocabulary(self, feature: CategoricalFeature) -> VocabularyLookup:
        assert feature.vocabulary is not None
        return VocabularyLookup.load(self._raw_side / feature.vocabulary.file)

    @cached_property
    def _raw_side(self) -> Path:
        """The dataset folder, on this node, with all that raw rows are encoded by."""
        if self._dataset is None:
            raise UserError(
                f"{self.folder}: the dataset that it was trained on is gone or has changed, so raw rows cannot be "
                "read; bring it back, or give the output of `rayrec export`"
            )
        dataset = Dataset.open(self._dataset)
        dataset.fetch_mapped()
        return dataset.folder

    def mapped_table(self, table: EmbeddingTable) -> MappedTable:
        path = self._files / table_file(table.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        # The first worker of a node makes the file, the others wait for it.
        with FileLock(f"{path}.lock"):
            if not path.exists():
                with new_file(path) as temporary, new_table(temporary, table, "fp32") as tensors:
                    self._weights.fill_table(table, torch.from_numpy(tensors[TABLE_TENSOR]))
        return MappedTable(path, table.dim)

    def dense(self) -> dict[str, Tensor]:
        return self._weights.dense()
