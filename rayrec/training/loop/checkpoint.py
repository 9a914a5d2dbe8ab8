"""Checkpoints through torch.distributed.checkpoint: whole or absent, loadable on any number of workers.

One folder a checkpoint, `step-00001234/`: the shards as DCP writes them, and `progress.json`. It is written under
another name and renamed when every rank is done, so that a kill at any moment leaves the previous one intact.
"""

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from rayrec.common.errors import UserError
from rayrec.common.files import write_json
from rayrec.config.evaluate import higher_is_better
from rayrec.config.train import CheckpointConfig
from rayrec.internals.torch_checkpoint import load
from rayrec.training.loop.step import TrainStep
from rayrec.training.run.folder import (
    CHECKPOINT_INDEX_FILE,
    PROGRESS_FILE,
    RunProgress,
    checkpoint_name,
    checkpoint_steps,
    read_progress,
)

_UNFINISHED = ".unfinished-"


class Checkpoints:
    """The checkpoints of one run. `save` and `load` are collectives; rank 0 does the rest."""

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self._folder = folder
        self._config = config

    def best(self) -> RunProgress | None:
        """The progress of the checkpoint with the best value of `keep_best`, if there is one."""
        metric = self._config.keep_best
        if metric is None:
            return None
        sign = 1 if higher_is_better(metric) else -1
        found = (read_progress(self._folder / checkpoint_name(step)) for step in checkpoint_steps(self._folder))
        measured = [progress for progress in found if progress.metrics.get(metric) is not None]
        return max(measured, key=lambda progress: (sign * progress.metrics[metric], progress.step), default=None)

    def save(self, step: TrainStep, progress: RunProgress) -> None:
        """Write a checkpoint, then delete those that the recipe does not keep."""
        target = self._folder / checkpoint_name(progress.step)
        temporary = self._folder / f"{_UNFINISHED}{target.name}"
        if dist.get_rank() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            for remains in self._folder.glob(f"{_UNFINISHED}*"):
                shutil.rmtree(remains)
        dist.barrier()
        dcp.save(step.state_dict(), checkpoint_id=temporary)
        if dist.get_rank() == 0:
            write_json(temporary / PROGRESS_FILE, asdict(progress))
            if target.exists():
                # Of the same step of the same run, so it has the same values; it is never away, not even for a moment.
                shutil.rmtree(temporary)
            else:
                temporary.rename(target)
            self.prune()
        dist.barrier()

    def load(self, step: TrainStep, progress: RunProgress) -> None:
        """Load the checkpoint of `progress.step` in place, whatever number of workers wrote it."""
        state = step.state_dict()
        load_state(state, self._folder / checkpoint_name(progress.step))
        step.finish_loading(state, progress.step, progress.loss_scale)

    def prune(self) -> None:
        """Keep the last ones and the best one, and list them in `index.json`. Rank 0 alone calls it."""
        steps, best = checkpoint_steps(self._folder), self.best()
        kept = {*steps[-self._config.keep_last :], *([best.step] if best is not None else [])}
        index = {
            "latest": checkpoint_name(steps[-1]),
            "best": checkpoint_name(best.step) if best is not None else None,
            "metric": self._config.keep_best,
            "checkpoints": [checkpoint_name(step) for step in steps if step in kept],
        }
        write_json(self._folder / CHECKPOINT_INDEX_FILE, index)
        for step in steps:
            if step not in kept:
                shutil.rmtree(self._folder / checkpoint_name(step))


def load_state(state: dict[str, Any], checkpoint: Path) -> None:
    """Fill the tensors of `state` in place from `checkpoint`. Raises UserError where it does not fit."""
    try:
        load(state, checkpoint)
    except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
        reason = next(iter(error.failures.values()))[0]
        raise UserError(f"{checkpoint}: cannot be loaded into this model: {reason}") from None
