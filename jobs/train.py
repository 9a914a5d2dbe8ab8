"""`rayrec train`: trains a recipe's model on a dataset."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.command import Command, Result, TrainingRecipeRequest, main
from jobs.initial_weights import initial_weights
from rayrec.common.files import require_absent
from rayrec.common.progress import Progress
from rayrec.storage.location import Folder

if TYPE_CHECKING:
    from rayrec.config.train import EarlyStopConfig
    from rayrec.ingest.dataset import Dataset
    from rayrec.recipes import Recipe
    from rayrec.training.driver import Metrics
    from rayrec.training.run.folder import RunFolder


class TrainRequest(TrainingRecipeRequest):
    """Train a recipe's model on a dataset folder, with Ray Train and TorchRec."""

    data: Folder
    """Dataset folder, the output of `rayrec preprocess`."""
    output: Folder
    """Run folder to write; must not exist, unless with --resume."""
    resume: bool = False
    """Continue the run in --output from its latest checkpoint."""


def run(request: TrainRequest, progress: Progress) -> Result:
    """Train, and evaluate on every held-out split; `rows` counts those trained on."""
    from rayrec.ingest.dataset import Dataset
    from rayrec.training.run.folder import RunFolder

    recipe = request.load_recipe()
    dataset = Dataset.open(request.data)
    if request.resume:
        RunFolder.open(request.output)
    else:
        require_absent(request.output)
    # Imported after the checks: a mistake is answered at once, not when torch has been loaded.
    from cluster.ray_session import ray_session

    with ray_session():
        metrics = train_recipe(recipe, dataset, request.output, resume=request.resume, progress=progress)
    run_folder = RunFolder.open(request.output)
    reached = run_folder.progress()
    assert reached is not None
    return Result(
        command="train",
        output=request.output,
        rows=reached.step * recipe.train.global_batch_size,
        metrics=metrics,
        details={
            "steps": reached.step,
            "training_seconds": reached.seconds,
            **_time_to_target(recipe.train.early_stop, run_folder),
        },
    )


def train_recipe(recipe: "Recipe", dataset: "Dataset", output: Path, *, resume: bool, progress: Progress) -> "Metrics":
    """Train a validated recipe into the run folder `output`; the metrics by held-out split. Needs a Ray session."""
    from rayrec.training.driver import train
    from rayrec.training.run.folder import RunFolder

    # A run that has a checkpoint goes on from it, whether the other runs are still there or not.
    is_new = RunFolder(output.absolute()).progress() is None
    weights = initial_weights(recipe, dataset) if is_new else None
    return train(recipe, dataset, output, resume=resume, initial_weights=weights, progress=progress)


def _time_to_target(stop: "EarlyStopConfig | None", run: "RunFolder") -> dict[str, Any]:
    """Seconds of training, evaluations included, until the target was reached; None if it was not."""
    from rayrec.training.run.history import read_history

    if stop is None:
        return {}
    reached = (r["seconds"] for r in read_history(run.history) if r["event"] == "evaluate" and stop.is_reached(r))
    return {"target": stop.model_dump(), "seconds_to_target": next(reached, None)}


COMMAND = Command("train", TrainRequest, run)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
