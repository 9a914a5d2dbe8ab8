"""The training loop, as each rank runs it. Knows torch.distributed, not Ray Train."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
import torch.distributed as dist

from rayrec.common.disk_errors import naming, temporary_folders
from rayrec.ingest.dataset import Dataset
from rayrec.metrics.binary import progressive_metrics
from rayrec.models.common.batch import Batch
from rayrec.models.common.next_item import ScoresNextItems
from rayrec.models.common.precision import resolve_precision
from rayrec.recipes import Recipe
from rayrec.store.files import write_json
from rayrec.store.growing_files import growing_files
from rayrec.training.loop.micro_batches import BatchTotals
from rayrec.training.loop.records import RunRecorder, start_history
from rayrec.training.loop.splits import SplitReader, evaluate_split
from rayrec.training.loop.step import StepOutcome, TrainStep
from rayrec.training.parallel.parallel_model import ParallelModel
from rayrec.training.parallel.ranks import RankContext
from rayrec.training.run.folder import HISTORY_FILE, METRICS_FILE, RunFolder, RunProgress
from rayrec.training.run.history import PROGRESSIVE, read_history

_NEWS_SECONDS = 2.0
"""About how long it takes until all ranks know what one of them was told."""
InitialWeights = Callable[[TrainStep], RunProgress]
"""Fills a new run's model and optimizers in place, and returns the progress that the run starts with."""


class PreemptionWatch:
    """Tells every rank at the same step that more nodes of the run are about to be taken away.

    The ranks ask each other, which is a wait for a GPU, only after as many steps as take about two seconds. That number
    follows from what they tell each other, so it is the same on all of them.
    """

    def __init__(self, preempted_nodes: Callable[[], int], device: torch.device) -> None:
        """`preempted_nodes`: how many nodes this rank knows to be about to go."""
        self._preempted_nodes, self._device = preempted_nodes, device
        self._interval, self._steps = 1, 0
        self._asked_at = time.perf_counter()
        self._known = 0

    def is_announced(self) -> bool:
        """Return whether nodes are about to go that no earlier call told of.

        Every rank calls it once a step, and some of the calls are collectives.
        """
        self._steps += 1
        if self._steps < self._interval:
            return False
        now = time.perf_counter()
        largest = torch.tensor([self._preempted_nodes(), now - self._asked_at], device=self._device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        nodes, seconds = largest.tolist()
        # Twice as many steps at most: the first ones are slow or fast by chance.
        self._interval = max(1, min(2 * self._interval, int(self._steps * _NEWS_SECONDS / max(seconds, 1e-6))))
        self._steps, self._asked_at = 0, now
        is_news = nodes > self._known
        self._known = max(self._known, int(nodes))
        return is_news


def train_worker(
    recipe: Recipe,
    dataset: Dataset,
    run: RunFolder,
    context: RankContext,
    initial_weights: InitialWeights | None = None,
    preempted_nodes: Callable[[], int] = lambda: 0,
) -> None:
    """Train from the run's latest checkpoint, or from the start, to the end; then evaluate.

    `initial_weights` fills a new run's model where other weights than random ones are asked for. A checkpoint is saved
    as soon as `preempted_nodes`, the number of nodes that are about to be taken away, has grown on any rank. Needs the
    default process group. Every rank calls it with the same arguments but `context` and `preempted_nodes`. Raises
    UserError where the data, the recipe or the learning rate does not allow the training.
    """
    preemption = PreemptionWatch(preempted_nodes, context.device)
    with naming(run.path, *temporary_folders()), _writing(run, context) as run:
        _Training(recipe, dataset, run, context, preemption).run(initial_weights)


@contextmanager
def _writing(run: RunFolder, context: RankContext) -> Iterator[RunFolder]:
    """Yield the run folder, in which rank 0 writes the history and the events."""
    if context.rank == 0:
        with growing_files(run.path, HISTORY_FILE) as growing:
            yield replace(run, growing=growing)
    else:
        yield run


class _Training:
    """One rank of a run.

    Its state is that of the model and the optimizers, which `TrainStep` holds, and `RunProgress`.
    """

    def __init__(
        self, recipe: Recipe, dataset: Dataset, run: RunFolder, context: RankContext, preemption: PreemptionWatch
    ) -> None:
        train = recipe.train.with_batch_of(dataset.split("train").rows, context.world_size)
        if recipe.model.scores_next_items:
            train = train.model_copy(update={"progressive": False})  # no rows are scored
        recipe = recipe.model_copy(update={"train": train})
        self._recipe, self._config, self._dataset = recipe, recipe.train, dataset
        self._run, self._context, self._preemption = run, context, preemption
        if context.rank == 0:
            start_history(run)
        # The model, its tables over the ranks, and the optimizers; in what precision all is computed and sent.
        precision = resolve_precision(self._config.precision, "cuda" if context.device.type == "cuda" else "cpu")
        precision.apply_to_process()
        wire = precision.on_the_wire(self._config.sharding.wire)
        self._model = ParallelModel(recipe, dataset.schema, context, wire, precision.pooled(wire))
        steps_per_epoch = self._config.steps_per_epoch(dataset.split("train").rows)
        self._step = TrainStep(self._model, self._config, precision, steps_per_epoch)
        # The rows of each split in batches, of which every rank reads its own share.
        network = self._model.dense_network
        self._splits = SplitReader(
            dataset,
            self._config.ingest,
            context,
            negatives=self._config.negatives,
            recency=self._config.recency,
            whole_groups=self._config.loss.listwise > 0,
            windows=network.length if isinstance(network, ScoresNextItems) else None,
            candidates=self._config.loss.candidates,
            train_rows=self._config.rows,
        )
        self._evaluation_split = dataset.split_to_judge(self._config.evaluation_split)
        self._recorder = RunRecorder(recipe, run, context, self._step, precision)
        self._progress = RunProgress()

    def run(self, initial_weights: InitialWeights | None) -> None:
        """Train to the end of the run, from where an earlier attempt has come to, and write the run's metrics."""
        recorder = self._recorder
        # An earlier attempt continues from its latest checkpoint. A new run has the weights of other runs, or random
        # ones, which the model was made with.
        resumed = recorder.resume()
        if resumed is not None:
            self._progress = resumed
        elif initial_weights is not None:
            with recorder.phase(self._progress, "load initial weights"):
                self._progress = initial_weights(self._step)
        else:
            assert self._config.initial_weights is None, "the caller reads what train.initial_weights names"
        with recorder.open(self._progress, self._model.plan):
            while not self._is_done():
                self._train_epoch()
            recorder.save(self._progress)
            # The run's metrics are those of the best checkpoint, if one is kept: evaluation, prediction and export take
            # it unless told otherwise.
            recorder.load_best(self._progress)
            metrics = {split: self._metrics(split) for split in self._dataset.evaluation_splits}
            if self._context.rank == 0:
                if self._config.progressive:
                    # Beside the splits: rows that were trained on, each measured before.
                    records = [record for record in read_history(self._run.history) if record["event"] == PROGRESSIVE]
                    metrics[PROGRESSIVE] = progressive_metrics(records)
                self._run.put_history()
                write_json(self._run.path / METRICS_FILE, metrics)

    def _is_done(self) -> bool:
        config, stop = self._config, self._config.early_stop
        return (
            self._progress.epoch >= config.epochs
            or (config.max_steps is not None and self._progress.step >= config.max_steps)
            or (stop is not None and stop.is_reached(self._progress.metrics))
        )

    def _train_epoch(self) -> None:
        """Train to the end of the epoch, or to an earlier end of the run."""
        config, recorder = self._config, self._recorder
        # A resumed run takes up the epoch at its next batch: the order depends on seed and epoch alone.
        loader = self._splits.open(
            "train",
            global_batch_size=config.global_batch_size,
            drop_last=config.drops_last,
            seed=config.seed,
            epoch=self._progress.epoch,
            start_batch=self._progress.batch,
        )
        recorder.begin_epoch(self._progress, loader)
        with loader as batches:
            for batch, following in self._model.with_next(batches):
                # One optimizer step on this rank's share of a global batch; the ids of the next one are sent meanwhile.
                waited, rows = loader.wait_seconds, loader.row_count(self._progress.batch)
                outcome = self._train_on(batch, following, rows, loader.share(self._progress.batch))
                recorder.add(outcome, config.global_batch_size if rows is None else rows, waited)
                if config.progressive and self._progress.epoch == 0:
                    recorder.add_scores(outcome.logits, batch)
                # From here on the progress is that after the step.
                self._progress = self._next_progress(loader.num_batches)
                step, ends_epoch = self._progress.step, self._progress.batch == 0
                # A checkpoint is due after so many steps or minutes, which rank 0's clock says with the record, when a
                # node is about to go, and with an evaluation, whose metrics decide which one is the best.
                checkpoint_due = config.checkpoint.every_steps is not None and step % config.checkpoint.every_steps == 0
                if step % config.log_every_steps == 0 or ends_epoch or self._is_done():
                    checkpoint_due |= recorder.record_steps(self._progress)
                if self._preemption.is_announced():
                    recorder.record_preemption(self._progress)
                    checkpoint_due = True
                with recorder.paused():
                    if self._evaluates_now(loader.num_batches):
                        self._evaluate()
                        checkpoint_due = True
                    if checkpoint_due:
                        recorder.save(self._progress)
                if self._is_done():
                    return

    def _train_on(self, batch: Batch, following: Batch | None, rows: int | None, share: float) -> StepOutcome:
        """Train on a batch of `rows` rows over all ranks; None if only the batch tells. `share`: of a full batch."""
        if rows is None or self._dataset.schema.weight is not None:
            sums = torch.stack([batch.weight.sum(), (batch.weight * batch.label).sum()])
            dist.all_reduce(sums)
            # No row counts where the last ones of an epoch belong to groups of earlier batches.
            totals = BatchTotals(sums[0].masked_fill(sums[0] == 0, 1.0), sums[1], share)
        else:
            # More batches than next items leave some without any.
            totals = BatchTotals(max(rows, 1), None, share)
        return self._step(batch, totals, self._progress.step + 1, following)

    def _next_progress(self, batches_per_epoch: int) -> RunProgress:
        """Return the progress after one more batch, of which there are so many in an epoch."""
        before = self._progress
        ends_epoch = before.batch + 1 == batches_per_epoch
        batch = 0 if ends_epoch else before.batch + 1
        return replace(before, step=before.step + 1, epoch=before.epoch + ends_epoch, batch=batch, metrics={})

    def _evaluates_now(self, batches_per_epoch: int) -> bool:
        """Tell whether it is time for an evaluation: those that the recipe spaces, and one at the end of training."""
        if not self._config.evaluates or self._evaluation_split is None:
            return False
        batches = self._progress.epoch * batches_per_epoch + self._progress.batch
        return self._is_done() or self._config.evaluates_after(batches, batches_per_epoch)

    def _evaluate(self) -> None:
        """Evaluate in mid-training. A collective."""
        split = self._evaluation_split
        assert split is not None
        began = time.perf_counter()
        metrics = self._metrics(split)
        speed = self._dataset.split(split).rows / (time.perf_counter() - began)
        self._progress = replace(self._progress, metrics={k: v for k, v in metrics.items() if v is not None})
        self._recorder.record_evaluation(self._progress, split, metrics, speed)

    def _metrics(self, split: str) -> dict[str, float | None]:
        with self._recorder.phase(self._progress, f"evaluating on {split}"):
            return evaluate_split(self._model, self._splits, split, self._recipe.evaluate)
