"""Where the numbers of a run go: history.jsonl, one JSON object a line, and TensorBoard and MLflow."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from rayrec.common.errors import ConfigError
from rayrec.common.files import write_atomically
from rayrec.recipes import Recipe


class History:
    """The writer of history.jsonl on rank 0; each line is on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut_after(self, step: int) -> None:
        """Drop records of steps beyond `step`: a resumed run makes them again. Also drops a torn last line."""
        if self._path.exists():
            kept = [json.dumps(record) + "\n" for record in read_history(self._path) if record["step"] <= step]
            write_atomically(self._path, "".join(kept))

    def append(self, record: dict[str, Any]) -> None:
        """Add a record, which has a `step` and values that JSON can hold."""
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a history file, whole lines only; nothing if the file is absent."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


class Tracker(Protocol):
    """A sink of scalars, on rank 0 alone."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    """TensorBoard events in `tensorboard/` of the run folder."""

    def __init__(self, run: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Events after the step that a run resumes from are hidden, as the run makes them again.
        self._writer = SummaryWriter(str(run / "tensorboard"), purge_step=first_step)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflowTracker:
    """An MLflow run with the name of the run folder."""

    def __init__(self, run: Path, recipe: Recipe) -> None:
        config = recipe.train.tracking.mlflow
        assert config is not None
        try:
            import mlflow
        except ImportError:
            raise ConfigError(
                "train.tracking.mlflow: MLflow is not installed; install the extra (pip install 'rayrec[mlflow]')"
            ) from None
        self._mlflow = mlflow
        mlflow.set_tracking_uri(config.tracking_uri)
        mlflow.set_experiment(config.experiment)
        mlflow.start_run(run_name=run.name)
        mlflow.log_params(_flat(recipe.model_dump(mode="json")))

    def log(self, values: dict[str, float], step: int) -> None:
        self._mlflow.log_metrics(values, step=step)

    def close(self) -> None:
        self._mlflow.end_run()


def open_trackers(run: Path, recipe: Recipe, first_step: int) -> list[Tracker]:
    """The trackers that the recipe asks for."""
    trackers: list[Tracker] = []
    if recipe.train.tracking.tensorboard:
        trackers.append(TensorBoardTracker(run, first_step))
    if recipe.train.tracking.mlflow is not None:
        trackers.append(MLflowTracker(run, recipe))
    return trackers


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        return {k: v for name, inner in value.items() for k, v in _flat(inner, f"{prefix}{name}.").items()}
    return {prefix.removesuffix("."): str(value)}
