"""Workers of Ray Train: it starts them, and starts all of them again when one dies."""

import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayrec.common import errors
from rayrec.common.errors import DiskError, UserError
from rayrec.common.process import environment, interrupts_kept, quick_imports
from rayrec.common.text import ascii_name
from rayrec.config.execution import Execution
from rayrec.ingest.dataset import Dataset
from rayrec.internals.ray_core import note, read_note, remove_note
from rayrec.internals.ray_train import START_TIMEOUT, lean_trainer
from rayrec.recipes import Recipe
from rayrec.store.node_copy import shown
from rayrec.store.paths import place_on_this_node

if TYPE_CHECKING:
    from rayrec.training.parallel.ranks import RankContext

Work = Callable[[Recipe, Dataset, "RankContext"], Any]
"""What each worker calls; it travels by pickle."""

_ELASTIC_START_SECONDS = 15
"""How long elastic training waits for the resources of its workers before it tries fewer: just after a node was lost
Ray Train may still count on it, and resources that exist are had at once."""
_NAME_LENGTH = 64
"""Characters of a run folder's name that Ray Train knows the run by; a file system takes 255 bytes."""


def run_workers(work: Work, recipe: Recipe, dataset: Dataset, folder: Path, execution: Execution) -> Any:
    """Call `work` on the recipe's number of workers, in a Ray session; return what it returns on rank 0.

    `folder`: where Ray Train keeps what it knows of the run, on its own node. Raises the UserError that a worker met,
    and errors of Ray Train where workers died more often than `train.max_failures` allows.
    """
    from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig

    train, on_gpus = recipe.train, execution.device == "cuda"
    least = train.min_workers
    with _errors_of_workers() as note_key:
        trainer = lean_trainer(
            _on_worker,
            train_loop_config={
                "work": work,
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
                name=f"{ascii_name(folder.name)[-_NAME_LENGTH:]}-{uuid.uuid4().hex[:8]}",
                storage_path=str(place_on_this_node(folder) / ".ray_train"),
                failure_config=FailureConfig(max_failures=train.max_failures),
                logging_config=LoggingConfig(log_level="WARNING"),
            ),
        )
        # Ray Train hands its own variables on to its processes. What the user has set stands.
        elastic = {START_TIMEOUT: os.environ.get(START_TIMEOUT, str(_ELASTIC_START_SECONDS))}
        with environment({} if least is None else elastic), interrupts_kept():
            return trainer.fit().return_value


def _on_worker(arguments: dict[str, Any]) -> Any:
    """Do the work in a worker."""
    with quick_imports():
        import ray.train
        import ray.train.torch

        import rayrec.training.loop.worker  # noqa: F401 -- so that all of it is imported here
        from rayrec.training.parallel.ranks import RankContext

    note_key: str = arguments["note_key"]
    if read_note(note_key) is not None:
        return None  # Ray restarts a run also for a user's mistake, which would be met again
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
