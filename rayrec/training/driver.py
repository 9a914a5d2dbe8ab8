"""Training and evaluation: Ray Train starts the workers and restarts them when one dies.

A model can also be evaluated in this process alone.
"""

import json
import logging
import os
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rayrec.common.errors import SmallClusterError, UserError
from rayrec.common.machine import ENVIRONMENT_OF_WORKERS
from rayrec.common.process import in_background, interrupts_kept, quick_imports
from rayrec.common.progress import Progress, SilentProgress
from rayrec.common.ray_blocks import has_other_nodes
from rayrec.common.text import ascii_name
from rayrec.config.evaluate import InferencePrecision
from rayrec.config.execution import TRAIN, Execution
from rayrec.config.train import DeviceName
from rayrec.ingest.dataset import Dataset
from rayrec.internals.ray_core import own_session_environment
from rayrec.internals.ray_train import (
    POLL_INTERVAL,
    PREEMPTION_WATCHER,
    START_TIMEOUT,
    environment_of_processes,
    preempted_nodes,
    trainer_of_own_session,
)
from rayrec.recipes import Recipe
from rayrec.store.paths import RemotePath, cache_root
from rayrec.training.mistake import MistakeNote
from rayrec.training.run.display import HistoryDisplay
from rayrec.training.run.folder import METRICS_FILE, RUN_FILE, Origin, RunFolder
from rayrec.training.run.gauges import RunGauges
from rayrec.training.run.history import read_history
from rayrec.training.run.preflight import (
    require_evaluable,
    require_parts,
    require_trainable,
    resolve_device,
)

if TYPE_CHECKING:
    from rayrec.training.loop.worker import Begin
    from rayrec.training.parallel.parallel_model import ParallelModel
    from rayrec.training.parallel.ranks import RankContext

# Elastic training waits so long for the resources of its workers: just after a node was lost Ray Train may still count
# on it, and resources that exist are had at once.
_ELASTIC_START_SECONDS = 15

_NAME_LENGTH = 64
"""Characters of a run folder's name that Ray Train knows the run by; a file system takes 255 bytes."""
_REMOTE_SECONDS = 5.0
"""Pause between two looks at the history of a run in a bucket."""

ENVIRONMENT_OF_OWN_SESSION = {POLL_INTERVAL: "0.5", PREEMPTION_WATCHER: "0", **ENVIRONMENT_OF_WORKERS}
"""What a session on this machine alone is started with, so that training in it begins and ends sooner.

Processes that have the session's own variables are started in advance. A node that takes the whole run with it needs no
process that waits for its end.
"""
Metrics = dict[str, dict[str, float | None]]


class Measured(NamedTuple):
    """The outcome of an evaluation."""

    metrics: dict[str, float | None]
    rows: int
    seconds: float
    """From the first row to the metrics, the start of workers and the loading of weights left out."""


_Work = Callable[[Recipe, Dataset, "RankContext"], Any]


def train(
    recipe: Recipe,
    dataset: Dataset,
    output: Path,
    *,
    resume: bool = False,
    begin: "Begin | None" = None,
    origin: Origin | None = None,
    refit_of: Path | None = None,
    in_this_process: bool = False,
    by_ray_data: bool | None = None,
    progress: Progress | None = None,
) -> Metrics:
    """Train a recipe's model; return the metrics by held-out split, and progressive ones.

    The recipe's workers train it, in a Ray session, or this process does, without one and on all its CPUs. Workers read
    `by_ray_data`, or by threads of their own; by default as `execution_of` says.

    `output` becomes the run folder. With `resume` a run in it is continued exactly where its latest checkpoint left
    it, on any number of workers, and begun if there is no checkpoint. A dead worker restarts the run from the latest
    checkpoint up to `train.max_failures` times. `begin` fills each worker's part of a new run where the recipe has
    `train.initial_weights`, or where it is warm-started from `origin`; it travels to the workers by pickle. `refit_of`:
    the run folder whose metrics stand for this model. Raises UserError, and keeps what was trained so far.
    """
    # Only now: importing torch takes seconds.
    from rayrec.models.registry import build_model

    output = output.absolute()
    device = "cpu" if in_this_process else device_of_workers(recipe)
    require_trainable(recipe, dataset, device)
    model = build_model(recipe.model, dataset.schema, device="meta")
    require_parts(recipe.train, model)
    execution = execution_of(recipe, device, in_this_process=in_this_process, by_ray_data=by_ray_data)
    if resume and (output / RUN_FILE).exists():
        run = RunFolder.resume(output, recipe, dataset, origin)
    else:
        run = RunFolder.create(output, recipe, dataset, model.schema, origin, refit_of)
    run.record(execution)
    (run.path / METRICS_FILE).unlink(missing_ok=True)
    progress = progress or SilentProgress()
    rows = dataset.split("train").rows
    if recipe.train.rows is not None and recipe.train.rows < rows:
        progress.message(f"train.rows: training on the first {recipe.train.rows:,} of {rows:,} rows of 'train'")
    progress.stage("start training" if in_this_process else f"start {recipe.train.workers} workers")
    display = HistoryDisplay(recipe, rows, progress)
    gauges = None if in_this_process else RunGauges(recipe.name, run.path)
    show = partial(_show_history, run.history, display, gauges)
    with in_background(show, "rayrec-history"):
        if in_this_process:
            from rayrec.training.loop.worker import train_worker

            with _only_rank() as context:
                train_worker(recipe, dataset, run, context, begin)
        else:
            work = partial(_train, run.path, begin)
            _run_workers(work, recipe, dataset, run.path, device, execution)
    metrics: Metrics = json.loads((run.path / METRICS_FILE).read_text())
    return metrics


def evaluate(
    recipe: Recipe,
    dataset: Dataset,
    split: str,
    fill: Callable[["ParallelModel"], None],
    *,
    rows: int | None = None,
    precision: InferencePrecision = "fp32",
    in_this_process: bool = False,
    by_ray_data: bool | None = None,
    progress: Progress | None = None,
) -> tuple[Measured, Execution]:
    """Return the metrics of a model over every row of a split, or over its first `rows` ones, each counted once.

    They are computed by the recipe's workers, in a Ray session, or in this process, without one and on all its CPUs
    (see `train`). `precision`: arithmetic of the dense network; of mixed precision the metrics say the error.
    `fill` puts the weights into each worker's part of the model, in place; it travels to the workers by pickle.
    """
    device = "cpu" if in_this_process else device_of_workers(recipe)
    require_evaluable(recipe, dataset)
    execution = execution_of(recipe, device, in_this_process=in_this_process, by_ray_data=by_ray_data)
    progress = progress or SilentProgress()
    progress.stage(f"evaluating on {split}", dataset.head(split, rows).split(split).rows)
    if in_this_process:
        with _only_rank() as context:
            return _evaluate(split, fill, rows, precision, recipe, dataset, context, progress), execution
    with tempfile.TemporaryDirectory(prefix="rayrec-evaluate-") as folder:
        work = partial(_evaluate, split, fill, rows, precision)
        measured: Measured = _run_workers(work, recipe, dataset, Path(folder), device, execution)
    progress.advance(measured.rows)
    return measured, execution


def fill_from_checkpoint(checkpoint: Path, model: "ParallelModel") -> None:
    """Load the weights of a run's checkpoint; `functools.partial(fill_from_checkpoint, path)` suits `evaluate`."""
    from rayrec.training.loop.checkpoint import load_state

    load_state({"model": model.state_dict()}, checkpoint)


def device_of_workers(recipe: Recipe) -> DeviceName:
    """Return the device of the recipe's workers. Raises SmallClusterError where the cluster has room for too few."""
    import ray

    resources = ray.cluster_resources()
    device = resolve_device(recipe.train.device, gpus=resources.get("GPU", 0))
    unit = "GPU" if device == "cuda" else "CPU"
    workers = recipe.train.min_workers or recipe.train.workers
    available = int(resources.get(unit, 0))
    if workers > available:
        raise SmallClusterError(
            f"train.workers: each of {workers} workers needs a {unit}, but Ray has {available}; lower --workers"
        )
    return device


def execution_of(recipe: Recipe, device: DeviceName, *, in_this_process: bool, by_ray_data: bool | None) -> Execution:
    """Return how a recipe is trained or evaluated, in this process or in its Ray session.

    By default tasks of Ray Data read where they can do so on other nodes, or for several GPUs, whose few processes
    would not keep up with them.
    """
    if in_this_process:
        return Execution.here(recipe.train.threads)
    workers = recipe.train.workers
    if by_ray_data is None:
        by_ray_data = has_other_nodes() or (device == "cuda" and workers > 1)
    return Execution.on_ray(TRAIN, workers, reads="Ray Data" if by_ray_data else "threads")


def _run_workers(
    work: _Work, recipe: Recipe, dataset: Dataset, folder: Path, device: DeviceName, execution: Execution
) -> Any:
    """Call `work`, which travels by pickle, on the recipe's number of workers; what it returns on rank 0.

    `folder`: where Ray Train keeps what it knows of the run, on its own node.
    """
    import ray
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    least, mistake = recipe.train.min_workers, MistakeNote.new()
    settings = dict(ENVIRONMENT_OF_OWN_SESSION)
    if len(ray.nodes()) > 1 or least is not None:
        del settings[PREEMPTION_WATCHER]
    if least is not None:
        settings[START_TIMEOUT] = str(_ELASTIC_START_SECONDS)
    own = own_session_environment()
    # What the user has set stands.
    environment = {n: v for n, v in settings.items() if n not in os.environ and (own or {}).get(n) != v}
    make: Callable[..., TorchTrainer] = partial(trainer_of_own_session, environment)
    if own is None:
        from rayrec.internals.train_reservations import ReservingTrainer

        make = ReservingTrainer
    trainer = make(
        _on_worker,
        train_loop_config={
            "work": work,
            "recipe": recipe.model_dump(mode="json"),
            "dataset": str(dataset.folder),
            "reads_by_ray_data": execution.reads == "Ray Data",
            "mistake": mistake,
        },
        torch_config=TorchConfig(backend="nccl" if device == "cuda" else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=recipe.train.workers if least is None else (least, recipe.train.workers),
            elastic_resize_monitor_interval_s=recipe.train.elastic_interval_seconds,
            use_gpu=device == "cuda",
            resources_per_worker={"CPU": 1, "GPU": 1} if device == "cuda" else {"CPU": 1},
        ),
        run_config=RunConfig(
            # Ray resumes a run of the same name by itself; rayrec's own checkpoints decide that. The name is a tag of
            # Ray's metrics and names a folder.
            name=f"{ascii_name(folder.name)[-_NAME_LENGTH:]}-{uuid.uuid4().hex[:8]}",
            storage_path=str((cache_root() if isinstance(folder, RemotePath) else folder) / ".ray_train"),
            failure_config=FailureConfig(max_failures=recipe.train.max_failures),
            logging_config=LoggingConfig(log_level="WARNING"),
        ),
    )
    try:
        with environment_of_processes(environment), interrupts_kept():
            result = trainer.fit()
    except Exception:
        # If no restart is left, Ray's error hides the worker's message.
        mistake.raise_if_any()
        raise
    else:
        mistake.raise_if_any()
    finally:
        mistake.remove()
    return result.return_value


def _train(
    folder: Path,
    begin: "Begin | None",
    recipe: Recipe,
    dataset: Dataset,
    context: "RankContext",
) -> None:
    from rayrec.training.loop.worker import train_worker

    train_worker(recipe, dataset, RunFolder(folder), context, begin, preempted_nodes)


def _evaluate(
    split: str,
    fill: Callable[["ParallelModel"], None],
    rows: int | None,
    precision: InferencePrecision,
    recipe: Recipe,
    dataset: Dataset,
    context: "RankContext",
    progress: Progress | None = None,
) -> Measured:
    from rayrec.models.common.precision import resolve_precision
    from rayrec.training.loop.splits import SplitReader, evaluate_split
    from rayrec.training.parallel.parallel_model import ParallelModel

    model = ParallelModel(recipe, dataset.schema, context)
    fill(model)
    dataset = dataset.head(split, rows)
    reader = SplitReader(dataset, recipe.train.ingest, context)
    resolved = resolve_precision(precision, "cuda" if context.device.type == "cuda" else "cpu", "--precision")
    progress = progress or SilentProgress()
    if resolved.name != "fp32":
        progress.message(f"precision {resolved.name} ({resolved.reason})")
    began = time.perf_counter()
    metrics = evaluate_split(model, reader, split, recipe.evaluate, progress, resolved)
    return Measured(metrics, dataset.split(split).rows, time.perf_counter() - began)


@contextmanager
def _only_rank() -> Iterator["RankContext"]:
    """Make this process the only rank, on the CPUs, during the block."""
    import torch
    import torch.distributed as dist

    from rayrec.training.parallel.ranks import RankContext

    context = RankContext(rank=0, world_size=1, local_world_size=1, device=torch.device("cpu"))
    threads = torch.get_num_threads()
    context.prepare_process()
    # Users can do nothing about warnings of ending parts of torch, and of each replicated table.
    for name in ("torch.fx", "torchrec.distributed.utils"):
        logging.getLogger(name).setLevel(logging.ERROR)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", message="fbgemm::.* an autograd kernel was not registered")
            yield context
    finally:
        dist.destroy_process_group()
        torch.set_num_threads(threads)  # what else this process does has them again


def _on_worker(arguments: dict[str, Any]) -> Any:
    """Do the work in a Ray Train worker; note a user's mistake, as Ray would restart the run for it."""
    with quick_imports():
        import ray.train
        import ray.train.torch

        import rayrec.training.loop.worker  # noqa: F401 -- so that all of it is imported here
        from rayrec.training.parallel.ranks import RankContext

    mistake: MistakeNote = arguments["mistake"]
    if mistake.is_there():
        return None
    ranks = ray.train.get_context()
    context = RankContext(
        rank=ranks.get_world_rank(),
        world_size=ranks.get_world_size(),
        local_world_size=ranks.get_local_world_size(),
        device=ray.train.torch.get_device(),
        reads_by_ray_data=arguments["reads_by_ray_data"],
    )
    context.prepare_process()
    try:
        recipe, dataset = Recipe.model_validate(arguments["recipe"]), Dataset.open(arguments["dataset"])
        return arguments["work"](recipe, dataset, context)
    except UserError as error:
        mistake.write(error)
        raise


def _show_history(path: Path, display: HistoryDisplay, gauges: RunGauges | None, ended: threading.Event) -> None:
    """Show and report the run's history as it grows, until it has ended: the workers write it, the driver reads."""
    seen, is_over = list(read_history(path)), False
    while not is_over:
        is_over = ended.wait(_REMOTE_SECONDS if isinstance(path, RemotePath) else 0.5)
        records = seen
        with suppress(UserError):  # that the bucket fails for a while matters to the workers
            records = list(read_history(path))
        # A resumed worker cuts records off before it adds to them.
        known = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(seen, records, strict=False)))
        display.tick()
        for record in records[known:]:
            display.show(record)
            if gauges is not None:
                gauges.take(record)
        if gauges is not None:
            gauges.report()
        seen = records
