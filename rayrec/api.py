"""The Python API: what the command line does, for notebooks and programs.

    import rayrec

    rayrec.preprocess("recipe.yaml", "clicks.csv", "dataset")
    run = rayrec.train("recipe.yaml", "dataset", "run", workers=2, set={"train.epochs": 2})
    print(run.metrics["validation"]["auc"])
    rayrec.export("run", "model")
    rayrec.load_model("model").predict([{"age": 3, "country": "NL"}])

A command's function takes the fields of its request, writes the same files as the command and returns its `Result`;
api.pyi has the types. A folder may be given by its URI (s3://bucket/run), as text. Errors that the user can fix are
`rayrec.common.errors.UserError` (a ValueError), in one line.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

if TYPE_CHECKING:
    from rayrec.inference.explanation import Explainer
    from rayrec.inference.predictor import Predictor
    from rayrec.inference.rank import Ranker
    from rayrec.inference.recommender import Recommender
    from rayrec.recipes import Recipe

AnyPath = str | PathLike[str]
__all__ = [
    "inspect",
    "generate",
    "preprocess",
    "verify",
    "forget",
    "train",
    "run",
    "evaluate",
    "explain",
    "predict",
    "export",
    "tune",
    "plan",
    "report",
    "runs",
    "compare",
    "load_recipe",
    "load_model",
    "load_recommender",
    "load_ranker",
    "load_explainer",
]
COMMANDS = tuple(name for name in __all__ if not name.startswith("load_"))
"""The commands that are functions of this module."""


@cache
def __getattr__(name: str) -> Any:
    if name not in COMMANDS:
        raise AttributeError(f"module 'rayrec.api' has no attribute '{name}'")
    from jobs.command.interface import python_function
    from jobs.command.runner import load_command

    return python_function(load_command(name))


def load_recipe(recipe: AnyPath, set: Mapping[str, Any] | None = None) -> "Recipe":
    """Return a validated recipe: a shipped one by name, or a YAML file, with keys set, such as `train.epochs`."""
    from jobs.command.request import RecipeRequest

    return RecipeRequest.model_validate({"recipe": recipe, "set": set or {}}).load_recipe()


def load_model(folder: AnyPath) -> "Predictor":
    """Load the predictor of a model, on CPU: `predict(rows)` takes raw features and returns probabilities.

    `folder`: a model folder, a run folder, or the output of `rayrec.run`; of several versions the newest is loaded.
    """
    from jobs.export import exported
    from rayrec.inference.folder.table_files import is_model_folder
    from rayrec.inference.folder.versions import versions_in
    from rayrec.inference.predictor import load_model

    path = _local(folder)
    if is_model_folder(path) or not path.is_dir():
        return load_model(path)
    versions = versions_in(path / "models") or versions_in(path)
    if versions:
        return load_model(versions[max(versions)])
    if is_model_folder(path / "model"):
        return load_model(path / "model")
    # The best checkpoint of a run is exported for as long as the predictor is there.
    files = ExitStack()
    predictor = load_model(files.enter_context(exported(path)))
    finalize(predictor, files.close)
    return predictor


def load_recommender(folder: AnyPath) -> "Recommender":
    """Load the recommender of a model of users and items: `recommend(user, k)` returns the k best new items."""
    from rayrec.inference.recommender import load_recommender

    return load_recommender(_local(folder))


def load_ranker(folder: AnyPath) -> "Ranker":
    """Load the ranker of a model that looks up features: `rank(context, candidates, k)` returns the best candidates."""
    from rayrec.sources.registry import load_ranker

    return load_ranker(_local(folder))


def load_explainer(folder: AnyPath) -> "Explainer":
    """Load the explainer of a model folder, on CPU: `explain(rows)` returns what each feature adds to a row's score."""
    from rayrec.inference.explanation import load_explainer

    return load_explainer(_local(folder))


def _local(folder: AnyPath) -> Path:
    """Return the path of a model folder, which may be at a URI."""
    from rayrec.store.paths import to_path  # which takes a while to import

    return to_path(folder if isinstance(folder, Path) else fspath(folder))
