"""Finds sources by the kind of their config; nothing else does."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

from rayrec.common.errors import UserError
from rayrec.common.plugins import SOURCES
from rayrec.features.schema import STATISTICS_FOLDER
from rayrec.preprocessing.pipeline import Preprocessing, PreprocessingJob
from rayrec.recipes import Recipe
from rayrec.sources.source import InputPaths, Source

if TYPE_CHECKING:
    from rayrec.inference.predictor import Predictor
    from rayrec.inference.ranker import FeatureLookup, Ranker


def source_of(kind: str) -> Source:
    """The source of a kind, one of `SOURCES.packages`."""
    return cast(Source, SOURCES.load(kind, "source").SOURCE)


def preprocessing_job(recipe: Recipe, inputs: InputPaths) -> PreprocessingJob:
    """The job of a recipe's source. Raises UserError on inputs or a recipe that cannot work."""
    return source_of(recipe.source.kind).job(recipe, inputs)


def preprocessing(recipe: Recipe, inputs: InputPaths, output: Path) -> Preprocessing:
    """The writer of a recipe's dataset folder. Raises UserError on inputs, a recipe or an output that cannot work."""
    return Preprocessing(preprocessing_job(recipe, inputs), recipe, output)


def lookup_of(model: "Predictor") -> "FeatureLookup | None":
    """The look-up of a model's features; None if its rows bring all features. Raises UserError."""
    statistics = model.folder / STATISTICS_FOLDER
    return source_of(model.recipe.source.kind).lookup(statistics) if statistics.is_dir() else None


def load_ranker(folder: str | Path) -> "Ranker":
    """The ranker of a model folder, on CPU. Raises UserError if the model's source looks up no features."""
    from rayrec.inference.predictor import load_model
    from rayrec.inference.ranker import Ranker

    predictor = load_model(folder)
    lookup = lookup_of(predictor)
    if lookup is None:
        raise UserError(
            f"{predictor.folder}: has no {STATISTICS_FOLDER}/ to look features up in; score rows of all its features "
            "instead"
        )
    return Ranker(predictor, lookup)
