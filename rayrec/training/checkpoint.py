"""Checkpoints through torch.distributed.checkpoint: whole or absent, loadable on any number of workers.

One folder a checkpoint, `step-00001234/`: the shards as DCP writes them, and `progress.json`. It is written under
another name and renamed when every rank is done, so that a kill at any moment leaves the previous one intact.
"""

import json
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim import Optimizer

from rayrec.common.errors import UserError
from rayrec.common.files import write_json
from rayrec.config.metric import higher_is_better
from rayrec.config.train import CheckpointConfig
from rayrec.training.parallel_model import ParallelModel
from rayrec.training.run_folder import CHECKPOINT_INDEX_FILE
from rayrec.training.step import TrainStep

PROGRESS_FILE = "progress.json"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class RunProgress:
    """How far a run is: with the seed, all that the order of the data depends on."""

    step: int = 0
    """Optimizer steps done; global batches consumed."""
    epoch: int = 0
    batch: int = 0
    """Global batches of `epoch` consumed."""
    seconds: float = 0.0
    """Time spent training, over all attempts."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the evaluation at this step, if there was one."""
    loss_scale: dict[str, float] | None = None


class Checkpoints:
    """The checkpoints of one run. `save` and `load` are collectives; the rest rank 0 does."""

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self._folder = folder
        self._config = config

    def latest(self) -> RunProgress | None:
        """RunProgress of the newest whole checkpoint."""
        steps = checkpoint_steps(self._folder)
        return read_progress(self._folder / folder_name(steps[-1])) if steps else None

    def best(self) -> RunProgress | None:
        """Progress of the checkpoint with the best value of `keep_best`; None where there is none."""
        step = self._best(checkpoint_steps(self._folder))
        return read_progress(self._folder / folder_name(step)) if step is not None else None

    def save(self, model: ParallelModel, step: TrainStep, progress: RunProgress) -> None:
        """Write a checkpoint, then delete those that the recipe does not keep."""
        target = self._folder / folder_name(progress.step)
        temporary = self._folder / f"{_UNFINISHED}{target.name}"
        if dist.get_rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for remains in self._folder.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(remains)
        dist.barrier()
        dcp.save(_state(model, step), checkpoint_id=temporary)
        if dist.get_rank() == 0:
            write_json(temporary / PROGRESS_FILE, asdict(progress))
            if target.exists():
                shutil.rmtree(target)
            temporary.rename(target)
            self.prune()
        dist.barrier()

    def load(self, model: ParallelModel, step: TrainStep, progress: RunProgress) -> None:
        """Load the checkpoint of `progress.step` in place, whatever number of workers wrote it."""
        state = _state(model, step)
        load_state(state, self._folder / folder_name(progress.step))
        for name, optimizer in _dense_optimizers(step).items():
            set_optimizer_state_dict(model.dense_network, optimizer, optim_state_dict=state[name])
        model.table_optimizer.restore_step(progress.step)
        if step.loss_scale is not None and progress.loss_scale is not None:
            step.loss_scale.load_state_dict(progress.loss_scale)

    def prune(self) -> None:
        """Keep the last ones and the best one, and say in `index.json` which they are. Rank 0 alone."""
        steps = checkpoint_steps(self._folder)
        best = self._best(steps)
        kept = set(steps[-self._config.keep_last :]) | ({best} if best is not None else set())
        index = {
            "latest": folder_name(steps[-1]),
            "best": folder_name(best) if best is not None else None,
            "metric": self._config.keep_best,
            "checkpoints": [folder_name(step) for step in steps if step in kept],
        }
        write_json(self._folder / CHECKPOINT_INDEX_FILE, index)
        for step in steps:
            if step not in kept:
                shutil.rmtree(self._folder / folder_name(step))

    def _best(self, steps: list[int]) -> int | None:
        metric = self._config.keep_best
        if metric is None:
            return None
        values = {step: read_progress(self._folder / folder_name(step)).metrics.get(metric) for step in steps}
        sign = 1 if higher_is_better(metric) else -1
        measured = [(sign * value, step) for step, value in values.items() if value is not None]
        return max(measured)[1] if measured else None


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the whole checkpoints in `folder`, ascending."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in folder.glob(f"step-*/{PROGRESS_FILE}"))


def read_progress(checkpoint: Path) -> RunProgress:
    return RunProgress(**json.loads((checkpoint / PROGRESS_FILE).read_text()))


def load_state(state: dict[str, Any], checkpoint: Path) -> None:
    """Fill the tensors of `state` in place from `checkpoint`. Raises UserError where it does not fit."""
    # Flattening drops tables of which this rank has no shard, and the planner then takes the checkpoint for one of an
    # old format of torch's, whose optimizer states have other names.
    planner = DefaultLoadPlanner(flatten_sharded_tensors=False)
    try:
        dcp.load(state, checkpoint_id=checkpoint, planner=planner)
    except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
        reason = next(iter(error.failures.values()))[0]
        raise UserError(f"{checkpoint}: cannot be loaded into this model: {reason}") from None


def _state(model: ParallelModel, step: TrainStep) -> dict[str, Any]:
    state: dict[str, Any] = {"model": model.state_dict(), "table_optimizer": model.table_optimizer.state_dict()}
    for name, optimizer in _dense_optimizers(step).items():
        state[name] = get_optimizer_state_dict(model.dense_network, optimizer)
    return state


def _dense_optimizers(step: TrainStep) -> dict[str, Optimizer]:
    both = {"dense_optimizer": step.dense_optimizer, "wide_optimizer": step.wide_optimizer}
    return {name: optimizer for name, optimizer in both.items() if optimizer is not None}
