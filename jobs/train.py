"""`rayrec train`: trains a recipe's model on a dataset."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import PositiveInt

from jobs.command import Command, Metavar, Result, TrainingRecipeRequest, main
from jobs.command.placement import PlacedRequest, place_training, training_session
from jobs.evaluate import part_of_split
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.recipes import Recipe
from rayrec.store.folders import is_vacant, owned
from rayrec.store.paths import Folder, to_path

if TYPE_CHECKING:
    from rayrec.config.execution import Execution
    from rayrec.config.train import EarlyStopConfig
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.inference.scorer import CheckpointModel
    from rayrec.ingest.dataset import Dataset
    from rayrec.models.common.ranking import Weights
    from rayrec.training.driver import Metrics
    from rayrec.training.loop.step import TrainStep
    from rayrec.training.loop.worker import InitialWeights
    from rayrec.training.run.folder import Origin, RunFolder, RunProgress


class TrainRequest(TrainingRecipeRequest, PlacedRequest):
    data: Folder
    """Dataset folder, written by `rayrec preprocess`."""
    output: Folder
    """New run folder; with --resume an existing one."""
    resume: bool = False
    """Continue the run in --output from its latest checkpoint, or start it."""
    warm_start: Folder | None = None
    """Run folder to start from: take over the weights of its best checkpoint, and train as train.warm_start says."""
    refit_of: Folder | None = None
    """Run folder whose rows, held-out ones included, are all in `train` of --data: train anew for as many epochs as its
    best checkpoint, and keep its metrics."""
    reset: Annotated[tuple[str, ...], Metavar("FEATURE")] = ()
    """Feature whose table --warm-start does not take over; repeatable."""
    max_steps: PositiveInt | None = None
    """Largest number of optimizer steps (train.max_steps)."""

    @property
    def overrides(self) -> tuple[str, ...]:
        given = () if self.max_steps is None else (f"train.max_steps={self.max_steps}",)
        return (*super().overrides, *given)

    def load_recipe(self) -> Recipe:
        """Return the recipe with overrides applied, and what a warm start changes. Raises ConfigError."""
        recipe = super().load_recipe()
        if self.warm_start is None:
            return recipe
        return recipe.model_copy(update={"train": recipe.train.warm_started()})

    def kept(self) -> str:
        from rayrec.training.run.folder import RunFolder

        reached = RunFolder(self.output).progress()
        return super().kept() if reached is None else f"step {reached.step:,} is kept; --resume continues from it"

    def check(self) -> None:
        super().check()
        if self.reset and self.warm_start is None:
            raise ConfigError("--reset: only for a warm start; add --warm-start, or leave it out")


def run(request: TrainRequest, progress: Progress) -> Result:
    """Train, and evaluate on every held-out split; `rows` counts those trained on.

    `details.part`, where train.rows leaves rows out, has the `rows` of the part and those `of` the split.
    `metrics` of a warm-started run has those of the rows trained on, each measured before, under `progressive`.
    """
    from rayrec.ingest.dataset import Dataset
    from rayrec.inspection.split_checks import baselines, drawn_negatives, metric_warnings, run_notes
    from rayrec.training.run.folder import RunFolder
    from rayrec.training.run.history import read_history
    from rayrec.training.run.preflight import require_trainable

    # The recipe and the dataset have to fit each other.
    recipe = request.load_recipe()
    dataset = Dataset.open(request.data)
    dataset.require_source(recipe)
    for difference in dataset.other_preprocessing(recipe):
        progress.message(f"note: {difference}")
    if request.refit_of is not None:
        recipe = refit_recipe(recipe, RunFolder.open(request.refit_of), dataset)
    # A new run, or one that goes on, from where it was or from another run's weights.
    resumes = request.resume and not is_vacant(request.output)
    origin = _origin(request)
    if resumes:
        RunFolder.require_resumable(request.output, recipe, dataset, origin)
    require_trainable(recipe, dataset)
    # Train where it is decided, and evaluate at the end; the loop is rayrec/training/loop/worker.py.
    place = place_training(request, recipe.train, progress)
    session = training_session(place, recipe.train, progress, by_ray_data=request.on == "ray")
    with owned(request.output), session as execution:
        metrics = train_recipe(
            recipe,
            dataset,
            request.output,
            execution,
            resume=request.resume,
            origin=origin,
            refit_of=request.refit_of,
            progress=progress,
        )
    # What came of it, from what the run folder has recorded.
    run_folder = RunFolder.open(request.output)
    reached = run_folder.progress()
    assert reached is not None
    evaluations = [record for record in read_history(run_folder.history) if record["event"] == "evaluate"]
    rows = dataset.split("train").rows
    simpler = baselines(recipe, dataset, metrics)
    part = part_of_split(dataset, "train", min(rows, recipe.train.rows or rows))
    return Result(
        command="train",
        output=request.output,
        rows=recipe.train.samples_after(reached.step, rows),
        metrics=metrics,
        baselines=simpler,
        execution=run_folder.execution,
        details={
            "steps": reached.step,
            "training_seconds": reached.seconds,
            **({"evaluation_rows_per_second": evaluations[-1].get("rows_per_second")} if evaluations else {}),
            **_time_to_target(recipe.train.early_stop, evaluations),
            **part,
            "warnings": metric_warnings(metrics, simpler),
            "notes": [*part.get("notes", []), *run_notes(recipe, dataset, metrics)],
            **drawn_negatives(dataset.schema),
        },
    )


def refit_recipe(recipe: Recipe, judged: "RunFolder", dataset: "Dataset") -> Recipe:
    """Return the recipe that passes over `train` of a dataset as often as the best checkpoint of `judged` did over its
    own.

    Raises ConfigError unless the dataset has all rows of the other one in `train`, and the recipe is the same.
    """
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import RESUMABLE_CHANGES, read_progress

    before, train = Dataset.open(judged.dataset_folder), recipe.train
    if train.rows is not None:
        raise ConfigError("--refit-of: trains on all rows, and train.rows leaves some out; unset one of them")
    rows, splits = dataset.split("train").rows, before.manifest.splits
    # A list of a held-out interaction has drawn negatives, too.
    counts = "positives" if dataset.schema.interactions else "rows"
    expected = round(sum(getattr(splits[name], counts) for name in ("train", *before.evaluation_splits)))
    if rows != expected:
        raise ConfigError(
            f"--refit-of: 'train' of {dataset.folder} has {rows:,} rows, and all splits of {before.folder} have "
            f"{expected:,}; preprocess the same files without a split"
        )
    fields = [name for name in type(train).model_fields if name not in RESUMABLE_CHANGES]
    pairs = {"model": (judged.recipe.model, recipe.model)}
    pairs |= {f"train.{name}": (getattr(judged.recipe.train, name), getattr(train, name)) for name in fields}
    for name, (was, now) in pairs.items():
        if was != now:
            raise ConfigError(f"--refit-of: {name} differs from the recipe of {judged.path}; give the same recipe")
    epochs = read_progress(judged.checkpoint("best")).step / train.steps_per_epoch(before.split("train").rows)
    steps = max(1, round(epochs * train.steps_per_epoch(rows)))
    return recipe.model_copy(update={"train": train.model_copy(update={"max_steps": steps, "early_stop": None})})


def train_recipe(
    recipe: Recipe,
    dataset: "Dataset",
    output: Path,
    execution: "Execution",
    *,
    resume: bool,
    origin: "Origin | None" = None,
    refit_of: Path | None = None,
    progress: Progress,
) -> "Metrics":
    """Train a validated recipe into the run folder `output`; return the metrics by held-out split.

    `execution`: see `training_session`. `origin`: what the run is warm-started from. `refit_of`: the run folder whose
    metrics stand for this model.
    """
    from rayrec.training.driver import train
    from rayrec.training.run.folder import RunFolder

    weights: InitialWeights | None = None
    # A run that has a checkpoint continues from it, whether the other runs are still there or not.
    if RunFolder(output).progress() is None:
        if origin is None:
            weights = initial_weights(recipe, dataset)
        else:
            from rayrec.training.warm_start import WarmStart

            weights = WarmStart.open(origin, output.absolute(), recipe, dataset).fill
    return train(
        recipe,
        dataset,
        output,
        execution,
        resume=resume,
        initial_weights=weights,
        origin=origin,
        refit_of=refit_of,
        progress=progress,
    )


def _origin(request: TrainRequest) -> "Origin | None":
    """Return what the run is warm-started from: the checkpoint that it was begun with, as the other run may have gone
    on.
    """
    from rayrec.training.run.folder import RunFolder

    if request.warm_start is None:
        return None
    before = RunFolder(request.output).origin
    if before is not None and before.run == str(request.warm_start.absolute()):
        return replace(before, reset=tuple(sorted(set(request.reset))))
    return RunFolder.open(request.warm_start).as_origin(request.reset)


def _time_to_target(stop: "EarlyStopConfig | None", evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the seconds of training, evaluations included, until the target was reached; None if it was not."""
    if stop is None:
        return {}
    reached = (record["seconds"] for record in evaluations if stop.is_reached(record))
    return {"target": stop.model_dump(), "seconds_to_target": next(reached, None)}


def initial_weights(recipe: Recipe, dataset: "Dataset") -> "InitialWeights | None":
    """Return a function that fills each worker's part of the model; None if the recipe asks for random weights.

    It travels by pickle. Raises ConfigError where the model does not begin with the weights of these folders.
    """
    config = recipe.train.initial_weights
    if config is None:
        return None
    folders = {name: str(folder.absolute()) for name, folder in config.sources.items()}
    _weights(recipe, folders, dataset)
    return partial(_fill, recipe, folders)


def _fill(recipe: Recipe, folders: dict[str, str], step: "TrainStep") -> "RunProgress":
    from rayrec.training.run.folder import RunProgress

    weights = _weights(recipe, folders)
    step.model.load(weights.table, weights.dense())
    return RunProgress()


def _weights(recipe: Recipe, folders: dict[str, str], dataset: "Dataset | None" = None) -> "Weights":
    """Return the model's initial weights, which are read when they are asked for; with a dataset its features are
    compared.
    """
    from rayrec.models.registry import compose_weights

    config = recipe.train.initial_weights
    assert config is not None
    sources = {}
    for name, folder in folders.items():
        try:
            sources[name] = _open(to_path(folder))
            if dataset is not None:
                sources[name].schema.require_same_features(dataset.schema, dataset.folder)
        except UserError as error:
            raise ConfigError(f"train.initial_weights.sources.{name}: {error}") from None
    return compose_weights(recipe.model, sources, config.options)


def _open(folder: Path) -> "ModelFolder | CheckpointModel":
    """Return the weights of a model folder, or of a run folder's best checkpoint."""
    from rayrec.inference.folder.model_folder import ModelFolder
    from rayrec.inference.folder.table_files import is_model_folder
    from rayrec.inference.scorer import CheckpointModel
    from rayrec.training.run.folder import RunFolder

    if is_model_folder(folder):
        return ModelFolder.open(folder)
    run = RunFolder.open(folder)
    return CheckpointModel(run.checkpoint("best"), run.recipe, run.schema)


COMMAND = Command("train", TrainRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
