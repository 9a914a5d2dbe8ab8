"""The folder of one trial: trial.json, and the run folders that it trained in."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rayrec.common.files import write_json
from rayrec.training.history import read_history
from rayrec.training.run_folder import HISTORY_FILE
from tune.space import Scalar

TRIAL_FILE = "trial.json"
State = Literal["running", "finished", "stopped", "refused", "failed"]
"""`stopped` by the scheduler; `refused`: what was drawn cannot be trained; `failed`: its processes died or raised."""
ENDED_STATES = frozenset[State]({"finished", "stopped", "refused"})
"""In which a trial has nothing more to do, whatever happens to the sweep."""


@dataclass(frozen=True)
class TrialRecord:
    """What trial.json says."""

    trial: str
    assignment: dict[str, Scalar]
    state: State = "running"
    message: str | None = None
    """Why it was refused or failed."""
    started: float = 0.0
    """Seconds since the epoch, of its first attempt."""
    run: str = "run"
    """Name of the run folder; another one each time that it went on from another trial's checkpoint."""

    @property
    def first_step(self) -> int:
        """The step from which on it trained with its values: that of another trial's checkpoint, or 0."""
        return int(self.run.rpartition("-")[2]) if self.run != "run" else 0

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / TRIAL_FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> "TrialRecord | None":
        """None where there is none yet."""
        path = folder / TRIAL_FILE
        return cls(**json.loads(path.read_text())) if path.exists() else None


def evaluations(run: Path, metric: str) -> list[dict[str, Any]]:
    """The evaluations of a run during its training that gave `metric`, in order: step, epoch, seconds and metrics."""
    records = (record for record in read_history(run / HISTORY_FILE) if record["event"] == "evaluate")
    return [record for record in records if record.get(metric) is not None]


def values_of(folder: Path, metric: str) -> list[float]:
    """The metric at each evaluation of the trial in `folder`; none where there is no trial."""
    record = TrialRecord.load(folder)
    return [found[metric] for found in evaluations(folder / record.run, metric)] if record is not None else []
