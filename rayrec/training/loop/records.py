"""Records of a run: history, trackers, the sharding plan, and checkpoints.

A checkpoint is whole or absent, and loads on any number of workers. It is one folder, `step-00001234/`: the shards as
torch.distributed.checkpoint writes them, each by its rank, and `manifest.json`, which comes last. Without it, a folder
is no checkpoint, so that a kill at any moment leaves the previous one intact.
"""

import math
import resource
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from rayrec.common.disk_errors import disk_error
from rayrec.common.errors import UserError, first_failure
from rayrec.config.evaluate import higher_is_better
from rayrec.config.optimizers import MAIN_PART
from rayrec.config.train import CheckpointConfig
from rayrec.ingest.loader import EpochLoader
from rayrec.internals.torch_checkpoint import load, save
from rayrec.metrics.binary import BinaryMetrics, compute_over_ranks
from rayrec.models.common.batch import Batch
from rayrec.models.common.precision import Precision
from rayrec.recipes import Recipe
from rayrec.store.artifact import MANIFEST_FILE, Parent, StoredFile
from rayrec.store.files import files_below, remove, write_json
from rayrec.store.tensors import streams_of
from rayrec.training.loop.step import StepOutcome, TrainStep
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.parallel.sharding_plan import ShardingPlan
from rayrec.training.run.folder import (
    CHECKPOINT_INDEX_FILE,
    PLAN_FILE,
    CheckpointManifest,
    RunFolder,
    RunProgress,
    checkpoint_name,
    checkpoint_steps,
    read_progress,
)
from rayrec.training.run.history import (
    PLACING,
    PROGRESSIVE,
    TRAINING,
    Tracker,
    append_history,
    cut_history,
    open_trackers,
)

T = TypeVar("T")


@dataclass
class _Window:
    """Sums between two records of the history."""

    loss: torch.Tensor
    """() Sum over the steps of this rank's share of the mean loss."""
    overflows: torch.Tensor
    """() Steps that gradients overflowed in, and that changed nothing."""
    started: float
    steps: int = 0
    rows: int = 0
    """Rows on all ranks."""
    waited: float = 0.0
    """Seconds without a batch to work on."""


def start_history(run: RunFolder) -> None:
    """Drop the records of steps to be repeated, and record that the model is being made. Rank 0 calls it first."""
    reached = run.progress() or RunProgress()
    cut_history(run.history, reached.step)
    append_history(run.history, _phase(reached, PLACING))


class RunRecorder:
    """The records and checkpoints of one run. Every rank has a recorder, and rank 0 writes the files."""

    def __init__(
        self, recipe: Recipe, run: RunFolder, context: RankContext, step: TrainStep, precision: Precision
    ) -> None:
        self._recipe, self._run, self._context, self._step, self._precision = recipe, run, context, step, precision
        self._is_rank_zero = context.rank == 0
        made_of = run.made_of if self._is_rank_zero else {}
        self._checkpoints = Checkpoints(run.checkpoints, recipe.train.checkpoint, made_of)
        self._trackers: list[Tracker] = []
        self._window = self._new_window()
        self._scored: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._waited_in_epoch = 0.0
        self._saved_step: int | None = None
        self._saved_at = self._began_at = time.perf_counter()
        self._seconds_before = 0.0

    def resume(self) -> RunProgress | None:
        """Load the latest checkpoint, if there is one. A collective."""
        progress = self._checkpoints.latest()
        if progress is not None:
            with self.phase(progress, "load the checkpoint"):
                self._checkpoints.load(self._step, progress)
            self._saved_step, self._seconds_before = progress.step, progress.seconds
            if self._is_rank_zero:
                # The last attempt may have died between a checkpoint and the index of them.
                self._checkpoints.prune()
        return progress

    @contextmanager
    def open(self, progress: RunProgress, plan: ShardingPlan) -> Iterator[None]:
        """Write the sharding plan, and keep history and trackers open, from `progress` on, within the block."""
        with ExitStack() as stack:
            if self._is_rank_zero:
                write_json(self._run.path / PLAN_FILE, plan.as_json())
                self._trackers = stack.enter_context(open_trackers(self._run, self._recipe, progress.step + 1))
            yield

    def begin_epoch(self, progress: RunProgress, loader: EpochLoader) -> None:
        """Record what the epoch has and how it is computed."""
        self._window, self._waited_in_epoch = self._new_window(), 0.0
        self._write({
            "step": progress.step,
            "epoch": progress.epoch,
            "event": "epoch",
            "batches": loader.num_batches,
            "rows_dropped": loader.rows_dropped,
            "workers": self._context.world_size,
            "device": str(self._context.device.type),
            "precision": self._precision.name,
            "precision_reason": self._precision.reason,
        })  # fmt: skip

    def add(self, outcome: StepOutcome, rows: int, waited_in_epoch: float) -> None:
        """Take in one step on `rows` rows, and the seconds that the epoch has waited for batches so far."""
        self._window.loss += outcome.loss
        self._window.steps += 1
        self._window.rows += rows
        self._window.overflows += outcome.overflow
        self._window.waited += waited_in_epoch - self._waited_in_epoch
        self._waited_in_epoch = waited_in_epoch

    def add_scores(self, logits: torch.Tensor, batch: Batch) -> None:
        """Take in what the model gave this rank's rows of a batch before it was trained on them."""
        # They stay on the device until the next record, so that no step waits for it.
        self._scored.append((logits, batch.label, batch.weight))

    @contextmanager
    def phase(self, progress: RunProgress, name: str) -> Iterator[None]:
        """Record that the block does something else than training; the display and `runs` show it."""
        self._write(_phase(progress, name))
        yield
        self._write(_phase(progress, TRAINING))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the block's time out of the steps' speed."""
        began = time.perf_counter()
        yield
        self._window.started += time.perf_counter() - began

    def record_steps(self, progress: RunProgress) -> bool:
        """Record the steps since the last record; True when the time for a checkpoint has come. A collective.

        Raises UserError where the loss is not finite.
        """
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)  # the steps have been given to it, and are not done
        window, now = self._window, time.perf_counter()
        every = self._recipe.train.checkpoint.every_minutes
        due = every is not None and now - self._saved_at >= 60 * every
        seconds = now - window.started
        # One all-reduce: the loss, the share of time spent waiting, and rank 0's clock, which decides for all.
        sums = torch.stack([
            window.loss,
            # Of each rank's own time: their windows do not begin together.
            window.loss.new_tensor(window.waited / seconds / self._context.world_size),
            window.loss.new_tensor(float(due and self._is_rank_zero)),
        ])  # fmt: skip
        dist.all_reduce(sums)
        loss, waited_share, checkpoint_due = sums.tolist()
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is not finite at step {progress.step}: lower train.embedding_optimizer.lr and "
                "train.dense_optimizer.lr (and those of train.parts), or give train.schedule.warmup_steps"
            )
        # `lr_embeddings` and `lr_dense` of the main part, `lr_<part>_embeddings` and `lr_<part>_dense` of others.
        learning_rates: dict[str, float] = {}
        for part, rates in self._step.learning_rates(progress.step).items():
            prefix = "lr_" if part == MAIN_PART else f"lr_{part}_"
            learning_rates |= {f"{prefix}embeddings": rates.embeddings, f"{prefix}dense": rates.dense}
        values = {
            "loss": loss / window.steps,
            **learning_rates,
            "samples_per_second": window.rows / seconds,
            "data_wait_share": waited_share,
            "peak_memory_bytes": self._peak_memory(),
            "overflows": int(window.overflows.item()),
        }
        self._write({"step": progress.step, "epoch": progress.epoch, "event": "train", **values})
        self._track("train", values, progress.step)
        self._record_scores(progress)
        self._window = self._new_window()
        return checkpoint_due > 0

    def _record_scores(self, progress: RunProgress) -> None:
        """Record the metrics of the rows since the last such record, if there are any. A collective."""
        if not self._scored:
            return
        binary = BinaryMetrics.from_config(self._recipe.evaluate)
        binary.update(*(torch.cat(column) for column in zip(*self._scored, strict=True)))
        self._scored.clear()
        metrics = compute_over_ranks(binary)
        record = {"step": progress.step, "epoch": progress.epoch, "event": PROGRESSIVE}
        self._write({**record, **metrics, "sums": binary.sums_by_name})
        self._track(PROGRESSIVE, {name: v for name, v in metrics.items() if v is not None}, progress.step)

    def record_evaluation(
        self, progress: RunProgress, split: str, metrics: Mapping[str, float | None], rows_per_second: float
    ) -> None:
        """Record the metrics and the speed of an evaluation in mid-training."""
        record = {"step": progress.step, "epoch": progress.epoch, "event": "evaluate", "split": split}
        self._write({**record, "seconds": self._seconds(), "rows_per_second": rows_per_second, **metrics})
        self._track(split, progress.metrics, progress.step)

    def record_preemption(self, progress: RunProgress) -> None:
        """Record that a node is about to be taken away."""
        self._write({"step": progress.step, "epoch": progress.epoch, "event": "preemption"})

    def save(self, progress: RunProgress) -> None:
        """Save a checkpoint, unless this step has one. A collective."""
        if self._saved_step == progress.step:
            return
        # A run that continues from here makes no record of the rows before.
        self._record_scores(progress)
        loss_scale = self._step.loss_scale.state_dict() if self._step.loss_scale is not None else None
        with self.phase(progress, "saving a checkpoint"):
            self._run.put_history()  # a run that continues from the checkpoint has no other records of the steps before
            self._checkpoints.save(self._step, replace(progress, seconds=self._seconds(), loss_scale=loss_scale))
        self._saved_step, self._saved_at = progress.step, time.perf_counter()

    def load_best(self, progress: RunProgress) -> None:
        """Load the best checkpoint, if one is kept and it is not that of `progress`. A collective."""
        best = self._checkpoints.best()
        if best is not None and best.step != progress.step:
            with self.phase(progress, "load the best checkpoint"):
                self._checkpoints.load(self._step, best)

    def _write(self, record: dict[str, Any]) -> None:
        if self._is_rank_zero:
            append_history(self._run.history, record)

    def _track(self, group: str, values: Mapping[str, float], step: int) -> None:
        for tracker in self._trackers:
            tracker({f"{group}/{name}": value for name, value in values.items()}, step)

    def _new_window(self) -> _Window:
        loss, overflows = torch.zeros(2, device=self._context.device)
        return _Window(loss, overflows, time.perf_counter())

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._began_at

    def _peak_memory(self) -> int:
        """Return the bytes of the GPU, or of the process on a CPU."""
        if self._context.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._context.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _phase(progress: RunProgress, name: str) -> dict[str, Any]:
    return {"step": progress.step, "epoch": progress.epoch, "event": "phase", "phase": name}


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
        try:
            save(step.state_dict(), target, streams_of(target))
        except CheckpointException as error:
            failure = first_failure(error.failures, f"{target}: cannot be written")
            raise disk_error(failure, [target]) or failure from None
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


def load_state(state: dict[str, Any], checkpoint: Path) -> None:
    """Fill the tensors of `state` in place from `checkpoint`. Raises UserError where it does not fit."""
    try:
        load(state, checkpoint, streams_of(checkpoint))
    except CheckpointException as error:  # a BaseException: `except Exception` would let it pass
        raise first_failure(error.failures, f"{checkpoint}: cannot be loaded into this model") from None
