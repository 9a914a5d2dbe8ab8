"""From a checkpoint of a run to a model folder, in one process, a table at a time."""

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rayrec.common.errors import UserError
from rayrec.config import Recipe
from rayrec.features.schema import CategoricalFeature
from rayrec.inference.model_card import model_card
from rayrec.inference.model_folder import Metrics, write_model_folder
from rayrec.ingest.dataset import Dataset
from rayrec.models.registry import build_model


def export_checkpoint(checkpoint: Path, output: Path, *, recipe: Recipe, dataset: Dataset, metrics: Metrics) -> None:
    """Write the model folder of `checkpoint`, a folder of torch.distributed.checkpoint, to `output`.

    The checkpoint holds the unsharded names `model.embeddings.embedding_bags.<table>.weight` and
    `model.dense_network.*`, whatever number of workers and sharding plan wrote it. Each shard is read on its own and
    written through the map of its table's file, so that memory needs to hold the largest shard, not the model.

    Args:
        recipe: That of the run.
        dataset: What the model was trained on; the model folder takes its vocabularies.
        metrics: Of this checkpoint, by split.

    Raises UserError where the checkpoint lacks a weight of the model or holds it in another shape.
    """
    model = build_model(recipe.model, dataset.schema, device="meta")
    stored = _Checkpoint(checkpoint)
    dense = {name: torch.empty_like(value, device="cpu") for name, value in model.dense_network.state_dict().items()}
    stored.load({f"dense_network.{name}": value for name, value in dense.items()})

    def fill_table(feature: CategoricalFeature, table: Tensor) -> None:
        stored.load({f"embeddings.embedding_bags.{feature.name}.weight": table})

    write_model_folder(
        output,
        schema=model.schema,
        recipe=recipe,
        metrics=metrics,
        card=model_card(recipe, dataset, metrics, checkpoint.name),
        vocabularies_in=dataset.folder,
        dense=dense,
        fill_table=fill_table,
    )


class _Checkpoint:
    """The model's part of a checkpoint, read by this process alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            metadata = dcp.FileSystemReader(folder).read_metadata()
        except (OSError, EOFError) as error:
            raise UserError(f"{folder}: not a whole checkpoint ({type(error).__name__}); give another one") from None
        self._shapes = {
            name: tuple(stored.size)
            for name, stored in metadata.state_dict_metadata.items()
            if isinstance(stored, TensorStorageMetadata)
        }

    def load(self, weights: dict[str, Tensor]) -> None:
        """Fill the tensors in place; names are those in the model. Raises UserError on one that does not fit."""
        for name, tensor in weights.items():
            found = self._shapes.get(f"model.{name}")
            if found != tuple(tensor.shape):
                raise UserError(
                    f"{self._folder}: weight '{name}' is {found or 'missing'}, the run's recipe and schema make it "
                    f"{tuple(tensor.shape)}; the checkpoint is of another run"
                )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp.load({"model": weights}, checkpoint_id=self._folder, no_dist=True)
        except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
            reason = next(iter(error.failures.values()))[0]
            raise UserError(f"{self._folder}: cannot be read: {reason}") from None
