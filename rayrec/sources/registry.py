"""Finds sources by the kind of their config; nothing else does."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from rayrec.common.errors import UserError
from rayrec.common.plugins import SOURCES
from rayrec.ingest.dataset import Dataset
from rayrec.preprocessing.extension import require_same_ids
from rayrec.preprocessing.pipeline import Preprocessing, PreprocessingJob
from rayrec.recipes import Recipe
from rayrec.sources.source import InputPaths, Source

if TYPE_CHECKING:
    from rayrec.inference.predictor import Predictor
    from rayrec.inference.rank import Ranker


def source_of(kind: str) -> Source:
    """Return the source of a kind, one of `SOURCES.packages`."""
    return cast(Source, SOURCES.load(kind, "source").SOURCE)


def preprocessing_job(recipe: Recipe, inputs: InputPaths, parent: Dataset | None = None) -> PreprocessingJob:
    """Return the job of a recipe's source. Raises UserError on inputs, a recipe or a parent that cannot work."""
    source = source_of(recipe.source.kind)
    if parent is not None:
        require_same_ids(recipe, parent)
        if not source.can_extend:
            raise UserError(
                f"source.kind '{recipe.source.kind}': its datasets cannot be extended; preprocess all raw files"
            )
    return source.job(recipe, inputs, parent)


def preprocessing(recipe: Recipe, inputs: InputPaths, output: Path, parent: Dataset | None = None) -> Preprocessing:
    """Return the writer of a recipe's dataset folder, which may extend a dataset.

    Raises UserError on inputs, a recipe or an output that cannot work.
    """
    return Preprocessing(preprocessing_job(recipe, inputs, parent), recipe, output, parent)


def ranker_of(model: "Predictor") -> "Ranker":
    """Return the ranker of a model with its look-ups of candidates. Raises UserError if these are damaged."""
    from rayrec.inference.rank import Ranker

    source = source_of(model.recipe.source.kind)
    return Ranker(model, source.lookup(model), source.candidate(model))


def load_ranker(folder: str | Path) -> "Ranker":
    """Return the ranker of a model folder, on CPU. Raises UserError."""
    from rayrec.inference.predictor import load_model

    return ranker_of(load_model(folder))
