"""Keeps the numbers of a run: history.jsonl, one JSON object a line, and TensorBoard and MLflow."""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.config.evaluate import MAIN_METRICS, is_ranking_metric
from rayrec.config.train import MLflowConfig
from rayrec.recipes import Recipe
from rayrec.store.files import write_atomically, write_json
from rayrec.store.mlflow_server import mlflow_at

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from rayrec.training.run.folder import RunFolder

logger = logging.getLogger(__name__)

MLFLOW_FILE = "mlflow.json"
"""The file of a run folder that names the run of an MLflow server."""

PROGRESSIVE = "progressive"
"""The event of records of progressive evaluation, and its name beside the splits in a run's metrics."""

PLACING, TRAINING = "place the tables", "training"
"""The first phase of each attempt at a run, and the one that the others interrupt."""

Tracker = Callable[[dict[str, float], int], None]
"""Takes in scalars by name, and the step that they belong to."""


def append_history(path: Path, record: dict[str, Any]) -> None:
    """Add a record, which has a `step` and values that JSON can hold; it is on disk when this returns."""
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def cut_history(path: Path, step: int) -> None:
    """Drop records of steps beyond `step`: a resumed run makes them again. Also drops a torn last line."""
    if path.exists():
        kept = [json.dumps(record) + "\n" for record in read_history(path) if record["step"] <= step]
        write_atomically(path, "".join(kept))


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a history file, whole lines only; nothing if the file is absent."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def main_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """AUC, log loss and ranking metrics of a record of the history, as far as it has them and they are defined."""
    shown = [name for name in record if name in MAIN_METRICS or is_ranking_metric(name)]
    return {name: record[name] for name in shown if record[name] is not None}


@contextmanager
def open_trackers(run: "RunFolder", recipe: Recipe, first_step: int) -> Iterator[list[Tracker]]:
    """Yield the trackers that the recipe asks for, open within the block; on rank 0 alone."""
    tracking, trackers = recipe.train.tracking, list[Tracker]()
    with ExitStack() as stack:
        if tracking.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # Events after the step that a run resumes from are hidden, as the run makes them again.
            writer = stack.enter_context(SummaryWriter(str(run.events), purge_step=first_step))
            trackers.append(partial(_write_events, writer))
        if tracking.mlflow is not None:
            trackers.append(stack.enter_context(_mlflow(run.path, recipe, tracking.mlflow)))
        yield trackers


@contextmanager
def _mlflow(run: Path, recipe: Recipe, config: MLflowConfig) -> Iterator[Tracker]:
    """Log to a run of an MLflow server, which is the same one when the run is continued."""
    with mlflow_at(config.tracking_uri) as mlflow:
        mlflow.set_experiment(config.experiment)
        known = mlflow_run_of(run)
        started = mlflow.start_run(run_id=known, run_name=run.name)
        if known is None:
            mlflow.log_params(_flat(recipe.model_dump(mode="json")))
            write_json(run / MLFLOW_FILE, {"run_id": started.info.run_id})

    def log(values: dict[str, float], step: int) -> None:
        # MLflow allows no `@` in a name. In the background: training does not wait for the server, or end without it.
        named = {name.replace("@", "_at_"): value for name, value in values.items()}
        mlflow.log_metrics(named, step=step, synchronous=False)

    status = "FAILED"
    try:
        yield log
        status = "FINISHED"
    finally:
        try:
            mlflow.flush_async_logging()
            mlflow.end_run(status)
        except mlflow.MlflowException as error:
            logger.warning("MLflow at %s may lack the last metrics: %s", config.tracking_uri, error)


def mlflow_run_of(run: Path) -> str | None:
    """Return the MLflow run that a run folder is logged to; None if there is none."""
    path = run / MLFLOW_FILE
    return str(json.loads(path.read_text())["run_id"]) if path.exists() else None


def _write_events(writer: "SummaryWriter", values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
    writer.flush()


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): str(value)}
