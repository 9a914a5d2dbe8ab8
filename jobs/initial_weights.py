"""The weights that a new run begins with where its recipe takes them from other runs (`train.initial_weights`)."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.errors import ConfigError, UserError
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from rayrec.inference.folder.checkpoint_weights import CheckpointWeights
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.ingest.dataset import Dataset
    from rayrec.models.common.tables import EmbeddingTable
    from rayrec.training.parallel_model import ParallelModel


def initial_weights(recipe: Recipe, dataset: "Dataset") -> "Callable[[ParallelModel], None] | None":
    """What fills each worker's part of the model; None where the recipe asks for random weights. Travels by pickle.

    Raises ConfigError where the folders do not hold a GMF and an MLP of the recipe's sizes and of these features.
    """
    config = recipe.train.initial_weights
    if config is None:
        return None
    wanted = recipe.model
    assert isinstance(wanted, NeuMFConfig), "the recipe was validated"
    for part, folder in (("gmf", config.gmf), ("mlp", config.mlp)):
        field = f"train.initial_weights.{part}"
        try:
            weights = _open(folder)
            weights.schema.require_same_features(dataset.schema, dataset.folder)
        except UserError as error:
            raise ConfigError(f"{field}: {error}") from None
        found = weights.recipe.model
        if not isinstance(found, NeuMFConfig) or found.parts != (part,):
            raise ConfigError(f"{field}: {folder} holds no model of kind 'neumf' with parts: [{part}]; give one")
        for key in ("factors", "gmf_output") if part == "gmf" else ("mlp",):
            if getattr(found, key) != getattr(wanted, key):
                raise ConfigError(
                    f"{field}: {folder} has model.{key}={getattr(found, key)}, this model {getattr(wanted, key)}; "
                    "make them equal"
                )
    return partial(_fill, wanted, str(config.gmf.absolute()), str(config.mlp.absolute()), config.alpha)


def _fill(config: NeuMFConfig, gmf_folder: str, mlp_folder: str, alpha: float, model: "ParallelModel") -> None:
    from rayrec.models.neumf.pretraining import compose_dense, compose_table

    gmf, mlp = _open(Path(gmf_folder)), _open(Path(mlp_folder))

    def composed(table: "EmbeddingTable") -> "Tensor":
        parts = []
        for part in (gmf, mlp):
            (own,) = (t for t in part.tables if t.name == table.name)
            parts.append(part.table(own)[:, : own.dim])
        return compose_table(config, parts[0], parts[1], alpha)

    model.load(composed, compose_dense(gmf.dense(), mlp.dense(), alpha))


def _open(folder: Path) -> "ModelFolder | CheckpointWeights":
    """The weights of a model folder, or of a run folder's best checkpoint."""
    from rayrec.inference.folder.checkpoint_weights import CheckpointWeights
    from rayrec.inference.folder.layout import is_model_folder
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.storage.staged import fetch
    from rayrec.training.run_folder import RunFolder

    fetch(folder)
    if is_model_folder(folder):
        return ModelFolder.open(folder)
    run = RunFolder.open(folder)
    return CheckpointWeights(run.checkpoint("best"), run.recipe, run.schema)
