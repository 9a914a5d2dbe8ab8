"""Keeps the numbers of a run: history.jsonl, one JSON object a line, and TensorBoard and MLflow."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common.errors import ConfigError
from rayrec.common.files import write_atomically
from rayrec.recipes import Recipe

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

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
    """The records of a history file, whole lines only; nothing if the file is absent."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


@contextmanager
def open_trackers(run: Path, recipe: Recipe, first_step: int) -> Iterator[list[Tracker]]:
    """The trackers that the recipe asks for, open within the block; on rank 0 alone."""
    tracking, trackers = recipe.train.tracking, list[Tracker]()
    with ExitStack() as stack:
        if tracking.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # Events after the step that a run resumes from are hidden, as the run makes them again.
            writer = stack.enter_context(SummaryWriter(str(run / "tensorboard"), purge_step=first_step))
            trackers.append(partial(_write_events, writer))
        if tracking.mlflow is not None:
            try:
                import mlflow
            except ImportError:
                raise ConfigError(
                    "train.tracking.mlflow: MLflow is not installed; install the extra (pip install 'rayrec[mlflow]')"
                ) from None
            mlflow.set_tracking_uri(tracking.mlflow.tracking_uri)
            mlflow.set_experiment(tracking.mlflow.experiment)
            stack.enter_context(mlflow.start_run(run_name=run.name))
            mlflow.log_params(_flat(recipe.model_dump(mode="json")))
            trackers.append(mlflow.log_metrics)
        yield trackers


def _write_events(writer: "SummaryWriter", values: dict[str, float], step: int) -> None:
    for name, value in values.items():
        writer.add_scalar(name, value, step)
    writer.flush()


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): str(value)}
