"""The training loop, as each worker runs it. Knows torch.distributed, not Ray Train."""

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from rayrec.common.errors import UserError
from rayrec.common.files import write_json
from rayrec.common.units import parse_bytes
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.loader import EpochLoader
from rayrec.models.common.batch import Batch
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.checkpoint import Checkpoints, RunProgress
from rayrec.training.evaluation_pass import evaluate_split
from rayrec.training.history import History
from rayrec.training.loss import BatchTotals
from rayrec.training.parallel_model import ParallelModel
from rayrec.training.place import Place
from rayrec.training.precision import resolve_precision
from rayrec.training.preflight import evaluation_split
from rayrec.training.run_folder import METRICS_FILE, PLAN_FILE, RunFolder
from rayrec.training.sharding import TablePlan, plan_tables
from rayrec.training.splits import SplitReader
from rayrec.training.step import TrainStep
from rayrec.training.tracking import Tracker, open_trackers


def train_worker(
    recipe: Recipe,
    dataset: Dataset,
    run: RunFolder,
    place: Place,
    initial_weights: Callable[[ParallelModel], None] | None = None,
) -> None:
    """Train from the run's latest checkpoint, or from the start, to the end; then evaluate.

    `initial_weights` fills a model that starts, where `train.initial_weights` asks for other weights than random ones.
    Needs the default process group. Every rank calls it with the same arguments but `place`. Raises UserError where the
    data, the recipe or the learning rate does not allow the training.
    """
    _Training(recipe, dataset, run, place).run(initial_weights)


def plan_for(recipe: Recipe, dataset: Dataset, place: Place) -> TablePlan:
    """The sharding plan of a recipe for workers such as `place`; the same on every rank."""
    sharding = recipe.train.sharding
    if sharding.memory_per_worker is not None:
        memory = parse_bytes(sharding.memory_per_worker)
    else:
        memory = min(_of_all_ranks(place.memory_per_worker()))
    return plan_tables(
        build_model(recipe.model, dataset.schema, device="meta").tables,
        recipe.train,
        world_size=place.world_size,
        local_world_size=_workers_of_a_node(place),
        memory_per_worker=memory,
        batch_size=recipe.train.global_batch_size // place.world_size,
    )


def build_parallel_model(
    recipe: Recipe, dataset: Dataset, place: Place, plan: TablePlan | None = None
) -> ParallelModel:
    """A recipe's model with its initial values, spread over the workers by `plan` (by default that of `plan_for`)."""
    plan = plan or plan_for(recipe, dataset, place)
    return ParallelModel(recipe.model, dataset.schema, recipe.train, plan, place.device, _workers_of_a_node(place))


def _workers_of_a_node(place: Place) -> int:
    """As TorchRec wants it, the same on every rank: 1 where nodes have different numbers of workers. A collective."""
    sizes = set(_of_all_ranks(place.local_world_size))
    return sizes.pop() if len(sizes) == 1 else 1


def _of_all_ranks(value: int) -> list[int]:
    values = [0] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@dataclass
class _Window:
    """What is summed up between two records of the history."""

    loss: torch.Tensor
    """() Sum over the steps of this rank's part of the mean loss."""
    started: float
    steps: int = 0
    overflows: int = 0
    waited: float = 0.0
    """Seconds without a batch to work on."""


class _Training:
    """One worker's part in a run."""

    def __init__(self, recipe: Recipe, dataset: Dataset, run: RunFolder, place: Place) -> None:
        self._recipe, self._config, self._dataset, self._run, self._place = recipe, recipe.train, dataset, run, place
        self._precision = resolve_precision(self._config.precision, "cuda" if place.device.type == "cuda" else "cpu")
        self._precision.apply_to_process()
        self._plan = plan_for(recipe, dataset, place)
        rows = dataset.split("train").rows
        self._model = build_parallel_model(recipe, dataset, place, self._plan)
        self._step = TrainStep(self._model, self._config, self._precision, self._config.steps_per_epoch(rows))
        self._splits = SplitReader(
            dataset,
            self._config.ingest,
            place,
            negatives=self._config.negatives,
            recency=self._config.recency,
            whole_groups=self._config.loss.listwise > 0,
        )
        self._evaluation_split = evaluation_split(recipe, dataset)
        self._checkpoints = Checkpoints(run.checkpoints, self._config.checkpoint)
        self._history = History(run.history)
        self._trackers: list[Tracker] = []
        self._progress = RunProgress()
        self._saved_step: int | None = None
        self._saved_at = self._resumed_at = time.perf_counter()
        self._seconds_before = 0.0

    @property
    def _is_chief(self) -> bool:
        return self._place.rank == 0

    def run(self, initial_weights: Callable[[ParallelModel], None] | None) -> None:
        resumed = self._checkpoints.latest()
        if resumed is not None:
            self._checkpoints.load(self._model, self._step, resumed)
            self._progress, self._saved_step, self._seconds_before = resumed, resumed.step, resumed.seconds
        elif self._config.initial_weights is not None:
            assert initial_weights is not None, "the caller reads what train.initial_weights names"
            initial_weights(self._model)
        if self._is_chief:
            if resumed is not None:
                # The last attempt may have died between a checkpoint and the index of them.
                self._checkpoints.prune()
            write_json(self._run.path / PLAN_FILE, self._plan.as_json())
            self._history.cut_after(self._progress.step)
            self._trackers = open_trackers(self._run.path, self._recipe, self._progress.step + 1)
        try:
            while not self._is_done():
                self._train_epoch()
            self._save()
            self._finish()
        finally:
            for tracker in self._trackers:
                tracker.close()

    def _is_done(self) -> bool:
        config = self._config
        return (
            self._progress.epoch >= config.epochs
            or (config.max_steps is not None and self._progress.step >= config.max_steps)
            or self._reached_target()
        )

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, or to an earlier end of the run."""
        loader = self._splits.open(
            "train",
            global_batch_size=self._config.global_batch_size,
            drop_last=True,
            seed=self._config.seed,
            epoch=self._progress.epoch,
            start_batch=self._progress.batch,
        )
        self._announce(loader)
        evaluated_after = _evenly_spaced(loader.num_batches, self._config.evaluations_per_epoch)
        window = self._new_window()
        waited_before = 0.0
        with loader as batches:
            for batch in batches:
                window.waited += loader.wait_seconds - waited_before
                waited_before = loader.wait_seconds
                self._train_on(batch, loader, window)
                self._progress = self._after_batch(loader.num_batches)
                is_last = self._is_done() or self._progress.batch == 0
                checkpoint_due = False
                if self._progress.step % self._config.log_every_steps == 0 or is_last:
                    checkpoint_due = self._record(window)
                    window = self._new_window()
                every = self._config.checkpoint.every_steps
                checkpoint_due |= every is not None and self._progress.step % every == 0
                paused_at = time.perf_counter()
                if self._batches_done(loader.num_batches) in evaluated_after:
                    checkpoint_due |= self._evaluate()
                if checkpoint_due:
                    self._save()
                window.started += time.perf_counter() - paused_at
                if self._is_done():
                    return

    def _train_on(self, batch: Batch, loader: EpochLoader, window: _Window) -> None:
        rows = loader.row_count(self._progress.batch)
        if rows is None or self._dataset.schema.weight is not None:
            sums = torch.stack([batch.weight.sum(), (batch.weight * batch.label).sum()])
            dist.all_reduce(sums)
            totals = BatchTotals(*sums.tolist())
        else:
            totals = BatchTotals(rows, None)
        outcome = self._step(batch, totals, self._progress.step + 1)
        window.loss += outcome.loss
        window.steps += 1
        window.overflows += not outcome.updated

    def _after_batch(self, batches_per_epoch: int) -> RunProgress:
        before = self._progress
        ends_epoch = before.batch + 1 == batches_per_epoch
        return replace(
            before,
            step=before.step + 1,
            epoch=before.epoch + ends_epoch,
            batch=0 if ends_epoch else before.batch + 1,
            metrics={},
        )

    def _batches_done(self, batches_per_epoch: int) -> int:
        return self._progress.batch or batches_per_epoch

    def _new_window(self) -> _Window:
        return _Window(torch.zeros((), device=self._place.device), time.perf_counter())

    def _record(self, window: _Window) -> bool:
        """Write a record of the window's steps; whether the time for a checkpoint has come. A collective."""
        now = time.perf_counter()
        every = self._config.checkpoint.every_minutes
        due = every is not None and now - self._saved_at >= 60 * every
        # One all-reduce: the loss, the time spent waiting, and rank 0's clock, which decides for all.
        sums = torch.stack([
            window.loss,
            window.loss.new_tensor(window.waited / self._place.world_size),
            window.loss.new_tensor(float(due and self._is_chief)),
        ])  # fmt: skip
        dist.all_reduce(sums)
        loss, waited, checkpoint_due = sums.tolist()
        seconds = now - window.started
        step = self._progress.step
        rates = self._step.learning_rates(step)
        values = {
            "loss": loss / window.steps,
            "lr_embeddings": rates.embeddings,
            "lr_dense": rates.dense,
            **({"lr_wide": rates.wide} if self._model.has_wide_part else {}),
            "samples_per_second": window.steps * self._config.global_batch_size / seconds,
            "data_wait_share": waited / seconds,
            "peak_memory_bytes": self._peak_memory(),
            "overflows": window.overflows,
        }
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is not finite at step {step}: lower train.embedding_optimizer.lr and "
                "train.dense_optimizer.lr (and train.wide_optimizer.lr), or give train.schedule.warmup_steps"
            )
        if self._is_chief:
            self._history.append({"step": step, "epoch": self._progress.epoch, "event": "train", **values})
            for tracker in self._trackers:
                tracker.log({f"train/{name}": value for name, value in values.items()}, step)
        return checkpoint_due > 0

    def _evaluate(self) -> bool:
        """Evaluate in mid-training, where the dataset has a split for it; whether it did. A collective."""
        split = self._evaluation_split
        if split is None:
            return False
        metrics = evaluate_split(self._model, self._splits, split, self._recipe.evaluate)
        self._progress = replace(self._progress, metrics={k: v for k, v in metrics.items() if v is not None})
        if self._is_chief:
            record = {"step": self._progress.step, "epoch": self._progress.epoch, "event": "evaluate", "split": split}
            self._history.append({**record, "seconds": self._seconds(), **metrics})
            for tracker in self._trackers:
                tracker.log({f"{split}/{k}": v for k, v in self._progress.metrics.items()}, self._progress.step)
        return True

    def _reached_target(self) -> bool:
        stop = self._config.early_stop
        return stop is not None and stop.is_reached(self._progress.metrics)

    def _save(self) -> None:
        if self._saved_step == self._progress.step:
            return
        loss_scale = self._step.loss_scale.state_dict() if self._step.loss_scale is not None else None
        progress = replace(self._progress, seconds=self._seconds(), loss_scale=loss_scale)
        self._checkpoints.save(self._model, self._step, progress)
        self._saved_step, self._saved_at = progress.step, time.perf_counter()

    def _finish(self) -> None:
        """Evaluate on every held-out split and write the run's metrics: those of the best checkpoint, if one is kept.

        That is the one that evaluation, prediction and export take unless told otherwise.
        """
        best = self._checkpoints.best()
        if best is not None and best.step != self._progress.step:
            self._checkpoints.load(self._model, self._step, best)
        metrics: dict[str, dict[str, float | None]] = {}
        for split in self._dataset.evaluation_splits:
            metrics[split] = evaluate_split(self._model, self._splits, split, self._recipe.evaluate)
        if self._is_chief:
            write_json(self._run.path / METRICS_FILE, metrics)

    def _announce(self, loader: EpochLoader) -> None:
        if self._is_chief:
            record: dict[str, Any] = {
                "step": self._progress.step,
                "epoch": self._progress.epoch,
                "event": "epoch",
                "batches": loader.num_batches,
                "rows_dropped": loader.rows_dropped,
                "workers": self._place.world_size,
                "device": str(self._place.device.type),
                "precision": self._precision.name,
                "precision_reason": self._precision.reason,
            }
            self._history.append(record)

    def _seconds(self) -> float:
        return self._seconds_before + time.perf_counter() - self._resumed_at

    def _peak_memory(self) -> int:
        """Bytes: of the GPU where there is one, else of the process."""
        if self._place.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._place.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _evenly_spaced(batches: int, evaluations: int) -> set[int]:
    """After how many batches of an epoch to evaluate, the last time at its end."""
    return {-(-batches * (k + 1) // evaluations) for k in range(min(evaluations, batches))}
