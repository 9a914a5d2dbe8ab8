"""Training and evaluation on a Ray cluster: Ray Train starts the workers and restarts them when one dies."""

import json
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common.background import in_background
from rayrec.common.errors import ConfigError, SmallClusterError, UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config.metric import is_ranking_metric
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe
from rayrec.training.device import DeviceName, resolve_device
from rayrec.training.history import read_history
from rayrec.training.preflight import require_evaluable, require_trainable
from rayrec.training.run_folder import METRICS_FILE, RUN_FILE, RunFolder

if TYPE_CHECKING:
    from rayrec.training.parallel_model import ParallelModel
    from rayrec.training.place import Place

# Where a worker leaves the user's mistake that it met: Ray would restart the run for it as for a dead worker.
_MISTAKE_FILE = ".mistake.json"
_ELASTIC_PLACING_SECONDS = 15
"""For which elastic training waits for the places of its workers. Just after a node was lost Ray Train may still count
on it; what is there is had at once."""

Metrics = dict[str, dict[str, float | None]]


def train(
    recipe: Recipe,
    dataset: Dataset,
    output: Path,
    *,
    resume: bool = False,
    initial_weights: Callable[["ParallelModel"], None] | None = None,
    progress: Progress | None = None,
) -> Metrics:
    """Train a recipe's model; returns the metrics by held-out split. Needs a Ray session.

    `output` becomes the run folder. With `resume` a run in it is continued exactly where its latest checkpoint left
    it, on any number of workers, and begun where there is none. A dead worker restarts the run from the latest
    checkpoint up to `train.max_failures` times. `initial_weights` fills each worker's part of a model that starts, in
    place, where the recipe has `train.initial_weights`; it travels to the workers by pickle. Raises UserError, with
    what was trained so far kept.
    """
    output = output.absolute()
    device = _workers_device(recipe)
    require_trainable(recipe, dataset, device)
    if resume and (output / RUN_FILE).exists():
        run = RunFolder.resume(output, recipe, dataset)
    else:
        run = RunFolder.create(output, recipe, dataset)
    (run.path / METRICS_FILE).unlink(missing_ok=True)
    shown = progress or SilentProgress()
    shown.stage("training", recipe.train.samples_per_epoch(dataset.split("train").rows) * recipe.train.epochs)
    watcher = _HistoryWatcher(run.history, recipe, dataset, shown)
    with in_background(watcher.watch, "rayrec-history"):
        arguments = {"initial_weights": initial_weights}
        _run_workers(_train_on_worker, recipe, dataset, run.path, arguments, device)
    metrics: Metrics = json.loads((run.path / METRICS_FILE).read_text())
    return metrics


def evaluate(
    recipe: Recipe,
    dataset: Dataset,
    split: str,
    fill: Callable[["ParallelModel"], None],
    *,
    progress: Progress | None = None,
) -> dict[str, float | None]:
    """Metrics of a model over every row of a split, each counted once, on the recipe's workers. Needs a Ray session.

    `fill` puts the weights into each worker's part of the model, in place; it travels to the workers by pickle.
    """
    device = _workers_device(recipe)
    require_evaluable(recipe, dataset)
    shown = progress or SilentProgress()
    shown.stage(f"evaluating on {split}", dataset.split(split).rows)
    with tempfile.TemporaryDirectory(dir=dataset.folder.parent, prefix=".rayrec-evaluate-") as folder:
        arguments = {"split": split, "fill": fill}
        _run_workers(_evaluate_on_worker, recipe, dataset, Path(folder), arguments, device)
        metrics: dict[str, float | None] = json.loads((Path(folder) / METRICS_FILE).read_text())
    shown.advance(dataset.split(split).rows)
    return metrics


def fill_from_checkpoint(checkpoint: Path, model: "ParallelModel") -> None:
    """Load the weights of a run's checkpoint; `functools.partial(fill_from_checkpoint, path)` suits `evaluate`."""
    from rayrec.training.checkpoint import load_state

    load_state({"model": model.state_dict()}, checkpoint)


def _workers_device(recipe: Recipe) -> DeviceName:
    """What the recipe's workers compute on. Raises SmallClusterError where the cluster has too few."""
    import ray

    resources = ray.cluster_resources()
    device = resolve_device(recipe.train.device, gpus=resources.get("GPU", 0))
    unit = "GPU" if device == "cuda" else "CPU"
    workers = recipe.train.min_workers or recipe.train.workers
    available = int(resources.get(unit, 0))
    if workers > available:
        raise SmallClusterError(
            f"train.workers: {workers} workers need {workers} {unit}s, the cluster has {available}; lower --workers"
        )
    return device


def _run_workers(
    loop: Callable[[dict[str, Any]], None],
    recipe: Recipe,
    dataset: Dataset,
    folder: Path,
    arguments: dict[str, Any],
    device: DeviceName,
) -> None:
    """Run `loop` on the recipe's number of workers; `folder` is seen by all of them."""
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    mistake, least = folder / _MISTAKE_FILE, recipe.train.min_workers
    mistake.unlink(missing_ok=True)
    trainer = TorchTrainer(
        loop,
        train_loop_config={
            "recipe": recipe.model_dump(mode="json"),
            "dataset": str(dataset.folder),
            "folder": str(folder),
            **arguments,
        },
        torch_config=TorchConfig(backend="nccl" if device == "cuda" else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=recipe.train.workers if least is None else (least, recipe.train.workers),
            elastic_resize_monitor_interval_s=recipe.train.elastic_interval_seconds,
            use_gpu=device == "cuda",
            resources_per_worker={"CPU": 1, "GPU": 1} if device == "cuda" else {"CPU": 1},
        ),
        run_config=RunConfig(
            # Ray resumes a run of the same name by itself; rayrec's own checkpoints decide that.
            name=f"{folder.name}-{uuid.uuid4().hex[:8]}",
            storage_path=str(folder / ".ray_train"),
            failure_config=FailureConfig(max_failures=recipe.train.max_failures),
            logging_config=LoggingConfig(log_level="WARNING"),
        ),
    )
    try:
        with _variables_told(is_elastic=least is not None):
            trainer.fit()
    finally:
        # Where no restart is left, Ray's error hides what the worker said.
        if mistake.exists():
            content = json.loads(mistake.read_text())
            mistake.unlink()
            raise (ConfigError if content["is_config"] else UserError)(content["message"]) from None


@contextmanager
def _variables_told(is_elastic: bool) -> Iterator[None]:
    """Set what Ray Train's processes are to find in their environment, for the block.

    The address of their cluster: where this process is killed, another one of Ray Train's gives the workers' places
    back: it asks the dashboard, which it finds by this variable alone on a machine with several Ray instances. Else the
    places are lost.
    """
    import ray
    from ray.train.v2._internal.constants import ENV_VARS_TO_PROPAGATE, WORKER_GROUP_START_TIMEOUT_S_ENV_VAR

    address = "RAY_ADDRESS"
    ENV_VARS_TO_PROPAGATE.add(address)
    told = {address: ray.get_runtime_context().gcs_address}
    if is_elastic and WORKER_GROUP_START_TIMEOUT_S_ENV_VAR not in os.environ:
        told[WORKER_GROUP_START_TIMEOUT_S_ENV_VAR] = str(_ELASTIC_PLACING_SECONDS)
    before = {name: os.environ[name] for name in told if name in os.environ}
    os.environ.update(told)
    try:
        yield
    finally:
        for name in told:
            del os.environ[name]
        os.environ.update(before)


def _train_on_worker(arguments: dict[str, Any]) -> None:
    from rayrec.training.loop import train_worker

    run = RunFolder.open(arguments["folder"])
    initial_weights = arguments["initial_weights"]
    _on_worker(arguments, lambda recipe, dataset, place: train_worker(recipe, dataset, run, place, initial_weights))


def _evaluate_on_worker(arguments: dict[str, Any]) -> None:
    from rayrec.common.files import write_json
    from rayrec.training.evaluation_pass import evaluate_split
    from rayrec.training.loop import build_parallel_model
    from rayrec.training.splits import SplitReader

    def work(recipe: Recipe, dataset: Dataset, place: "Place") -> None:
        model = build_parallel_model(recipe, dataset, place)
        arguments["fill"](model)
        splits = SplitReader(dataset, recipe.train.ingest, place)
        metrics = evaluate_split(model, splits, arguments["split"], recipe.evaluate)
        if place.rank == 0:
            write_json(Path(arguments["folder"]) / METRICS_FILE, metrics)

    _on_worker(arguments, work)


def _on_worker(arguments: dict[str, Any], work: Callable[..., None]) -> None:
    """Call `work(recipe, dataset, place)` in a Ray Train worker; a user's mistake is left in a file for the driver."""
    import ray.train
    import ray.train.torch

    from rayrec.training.place import Place

    mistake = Path(arguments["folder"]) / _MISTAKE_FILE
    if mistake.exists():
        return
    context = ray.train.get_context()
    place = Place(
        rank=context.get_world_rank(),
        world_size=context.get_world_size(),
        local_world_size=context.get_local_world_size(),
        device=ray.train.torch.get_device(),
    )
    place.prepare_process()
    try:
        work(Recipe.model_validate(arguments["recipe"]), Dataset.open(arguments["dataset"]), place)
    except UserError as error:
        from rayrec.common.files import write_json

        write_json(mistake, {"message": str(error), "is_config": isinstance(error, ConfigError)})
        raise


class _HistoryWatcher:
    """Shows a run's history as it grows: the workers write it, the driver only reads."""

    def __init__(self, path: Path, recipe: Recipe, dataset: Dataset, progress: Progress) -> None:
        self._path, self._recipe, self._progress = path, recipe, progress
        self._shown_rows = 0
        self._seen = sum(1 for _ in read_history(path))

    def watch(self, ended: threading.Event) -> None:
        while not ended.wait(0.5):
            self._show_new()
        self._show_new()

    def _show_new(self) -> None:
        records = list(read_history(self._path))
        # A resumed worker cuts records off before it adds to them.
        self._seen = min(self._seen, len(records))
        for record in records[self._seen :]:
            self._show(record)
        self._seen = len(records)

    def _show(self, record: dict[str, Any]) -> None:
        rows = record["step"] * self._recipe.train.global_batch_size
        if rows > self._shown_rows:
            self._progress.advance(rows - self._shown_rows)
            self._shown_rows = rows
        if record["event"] == "train":
            self._progress.note(
                f"loss {record['loss']:.4f}, {record['samples_per_second']:,.0f} samples/s, "
                f"{record['data_wait_share']:.0%} of the time waiting for data"
            )
        elif record["event"] == "evaluate":
            shown = [k for k in record if k in {"auc", "log_loss"} or is_ranking_metric(k)]
            values = ", ".join(f"{k} {record[k]:.4f}" for k in shown if record[k] is not None)
            self._progress.message(f"step {record['step']}: {record['split']} {values}")
        elif record["event"] == "epoch":
            unit = "rows" if self._recipe.train.negatives is None else "samples"
            dropped = f"; the last {record['rows_dropped']} {unit} fill no batch" if record["rows_dropped"] else ""
            self._progress.message(
                f"epoch {record['epoch'] + 1}: {record['batches']} batches on {record['workers']} workers "
                f"({record['device']}, {record['precision']}: {record['precision_reason']}){dropped}"
            )
