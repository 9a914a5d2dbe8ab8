"""Training of a recipe: in this process, or by workers of Ray Train, as an `Execution` says.

Ray Train starts the workers, and starts all of them again when one dies.
"""

import json
import logging
import os
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common import errors
from rayrec.common.errors import DiskError, UserError
from rayrec.common.process import environment, in_background, interrupts_kept, quick_imports
from rayrec.common.progress import Progress, SilentProgress
from rayrec.common.text import ascii_name
from rayrec.config.execution import Execution
from rayrec.ingest.dataset import Dataset
from rayrec.internals.ray_core import note, read_note, remove_note
from rayrec.internals.ray_train import START_TIMEOUT, lean_trainer, preempted_nodes
from rayrec.recipes import Recipe
from rayrec.store.node_copy import shown
from rayrec.store.paths import place_on_this_node
from rayrec.training.run.display import HistoryDisplay, show_history
from rayrec.training.run.folder import METRICS_FILE, RUN_FILE, Origin, RunFolder
from rayrec.training.run.preflight import require_parts, require_trainable

if TYPE_CHECKING:
    from rayrec.training.loop.worker import InitialWeights
    from rayrec.training.parallel.ranks import RankContext

Metrics = dict[str, dict[str, float | None]]
_ONE_AT_A_TIME = threading.Lock()
"""Held by the thread of this process that trains, as torch's process group belongs to all; others wait."""
_ELASTIC_START_SECONDS = 15
"""How long elastic training waits for the resources of its workers before it tries fewer: just after a node was lost
Ray Train may still count on it, and resources that exist are had at once."""
_NAME_LENGTH = 64
"""Characters of a run folder's name that Ray Train knows the run by; a file system takes 255 bytes."""


def train(
    recipe: Recipe,
    dataset: Dataset,
    output: Path,
    execution: Execution,
    *,
    resume: bool = False,
    initial_weights: "InitialWeights | None" = None,
    origin: Origin | None = None,
    refit_of: Path | None = None,
    progress: Progress | None = None,
) -> Metrics:
    """Train a recipe's model; return the metrics by held-out split, and progressive ones.

    `execution` says who trains: the recipe's workers, in a Ray session, or this process, without one and on its CPUs.

    `output` becomes the run folder. With `resume` a run in it is continued exactly where its latest checkpoint left
    it, on any number of workers, and begun if there is no checkpoint. A dead worker restarts the run from the latest
    checkpoint up to `train.max_failures` times. `initial_weights` fills each worker's shards of a new run where the
    recipe has `train.initial_weights`, or where it is warm-started from `origin`; it travels to the workers by pickle.
    `refit_of`: the run folder whose metrics stand for this model. Raises UserError, and keeps what was trained so far.
    """
    # Only now: importing torch takes seconds.
    from rayrec.models.registry import build_model

    # All that can be refused is refused before there is a run folder.
    output, progress = output.absolute(), progress or SilentProgress()
    require_trainable(recipe, dataset, execution.device)
    model = build_model(recipe.model, dataset.schema, device="meta")
    require_parts(recipe.train, model)
    if resume and (output / RUN_FILE).exists():
        run = RunFolder.resume(output, recipe, dataset, origin)
    else:
        run = RunFolder.create(output, recipe, dataset, model.schema, origin, refit_of)
    run.record(execution)
    (run.path / METRICS_FILE).unlink(missing_ok=True)  # of an earlier attempt
    rows = dataset.split("train").rows
    if recipe.train.rows is not None and recipe.train.rows < rows:
        progress.message(f"train.rows: training on the first {recipe.train.rows:,} of {rows:,} rows of 'train'")
    is_here = execution.on == "process"
    progress.stage("start training" if is_here else f"start {recipe.train.workers} workers")
    # Rank 0 writes the history, wherever it is; a thread of this process reads and shows it.
    show = partial(show_history, run, recipe.name, HistoryDisplay(recipe, rows, progress))
    with in_background(show, "rayrec-history"):
        if is_here:
            from rayrec.training.loop.worker import train_worker

            with _ONE_AT_A_TIME, _only_rank() as context:
                train_worker(recipe, dataset, run, context, initial_weights)
        else:
            _train_by_workers(recipe, dataset, run, execution, initial_weights)
    metrics: Metrics = json.loads((run.path / METRICS_FILE).read_text())
    return metrics


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


def _train_by_workers(
    recipe: Recipe, dataset: Dataset, run: RunFolder, execution: Execution, initial_weights: "InitialWeights | None"
) -> None:
    """Train on the recipe's number of workers, in a Ray session.

    Raises the UserError that a worker met, and errors of Ray Train where workers died more often than
    `train.max_failures` allows.
    """
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    train, on_gpus = recipe.train, execution.device == "cuda"
    least = train.min_workers
    with _errors_of_workers() as note_key:
        trainer = lean_trainer(
            _on_worker,
            train_loop_config={
                "folder": run.path,
                "initial_weights": initial_weights,
                "recipe": recipe.model_dump(mode="json"),
                "dataset": str(dataset.folder),
                "reads_by_ray_data": execution.reads == "Ray Data",
                "note_key": note_key,
            },
            torch_config=TorchConfig(backend="nccl" if on_gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=train.workers if least is None else (least, train.workers),
                elastic_resize_monitor_interval_s=train.elastic_interval_seconds,
                use_gpu=on_gpus,
                resources_per_worker={"CPU": 1, "GPU": 1} if on_gpus else {"CPU": 1},
            ),
            run_config=RunConfig(
                # Ray resumes a run of the same name by itself; rayrec's own checkpoints decide that. The name is a tag
                # of Ray's metrics and names a folder.
                name=f"{ascii_name(run.path.name)[-_NAME_LENGTH:]}-{uuid.uuid4().hex[:8]}",
                storage_path=str(place_on_this_node(run.path) / ".ray_train"),
                failure_config=FailureConfig(max_failures=train.max_failures),
                logging_config=LoggingConfig(log_level="WARNING"),
            ),
        )
        # Ray Train hands its own variables on to its processes. What the user has set stands.
        elastic = {START_TIMEOUT: os.environ.get(START_TIMEOUT, str(_ELASTIC_START_SECONDS))}
        with environment({} if least is None else elastic), interrupts_kept():
            trainer.fit()


def _on_worker(arguments: dict[str, Any]) -> None:
    """Train in a worker; Ray Train calls it with `train_loop_config`, which travels by pickle."""
    with quick_imports():
        import ray.train
        import ray.train.torch

        from rayrec.training.loop.worker import train_worker
        from rayrec.training.parallel.ranks import RankContext

    note_key: str = arguments["note_key"]
    if read_note(note_key) is not None:
        return  # Ray restarts a run also for a user's mistake, which would be met again
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
        run, weights = RunFolder(arguments["folder"]), arguments["initial_weights"]
        train_worker(recipe, dataset, run, context, weights, preempted_nodes)
    except UserError as error:
        # Its paths are those of this node; of a disk, which is this node's too, nothing else would be true.
        text = str(error) if isinstance(error, DiskError) else shown(str(error))
        note(note_key, json.dumps([type(error).__name__, text]).encode())
        raise


@contextmanager
def _errors_of_workers() -> Iterator[str]:
    """Yield the key of a note in the Ray session; raise at the end of the block the first UserError noted there.

    All workers and the driver see it, whatever nodes they are on. Ray's own error hides a worker's message.
    """
    key, failure = f"rayrec-error-{uuid.uuid4().hex}", None
    try:
        yield key
    except Exception as error:
        failure = error
    noted = read_note(key)
    if noted is not None:
        remove_note(key)
        kind, text = json.loads(noted)
        raise getattr(errors, kind)(text) from None
    if failure is not None:
        raise failure
