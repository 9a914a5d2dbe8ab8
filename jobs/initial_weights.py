"""The weights that a new run begins with where its recipe takes them from other runs (`train.initial_weights`)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.errors import ConfigError, UserError
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from rayrec.inference.folder.checkpoint_weights import CheckpointWeights
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.ingest.dataset import Dataset
    from rayrec.models.common.initial_weights import Weights
    from rayrec.training.placement.parallel_model import ParallelModel


def initial_weights(recipe: Recipe, dataset: "Dataset") -> "Callable[[ParallelModel], None] | None":
    """A function that fills each worker's part of the model; None if the recipe asks for random weights.

    It travels by pickle. Raises ConfigError where the model does not begin with the weights of these folders.
    """
    config = recipe.train.initial_weights
    if config is None:
        return None
    folders = {name: str(folder.absolute()) for name, folder in config.sources.items()}
    _weights(recipe, folders, dataset)
    return partial(_fill, recipe, folders)


def _fill(recipe: Recipe, folders: dict[str, str], model: "ParallelModel") -> None:
    weights = _weights(recipe, folders)
    model.load(weights.table, weights.dense())


def _weights(recipe: Recipe, folders: dict[str, str], dataset: "Dataset | None" = None) -> "Weights":
    """The model's initial weights, which are read when they are asked for; with a dataset its features are compared."""
    from rayrec.models.registry import compose_weights

    config = recipe.train.initial_weights
    assert config is not None
    sources = {}
    for name, folder in folders.items():
        try:
            sources[name] = _open(Path(folder))
            if dataset is not None:
                sources[name].schema.require_same_features(dataset.schema, dataset.folder)
        except UserError as error:
            raise ConfigError(f"train.initial_weights.sources.{name}: {error}") from None
    return compose_weights(recipe.model, sources, config.options)


def _open(folder: Path) -> "ModelFolder | CheckpointWeights":
    """The weights of a model folder, or of a run folder's best checkpoint."""
    from rayrec.inference.folder.checkpoint_weights import CheckpointWeights
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.inference.folder.table_files import is_model_folder
    from rayrec.storage.staged import fetch
    from rayrec.training.run.folder import RunFolder

    fetch(folder)
    if is_model_folder(folder):
        return ModelFolder.open(folder)
    run = RunFolder.open(folder)
    return CheckpointWeights(run.checkpoint("best"), run.recipe, run.schema)
