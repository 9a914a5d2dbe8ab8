"""Shows a run's history while it grows: in the progress of the command, and as Prometheus metrics."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from rayrec.common.errors import UserError
from rayrec.common.progress import Progress
from rayrec.common.ray import session_size
from rayrec.common.text import ascii_name, format_number
from rayrec.config.evaluate import shown_metrics
from rayrec.recipes import Recipe
from rayrec.store.growing_files import pause_between_looks
from rayrec.training.run.folder import RunFolder
from rayrec.training.run.history import PLACING, PROGRESSIVE, TRAINING, main_metrics, read_history

Record = dict[str, Any]

_OF_STEPS = {
    "step": "Optimizer steps done.",
    "loss": "Mean loss of the steps since the last record.",
    "samples_per_second": "Rows that were trained on each second, over all workers.",
    "data_wait_share": "Share of the time that workers waited for data.",
    "peak_memory_bytes": "Most memory that rank 0 has held: of its GPU, or of its process on a CPU.",
}


def show_history(run: RunFolder, recipe: str, display: "HistoryDisplay", ended: threading.Event) -> None:
    """Show the run's history, and in a Ray session report its gauges, until it has ended; `recipe`: its name."""
    gauges = RunGauges(recipe, run.path) if session_size()[0] else None
    seen, is_over = list(read_history(run.history)), False
    while not is_over:
        is_over = ended.wait(pause_between_looks(run.path))
        records = seen
        with suppress(UserError):  # that the bucket fails for a while matters to the workers
            records = list(read_history(run.history))
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


class HistoryDisplay:
    """Takes in the records of a run, in their order, and passes on to `progress` what they tell."""

    def __init__(self, recipe: Recipe, rows_of_train: int, progress: Progress) -> None:
        train = recipe.train
        self._recipe, self._rows, self._progress = recipe, rows_of_train, progress
        self._steps_per_epoch = train.steps_per_epoch(rows_of_train)
        steps = self._steps_per_epoch * train.epochs
        self._steps = steps if train.max_steps is None else min(steps, train.max_steps)
        self._shown_rows: int | None = None
        """Samples up to the last step that was shown; None before the first epoch."""
        self._doing = self._how = ""
        self._facts: dict[str, str] = {}

    def show(self, record: Record) -> None:
        """Show one record."""
        step, event = record["step"], record["event"]
        if event == "phase":
            self._show_phase(step, record["phase"])
        elif event == "epoch":
            self._show_epoch(record)
        elif event == "train":
            self._doing = TRAINING
            self._facts["loss"] = format_number(record["loss"])
            self._facts["speed"] = f"{format_number(record['samples_per_second'])} samples/s"
            self._facts["waiting"] = f"{record['data_wait_share']:.0%} of the time for data"
        elif event in ("evaluate", PROGRESSIVE):
            self._show_metrics(record)
        elif event == "preemption":
            self._progress.message(f"step {step}: a node is about to be removed; saving a checkpoint")
        if self._shown_rows is None:
            return
        epoch = max(1, -(-step // self._steps_per_epoch))
        where = {"step": f"{step:,} of {self._steps:,}", "epoch": f"{epoch} of {self._recipe.train.epochs}"}
        self._progress.note(self._doing, {**where, **self._facts})
        rows = self._samples_after(step)
        if rows > self._shown_rows:
            self._progress.advance(rows - self._shown_rows)
            self._shown_rows = rows

    def tick(self) -> None:
        """Let a log say from time to time what is done, though no record has come."""
        if self._shown_rows is not None:
            self._progress.advance(0)

    def _show_phase(self, step: int, phase: str) -> None:
        if self._shown_rows is not None:
            is_over = phase == TRAINING and step >= self._steps
            self._doing = "ending" if is_over else phase
            if phase == PLACING:
                self._progress.message(f"step {step}: the workers were restarted and continue from here")
        elif phase != TRAINING:
            self._progress.stage(phase)

    def _show_epoch(self, record: Record) -> None:
        if self._shown_rows is None:
            self._shown_rows = self._samples_after(record["step"])
            self._progress.stage("training", self._samples_after(self._steps) - self._shown_rows)
        self._doing = "read the first rows"
        unit = "rows" if self._recipe.train.negatives is None else "samples"
        dropped = f"; {record['rows_dropped']:,} {unit} fill no batch" if record["rows_dropped"] else ""
        workers = "1 worker" if record["workers"] == 1 else f"{record['workers']} workers"
        how = (
            f"{record['batches']:,} batches on {workers} "
            f"({record['device']}, {record['precision']}: {record['precision_reason']}){dropped}"
        )
        if how != self._how:
            self._how = how
            self._progress.message(f"epoch {record['epoch'] + 1}: {how}")

    def _show_metrics(self, record: Record) -> None:
        main = shown_metrics(main_metrics(record), drawn_negatives=self._recipe.source.gives_interactions)
        shown = {name: format_number(value) for name, value in main.items()}
        where = record.get("split", "new rows")
        self._facts.update({name: f"{value} on {where}" for name, value in shown.items()})
        if "split" in record:
            values = ", ".join(f"{name} {value}" for name, value in shown.items())
            self._progress.message(f"step {record['step']:,}: {where} {values}")

    def _samples_after(self, step: int) -> int:
        return self._recipe.train.samples_after(step, self._rows)


class RunGauges:
    """The newest figures of a run's history, which Ray exports on the metrics port of its driver's node.

    Their names there begin with `ray_`. Needs a Ray session.
    """

    def __init__(self, recipe: str, run: Path) -> None:
        """Tell runs apart by the name of the recipe and the last two of the run folder's path, as `trial-3/run`."""
        # Only now: Ray is imported when its environment is set.
        from ray.util.metrics import Gauge

        self._tags = {"recipe": ascii_name(recipe), "run": ascii_name("/".join(run.parts[-2:]))}
        tags = tuple(self._tags)
        self.of_steps = {name: Gauge(f"rayrec_training_{name}", text, tags) for name, text in _OF_STEPS.items()}
        self.evaluation = Gauge(
            "rayrec_training_evaluation",
            "Metrics of a split in mid-training; split `progressive`: of rows before they were trained on.",
            (*tags, "split", "metric"),
        )
        self._steps: dict[str, float] = {}
        self._evaluations: dict[tuple[str, str], float] = {}

    def take(self, record: Mapping[str, Any]) -> None:
        """Take in a record of the history."""
        if record["event"] == "train":
            self._steps = {name: record[name] for name in self.of_steps}
        # A record of an evaluation names its split; that of rows before they were trained on is named by its event.
        split = record.get("split", record["event"])
        self._evaluations |= {(split, name): value for name, value in main_metrics(record).items()}

    def report(self) -> None:
        """Report what was taken in last: Ray forgets a gauge that was not set for some 20 seconds."""
        for name, value in self._steps.items():
            self.of_steps[name].set(value, self._tags)
        for (split, metric), value in self._evaluations.items():
            self.evaluation.set(value, {**self._tags, "split": ascii_name(split), "metric": metric})
