"""The picture of a training in a terminal: docs/training-panel.svg.

`python -m tests.training_panel` draws it, by what shows a training, from records as a run's history has them.
"""

import io
from pathlib import Path

from rich.console import Console

from rayrec.common.console import _Bars, _LiveProgress
from rayrec.common.progress import Progress
from rayrec.training.run.display import HistoryDisplay
from tests.training_runs import recipe

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "training-panel.svg"
_WIDTH, _ROWS, _STEPS, _BATCH = 92, 320_193, 625, 512
_COMMAND = "rayrec train dlrm-criteo-debug --data dataset --output run --workers 2"
_EPOCH = {
    "event": "epoch", "batches": _STEPS, "rows_dropped": 193, "workers": 2, "device": "cpu", "precision": "fp32",
    "precision_reason": "asked for",
}  # fmt: skip


def document() -> str:
    """Return the picture of the second epoch."""
    console = Console(width=_WIDTH, file=io.StringIO(), force_terminal=True, record=True, legacy_windows=False)
    now = 0.0
    bars = _Bars(console)
    bars.get_time = lambda: now
    live = _LiveProgress(bars)
    for stage, seconds in (("start Ray", 17.0), ("start 2 workers", 36.0), ("place the tables", 1.0)):
        live.stage(stage)
        now += seconds
    _train(live)
    now += 76.0
    live.advance(0)
    console.print(bars.get_renderable())
    return console.export_svg(title=_COMMAND, unique_id="panel")


def _train(progress: Progress) -> None:
    display = HistoryDisplay(recipe(global_batch_size=_BATCH, epochs=2), _ROWS, progress)
    display.show({"step": 0, "epoch": 0, **_EPOCH})
    speed = {"samples_per_second": 7_327.0, "data_wait_share": 0.01}
    display.show({"step": 300, "event": "train", "loss": 0.4610, **speed})
    for step, auc, log_loss in ((313, 0.7769, 0.4644), (625, 0.7875, 0.4546)):
        display.show({"step": step, "event": "evaluate", "split": "validation", "auc": auc, "log_loss": log_loss})
    display.show({"step": 938, "event": "train", "loss": 0.4305, **speed})
    display.show({"step": 938, "event": "phase", "phase": "evaluating on validation"})


if __name__ == "__main__":
    DOCUMENT.write_text(document())
