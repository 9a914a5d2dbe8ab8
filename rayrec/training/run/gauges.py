"""The Prometheus metrics of a run, which Ray exports on the metrics port of the node that its driver runs on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rayrec.common.text import ascii_name
from rayrec.training.run.history import main_metrics

_OF_STEPS = {
    "step": "Optimizer steps done.",
    "loss": "Mean loss of the steps since the last record.",
    "samples_per_second": "Rows that were trained on each second, over all workers.",
    "data_wait_share": "Share of the time that workers waited for data.",
    "peak_memory_bytes": "Most memory that rank 0 has held: of its GPU, or of its process on a CPU.",
}


class RunGauges:
    """The newest figures of a run's history; names as Ray exports them begin with `ray_`. Needs a Ray session."""

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
