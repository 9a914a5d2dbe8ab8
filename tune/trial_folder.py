"""Records of trials in their folders: trial.json and the run folders that they trained in, read back as outcomes."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rayrec.store.files import write_json
from rayrec.store.paths import confined
from rayrec.training.run.folder import HISTORY_FILE
from rayrec.training.run.history import read_history
from tune.settings import Sweep
from tune.space import Scalar

TRIAL_FILE = "trial.json"
State = Literal["running", "finished", "stopped", "refused", "failed"]
"""`stopped` by the scheduler; `refused`: its values cannot be trained; `failed`: its processes died or raised."""
ENDED_STATES = frozenset[State]({"finished", "stopped", "refused"})
"""States in which a trial has nothing more to do, whatever happens to the sweep."""


@dataclass(frozen=True)
class TrialRecord:
    """The content of trial.json."""

    trial: str
    assignment: dict[str, Scalar]
    state: State = "running"
    message: str | None = None
    """Why the trial was refused or failed."""
    started: float = 0.0
    """The beginning of the first attempt, in seconds since the epoch."""
    run: str = "run"
    """Name of the run folder; a new one each time the trial continued from another trial's checkpoint."""

    @property
    def first_step(self) -> int:
        """Step after which it trained with its own values: that of another trial's checkpoint, or 0."""
        return int(self.run.rpartition("-")[2]) if self.run != "run" else 0

    def save(self, folder: Path) -> None:
        write_json(folder / TRIAL_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "TrialRecord | None":
        """Return the record in `folder`; None if the trial has not written one yet."""
        path = folder / TRIAL_FILE
        if not path.exists():
            return None
        record = cls(**json.loads(path.read_text()))
        confined(record.run, path)
        return record


@dataclass(frozen=True)
class TrialOutcome:
    """The result of one trial so far."""

    trial: str
    number: int
    """The place of the trial in the order in which trials began, from 0."""
    state: State
    message: str | None
    assignment: dict[str, Scalar]
    value: float | None
    """The metric's best value under the assignment; None without an evaluation, or if its values were refused."""
    curve: tuple[float, ...]
    """The metric at each evaluation."""
    seconds: float
    """Duration of training, evaluations included."""
    folder: Path
    run: Path
    """The run folder, whose best checkpoint has the best value."""

    def line(self, metric: str) -> str:
        """Return a description in one line."""
        values = ", ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.assignment.items())
        reached = f"{metric} {self.value:.4f} after {len(self.curve)} evaluations" if self.value is not None else ""
        result = "; ".join(text for text in (reached, self.message) if text)
        return f"trial {self.number}: {self.state}, {result} ({values})"


def evaluations(run: Path, metric: str) -> list[dict[str, Any]]:
    """Return the evaluations of a run during its training that gave `metric`, in order: step, epoch, seconds and
    metrics.
    """
    records = (record for record in read_history(run / HISTORY_FILE) if record["event"] == "evaluate")
    return [record for record in records if record.get(metric) is not None]


def read_outcomes(settings: Sweep) -> list[TrialOutcome]:
    """Return the outcomes of all trials that have begun, the best first and those without a value last."""
    if not settings.trials_folder.is_dir():
        return []
    found = [(record, f) for f in settings.trials_folder.iterdir() if (record := TrialRecord.load(f)) is not None]
    found.sort(key=lambda item: (item[0].started, item[0].trial))
    outcomes = [_outcome(settings, folder, record, number) for number, (record, folder) in enumerate(found)]
    sign = -1 if settings.is_maximized else 1
    return sorted(outcomes, key=lambda o: (o.value is None, sign * (o.value or 0.0), o.number))


def _outcome(settings: Sweep, folder: Path, record: TrialRecord, number: int) -> TrialOutcome:
    run = folder / record.run
    records = evaluations(run, settings.metric)
    own = [r[settings.metric] for r in records if r["step"] > record.first_step]
    return TrialOutcome(
        trial=record.trial,
        number=number,
        state=record.state,
        message=record.message,
        assignment=record.assignment,
        value=settings.best(own) if own and record.state != "refused" else None,
        curve=tuple(r[settings.metric] for r in records),
        seconds=records[-1]["seconds"] if records else 0.0,
        folder=folder,
        run=run,
    )


def outcome_rows(outcomes: list[TrialOutcome], metric: str) -> list[dict[str, Any]]:
    """Return a row for each trial: trial, state, metric, evaluations, seconds, and each parameter (None if it has
    none).
    """
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.assignment))
    return [
        {
            "trial": outcome.number,
            "state": outcome.state,
            metric: outcome.value,
            "evaluations": len(outcome.curve),
            "seconds": round(outcome.seconds, 1),
            **{name: outcome.assignment.get(name) for name in names},
        }
        for outcome in outcomes
    ]
