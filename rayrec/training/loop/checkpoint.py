"""Checkpoints through torch.distributed.checkpoint: whole or absent, loadable on any number of workers.

One folder a checkpoint, `step-00001234/`: the shards as DCP writes them, each by its rank, and `manifest.json`, which
comes last. Without it, a folder is no checkpoint, so that a kill at any moment leaves the previous one intact.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rayrec.common.disk_errors import disk_error
from rayrec.common.errors import first_failure
from rayrec.config.evaluate import higher_is_better
from rayrec.config.train import CheckpointConfig
from rayrec.internals.torch_checkpoint import load, save
from rayrec.store.artifact import MANIFEST_FILE, Parent, StoredFile
from rayrec.store.files import files_below, remove, write_json
from rayrec.store.tensors import streams_of
from rayrec.training.loop.step import TrainStep
from rayrec.training.run.folder import (
    CHECKPOINT_INDEX_FILE,
    CheckpointManifest,
    RunProgress,
    checkpoint_name,
    checkpoint_steps,
    read_progress,
)

T = TypeVar("T")


class Checkpoints:
    """The checkpoints of one run. `save` and `load` are collectives; rank 0 does the rest."""

    def __init__(
        self, folder: Path, config: CheckpointConfig, made_of: Mapping[str, Parent] = MappingProxyType({})
    ) -> None:
        """`made_of`: for the manifests, of which rank 0 alone needs to know."""
        self._folder, self._config, self._made_of = folder, config, dict(made_of)

    def latest(self) -> RunProgress | None:
        """Return the progress of the latest checkpoint, if there is one. A collective."""
        steps = checkpoint_steps(self._folder)
        return _of_rank_0(read_progress(self._folder / checkpoint_name(steps[-1])) if steps else None)

    def best(self) -> RunProgress | None:
        """Return the progress of the checkpoint with the best value of `keep_best`, if there is one. A collective."""
        return _of_rank_0(self._best())

    def _best(self) -> RunProgress | None:
        metric = self._config.keep_best
        if metric is None:
            return None
        sign = 1 if higher_is_better(metric) else -1
        found = (read_progress(self._folder / checkpoint_name(step)) for step in checkpoint_steps(self._folder))
        measured = [progress for progress in found if progress.metrics.get(metric) is not None]
        return max(measured, key=lambda progress: (sign * progress.metrics[metric], progress.step), default=None)

    def save(self, step: TrainStep, progress: RunProgress) -> None:
        """Write a checkpoint, then delete those that the recipe does not keep. A collective."""
        target, is_rank_zero = self._folder / checkpoint_name(progress.step), dist.get_rank() == 0
        if _of_rank_0((target / MANIFEST_FILE).exists()):
            return  # of the same step of the same run, so it has the same values
        if is_rank_zero:
            remove(target)  # what an attempt that died left, perhaps on more ranks
        dist.barrier()
        _save_state(step.state_dict(), target)
        if is_rank_zero:
            # Only now it is a checkpoint. Of its files the sizes alone are listed: to read all of them again would take
            # as long as to write them.
            files = (StoredFile(path=name, bytes=size, sha256=None) for name, size in files_below(target).items())
            CheckpointManifest(made_of=self._made_of, files=tuple(files), progress=progress).save(target)
            self.prune()
        dist.barrier()

    def load(self, step: TrainStep, progress: RunProgress) -> None:
        """Load the checkpoint of `progress.step` in place, whatever number of workers wrote it."""
        state = step.state_dict()
        load_state(state, self._folder / checkpoint_name(progress.step))
        step.finish_loading(state, progress.steps_before + progress.step, progress.loss_scale)

    def prune(self) -> None:
        """Keep the last ones and the best one, and list them in `index.json`. Rank 0 alone calls it."""
        steps, best = checkpoint_steps(self._folder), self._best()
        kept = {*steps[-self._config.keep_last :], *([best.step] if best is not None else [])}
        names = [checkpoint_name(step) for step in steps if step in kept]
        index = {
            "latest": checkpoint_name(steps[-1]),
            "best": checkpoint_name(best.step) if best is not None else None,
            "metric": self._config.keep_best,
            "checkpoints": names,
        }
        write_json(self._folder / CHECKPOINT_INDEX_FILE, index)
        for folder in self._folder.glob("step-*"):
            if folder.name not in names:  # those without a manifest, too
                remove(folder)


def _of_rank_0(value: T) -> T:
    """Return the value that rank 0 has: the other ranks may be on nodes that do not see the run folder. A
    collective.
    """
    values = [value]
    dist.broadcast_object_list(values, src=0, device=torch.device("cuda" if dist.get_backend() == "nccl" else "cpu"))
    return values[0]


def _save_state(state: dict[str, Any], checkpoint: Path) -> None:
    try:
        save(state, checkpoint, streams_of(checkpoint))
    except CheckpointException as error:
        failure = first_failure(error.failures, f"{checkpoint}: cannot be written")
        raise disk_error(failure, [checkpoint]) or failure from None


def load_state(state: dict[str, Any], checkpoint: Path) -> None:
    """Fill the tensors of `state` in place from `checkpoint`. Raises UserError where it does not fit."""
    try:
        load(state, checkpoint, streams_of(checkpoint))
    except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
        raise first_failure(error.failures, f"{checkpoint}: cannot be loaded into this model") from None
