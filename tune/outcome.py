"""What came of each trial, read from what it wrote."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayrec.common.files import write_atomically
from tune.settings import SweepSettings
from tune.space import Scalar
from tune.trial_folder import State, TrialRecord, evaluations


@dataclass(frozen=True)
class TrialOutcome:
    """One trial."""

    trial: str
    number: int
    """In the order in which trials began, from 0."""
    state: State
    message: str | None
    assignment: dict[str, Scalar]
    value: float | None
    """The metric's best value under the assignment; None where there was no evaluation, or the training went wrong."""
    curve: tuple[float, ...]
    """The metric at each evaluation."""
    seconds: float
    """Of training, evaluations included."""
    folder: Path
    run: Path
    """The run folder; its best checkpoint has the best value."""

    def line(self, metric: str) -> str:
        """The outcome in one line."""
        values = ", ".join(f"{name}={_short(value)}" for name, value in self.assignment.items())
        reached = f"{metric} {self.value:.4f} after {len(self.curve)} evaluations" if self.value is not None else ""
        said = "; ".join(text for text in (reached, self.message) if text)
        return f"trial {self.number}: {self.state}, {said} ({values})"


def read_outcomes(settings: SweepSettings) -> list[TrialOutcome]:
    """All trials that there are, the best first; those without an evaluation last."""
    if not settings.trials_folder.is_dir():
        return []
    found = [(record, f) for f in settings.trials_folder.iterdir() if (record := TrialRecord.load(f)) is not None]
    found.sort(key=lambda item: (item[0].started, item[0].trial))
    outcomes = [_read(settings, folder, record, number) for number, (record, folder) in enumerate(found)]
    sign = -1 if settings.is_maximized else 1
    return sorted(outcomes, key=lambda o: (o.value is None, sign * (o.value or 0.0), o.number))


def _read(settings: SweepSettings, folder: Path, record: TrialRecord, number: int) -> TrialOutcome:
    run = folder / record.run
    records = evaluations(run, settings.metric)
    curve = tuple(r[settings.metric] for r in records)
    own = [r[settings.metric] for r in records if r["step"] > record.first_step]
    return TrialOutcome(
        trial=record.trial,
        number=number,
        state=record.state,
        message=record.message,
        assignment=record.assignment,
        value=settings.best(own) if own and record.state != "refused" else None,
        curve=curve,
        seconds=records[-1]["seconds"] if records else 0.0,
        folder=folder,
        run=run,
    )


def table(outcomes: list[TrialOutcome], metric: str) -> list[dict[str, Any]]:
    """A row a trial: trial, state, metric, evaluations, seconds, and each parameter."""
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


def write_csv(path: Path, outcomes: list[TrialOutcome], metric: str) -> None:
    """The table, with the reason of what was refused or failed and the run folder."""
    rows = [
        {**row, "message": outcome.message, "run": str(outcome.run)}
        for row, outcome in zip(table(outcomes, metric), outcomes, strict=True)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def _short(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
