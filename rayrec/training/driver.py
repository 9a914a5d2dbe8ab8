"""Training and evaluation of a recipe: in this process, or by workers of Ray Train, as an `Execution` says."""

import json
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.process import in_background
from rayrec.common.progress import Progress, SilentProgress
from rayrec.config.execution import Execution
from rayrec.ingest.dataset import Dataset
from rayrec.internals.ray_train import preempted_nodes
from rayrec.recipes import Recipe
from rayrec.training.ray_workers import run_workers
from rayrec.training.run.display import HistoryDisplay, show_history
from rayrec.training.run.folder import METRICS_FILE, RUN_FILE, Origin, RunFolder
from rayrec.training.run.preflight import require_parts, require_trainable

if TYPE_CHECKING:
    from rayrec.training.loop.worker import InitialWeights
    from rayrec.training.parallel.ranks import RankContext

_ONE_AT_A_TIME = threading.Lock()
"""Held by the thread of this process that trains, as torch's process group belongs to all; others wait."""
Metrics = dict[str, dict[str, float | None]]


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

            with _ONE_AT_A_TIME, only_rank() as context:
                train_worker(recipe, dataset, run, context, initial_weights)
        else:
            work = partial(_train, run.path, initial_weights)
            run_workers(work, recipe, dataset, run.path, execution)
    metrics: Metrics = json.loads((run.path / METRICS_FILE).read_text())
    return metrics


def _train(
    folder: Path,
    initial_weights: "InitialWeights | None",
    recipe: Recipe,
    dataset: Dataset,
    context: "RankContext",
) -> None:
    from rayrec.training.loop.worker import train_worker

    train_worker(recipe, dataset, RunFolder(folder), context, initial_weights, preempted_nodes)


@contextmanager
def only_rank() -> Iterator["RankContext"]:
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
