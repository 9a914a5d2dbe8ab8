"""What a terminal shows of a training, from the records of its history."""

from collections.abc import Mapping
from typing import Any

from rayrec.common.progress import NO_FACTS, Progress
from rayrec.training.run.display import HistoryDisplay
from tests import training_panel
from tests.training_runs import recipe

EPOCH = {
    "event": "epoch",
    "batches": 3,
    "rows_dropped": 8,
    "workers": 2,
    "device": "cpu",
    "precision": "fp32",
    "precision_reason": "asked for",
}
TRAIN = {"event": "train", "loss": 0.50577, "samples_per_second": 14_623.4, "data_wait_share": 0.031}
EVALUATE = {"event": "evaluate", "split": "validation", "auc": 0.6625, "log_loss": 0.5207, "calibration": 1.1}


class Told(Progress):
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.notes: list[tuple[str, Mapping[str, str]]] = []
        self.rows = 0

    def stage(self, name: str, total: int | None = None) -> None:
        self.lines.append(f"stage {name} {total}")

    def advance(self, rows: int) -> None:
        self.rows += rows

    def note(self, text: str, facts: Mapping[str, str] = NO_FACTS) -> None:
        self.notes.append((text, facts))

    def message(self, text: str) -> None:
        self.lines.append(text)


def _show(*records: dict[str, Any], **train: Any) -> Told:
    """Batches of 64 of 200 rows, the last of which is dropped: three steps an epoch."""
    told = Told()
    display = HistoryDisplay(recipe(**{"epochs": 2, **train}), 200, told)
    for record in records:
        display.show({"epoch": 0, **record})
    return told


def _phase(step: int, name: str) -> dict[str, Any]:
    return {"step": step, "event": "phase", "phase": name}


def test_stages_lead_to_training_and_facts_gather() -> None:
    told = _show(
        _phase(0, "place the tables"),
        {"step": 0, **EPOCH},
        {"step": 2, **TRAIN},
        _phase(2, "evaluating on validation"),
        _phase(2, "training"),
        {"step": 2, **EVALUATE},
        _phase(2, "saving a checkpoint"),
        {"step": 6, **TRAIN},
        _phase(6, "training"),
    )
    assert told.lines == [
        "stage place the tables None",
        "stage training 384",
        "epoch 1: 3 batches on 2 workers (cpu, fp32: asked for); 8 rows fill no batch",
        "step 2: validation auc 0.662, log_loss 0.521",
    ]
    assert told.rows == 384
    assert [text for text, _ in told.notes] == [
        "read the first rows",
        "training",
        "evaluating on validation",
        "training",
        "training",
        "saving a checkpoint",
        "training",
        "ending",
    ]
    assert told.notes[0][1] == {"step": "0 of 6", "epoch": "1 of 2"}
    assert told.notes[5][1] == {
        "step": "2 of 6",
        "epoch": "1 of 2",
        "loss": "0.506",
        "speed": "14,600 samples/s",
        "waiting": "3% of the time for data",
        "auc": "0.662 on validation",
        "log_loss": "0.521 on validation",
    }
    assert told.notes[-1][1]["step"] == "6 of 6"


def test_the_line_of_an_epoch_fits_a_log() -> None:
    of_many = {"batches": 1_219, "rows_dropped": 29_760, "precision_reason": "no bfloat16 instructions"}
    told = _show({"step": 0, **EPOCH, **of_many}, negatives={"per_positive": 4})
    assert told.lines[-1].endswith("29,760 samples fill no batch")
    assert len(told.lines[-1]) <= 105


def test_epochs_alike_are_told_once() -> None:
    told = _show({"step": 0, **EPOCH}, {"step": 3, **EPOCH, "epoch": 1}, {"step": 3, **EPOCH, "epoch": 1, "workers": 1})
    assert [line[:31] for line in told.lines if "batches" in line] == [
        "epoch 1: 3 batches on 2 workers",
        "epoch 2: 3 batches on 1 worker ",
    ]


def test_a_tick_is_no_progress() -> None:
    told = Told()
    display = HistoryDisplay(recipe(epochs=2), 200, told)
    display.tick()  # before training nothing is to be said again
    display.show({"epoch": 0, "step": 0, **EPOCH})
    display.show({"epoch": 0, "step": 2, **TRAIN})
    display.tick()
    assert told.rows == 2 * 64


def test_a_resumed_run_counts_what_is_left() -> None:
    told = _show(
        _phase(3, "place the tables"),
        _phase(3, "load the checkpoint"),
        _phase(3, "training"),
        {"step": 3, "epoch": 1, **EPOCH},
        {"step": 5, **TRAIN},
        max_steps=5,
    )
    assert [line for line in told.lines if line.startswith("stage")] == [
        "stage place the tables None",
        "stage load the checkpoint None",
        "stage training 128",
    ]
    assert told.rows == 128
    assert told.notes[-1][1]["step"] == "5 of 5" and told.notes[-1][1]["epoch"] == "2 of 2"


def test_workers_that_start_again_are_told() -> None:
    told = _show({"step": 0, **EPOCH}, {"step": 4, **TRAIN}, _phase(3, "place the tables"), {"step": 5, **TRAIN})
    assert told.lines[-1] == "step 3: the workers were restarted and continue from here"
    assert told.rows == 5 * 64


def test_progressive_metrics_are_those_of_new_rows() -> None:
    told = _show({"step": 0, **EPOCH}, {"step": 1, "event": "progressive", "auc": 0.7, "log_loss": None, "sums": {}})
    assert told.notes[-1][1]["auc"] == "0.700 on new rows"
    assert "log_loss" not in told.notes[-1][1]


def test_the_picture_in_the_documentation_is_what_is_shown() -> None:
    assert training_panel.DOCUMENT.read_text() == training_panel.document()
