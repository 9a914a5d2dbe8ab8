"""The Python API: what the command line does, for notebooks and programs.

    import rayrec

    rayrec.preprocess("dlrm-criteo", "train.txt", "dataset")
    run = rayrec.train("dlrm-criteo", "dataset", "run", workers=2, overrides={"train.epochs": 2})
    print(run.metrics["validation"]["auc"])
    rayrec.export("run", "model")
    rayrec.load_model("model").predict([{"I1": 3, "C1": "68fd1e64"}])

A folder may be given by its URI (s3://bucket/run), as text. Every function validates the same request as its command,
writes the same files and returns the command's `Result`. Errors that the user can fix are
`rayrec.common.errors.UserError` (a ValueError), in one line.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.result import Result
    from rayrec.inference.predictor import Predictor
    from rayrec.inference.ranker import Ranker
    from rayrec.inference.recommender import Recommender
    from rayrec.recipes import Recipe

AnyPath = str | PathLike[str]
Overrides = Mapping[str, Any]
"""Keys are `section.key` of a recipe, such as `train.epochs`."""


def load_recipe(recipe: AnyPath, overrides: Overrides | None = None) -> "Recipe":
    """The validated recipe: a shipped one by name, or a YAML file, with `overrides` applied."""
    from rayrec.recipes import load_recipe

    return load_recipe(str(recipe), _as_options(overrides))


def generate(
    source: str,
    rows: int,
    output: AnyPath,
    *,
    seed: int = 0,
    days: int | None = None,
    compress: bool = False,
    progress: bool = True,
) -> "Result":
    """Write `rows` raw rows with the layout of `source` (a kind, such as `criteo`) into the new folder
    `output`.

    `result.details` has what is known of the data, such as the best reachable AUC. `days`: write a file for each of so
    many days. `compress`: gzip files.
    """
    return _run("generate", progress, source=source, rows=rows, output=output, seed=seed, days=days, compress=compress)


def preprocess(
    recipe: AnyPath,
    input: str | Sequence[str],
    output: AnyPath,
    *,
    overrides: Overrides | None = None,
    progress: bool = True,
) -> "Result":
    """Turn raw files into the new dataset folder `output`, with Spark on Ray.

    `input`: files, folders, globs or URIs; each `SPLIT=PATH` where `preprocess.split.kind` is `files`.
    """
    inputs = (input,) if isinstance(input, str) else tuple(input)
    return _run("preprocess", progress, recipe=recipe, input=inputs, output=output, set=_as_options(overrides))


def train(
    recipe: AnyPath,
    data: AnyPath,
    output: AnyPath,
    *,
    workers: int | str | None = None,
    device: str | None = None,
    precision: str | None = None,
    resume: bool = False,
    overrides: Overrides | None = None,
    progress: bool = True,
) -> "Result":
    """Train on the dataset folder `data` into the run folder `output`; `result.metrics` has what it reached by split.

    `workers`, `device` and `precision` win over the recipe's `train` section and `overrides`; `workers="1:4"` trains on
    as many of them as there is room for. `resume` continues the run that is in `output`.
    """
    return _run(
        "train",
        progress,
        recipe=recipe,
        data=data,
        output=output,
        workers=workers,
        device=device,
        precision=precision,
        resume=resume,
        set=_as_options(overrides),
    )


def run(
    recipe: AnyPath,
    input: str | Sequence[str],
    output: AnyPath,
    *,
    workers: int | str | None = None,
    device: str | None = None,
    precision: str | None = None,
    overrides: Overrides | None = None,
    progress: bool = True,
) -> "Result":
    """Preprocess, train, evaluate and export into the folder `output`; called again, it continues where it stopped."""
    inputs = (input,) if isinstance(input, str) else tuple(input)
    return _run(
        "run",
        progress,
        recipe=recipe,
        input=inputs,
        output=output,
        workers=workers,
        device=device,
        precision=precision,
        set=_as_options(overrides),
    )


def tune(
    recipe: AnyPath,
    data: AnyPath,
    output: AnyPath,
    trials: int,
    *,
    space: AnyPath | None = None,
    search: str = "optuna",
    scheduler: str = "none",
    metric: str | None = None,
    concurrent: int | None = None,
    confirm: int = 0,
    resume: bool = False,
    workers: int | str | None = None,
    device: str | None = None,
    precision: str | None = None,
    overrides: Overrides | None = None,
    progress: bool = True,
) -> "Result":
    """Search for better values of a recipe's keys, into the folder `output`; `output/best.yaml` is the best recipe.

    `space`: a YAML file, by default the one for the recipe's kind of model. `search` is `optuna`, `random`, `grid` or
    `pbt`, `scheduler` is `none` or `asha`; `metric` is by default that of `train.checkpoint.keep_best`, else `auc`.
    `concurrent`: trials at once, by default as many as fit. `confirm`: so many of the best trials, and the recipe as it
    stands, are trained again with other seeds, and the best mean is the best. `resume` continues the sweep in `output`.
    """
    return _run(
        "tune",
        progress,
        recipe=recipe,
        data=data,
        output=output,
        trials=trials,
        space=space,
        search=search,
        scheduler=scheduler,
        metric=metric,
        concurrent=concurrent,
        confirm=confirm,
        resume=resume,
        workers=workers,
        device=device,
        precision=precision,
        set=_as_options(overrides),
    )


def evaluate(
    source: AnyPath,
    data: AnyPath,
    *,
    split: str = "test",
    checkpoint: str = "best",
    workers: int | None = None,
    device: str | None = None,
    progress: bool = True,
) -> "Result":
    """Exact metrics of a run or model folder over a split of a dataset folder, every row once.

    `checkpoint`: of a run, `best` (the latest where none was evaluated), `latest` or a step.
    """
    return _run(
        "evaluate",
        progress,
        source=source,
        data=data,
        split=split,
        checkpoint=checkpoint,
        workers=workers,
        device=device,
    )


def predict(
    model: AnyPath,
    input: AnyPath,
    output: AnyPath,
    *,
    raw: bool = False,
    split: str | None = None,
    progress: bool = True,
) -> "Result":
    """Score a split of a dataset folder, or with `raw` raw rows, into the new folder `output`, streaming.

    `split`: `test` by default.
    """
    return _run(
        "predict",
        progress,
        model=model,
        input=str(input),
        output=output,
        raw=raw,
        split=split,
    )


def recommend(model: AnyPath, output: AnyPath, *, k: int = 10, progress: bool = True) -> "Result":
    """The `k` best new items of every user of a model of users and items, into the new folder `output`."""
    return _run("predict", progress, model=model, output=output, top_k=k)


def export(
    run: AnyPath, output: AnyPath, *, checkpoint: str = "best", tables: str = "fp32", progress: bool = True
) -> "Result":
    """Write the model folder `output` of a run folder: schema, vocabularies and weights, without pickle.

    `checkpoint`: `best`, `latest` or a step. `tables`: `fp32`, `fp16` or `int8`; what less than fp32 changes is
    measured, and told in `details`.
    """
    return _run("export", progress, run=run, output=output, checkpoint=checkpoint, tables=tables)


def load_model(folder: AnyPath) -> "Predictor":
    """The predictor of a model folder, on CPU: `predict(rows)` takes raw features and gives probabilities."""
    from rayrec.inference.predictor import load_model

    return load_model(_fetched(folder))


def load_recommender(folder: AnyPath) -> "Recommender":
    """The recommender of a model folder of users and items: `recommend(user, k)` gives the best new items."""
    from rayrec.inference.recommender import load_recommender

    return load_recommender(_fetched(folder))


def load_ranker(folder: AnyPath) -> "Ranker":
    """The ranker of a model that looks up features: `rank(context, candidates, k)` gives the best candidates."""
    from rayrec.sources.registry import load_ranker

    return load_ranker(_fetched(folder))


def _fetched(folder: AnyPath) -> Path:
    """The local folder of a model, of which a URI may have been given."""
    from rayrec.storage.location import local_path
    from rayrec.storage.staged import fetch

    path = local_path(fspath(folder))
    fetch(path)
    return path


def _run(command: str, show_progress: bool, **values: Any) -> "Result":
    import importlib

    from jobs.entry_point import build_request, execute
    from rayrec.common.console import console_progress
    from rayrec.common.progress import SilentProgress

    job = importlib.import_module(f"jobs.{command}").JOB
    given = {
        name: str(value) if isinstance(value, PathLike) else value
        for name, value in values.items()
        if value is not None
    }
    request = build_request(job.request, given)
    with console_progress() if show_progress else nullcontext(SilentProgress()) as progress:
        return execute(job, request, progress)


def _as_options(overrides: Overrides | None) -> tuple[str, ...]:
    """As the command line's `--set` takes them; JSON is YAML."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items())
