"""The folder of a sweep: what is searched and how, and a folder for each trial, read back as outcomes.

One process works in a sweep's folder at a time. A trial's folder has its record, trial.json, and the run folders that
it trained in. Table, page and best recipe are made from these folders alone, and an interrupted sweep continues from
them: what Ray Tune notes of a sweep is thrown away.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.evaluate import higher_is_better
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, RecipeContent
from rayrec.store.artifact import id_of
from rayrec.store.files import remove, write_json
from rayrec.store.folders import is_vacant, owned
from rayrec.store.paths import confined
from rayrec.training.run.folder import HISTORY_FILE
from rayrec.training.run.history import read_history
from tune.space import Parameter, Scalar, Scheduler, Search, Space, own_assignment

SWEEP_FILE = "sweep.json"
TRIAL_FILE = "trial.json"
EXCHANGE_FOLDER = "exchange"
"""The folder of a trial with checkpoints from which other trials may continue."""
State = Literal["running", "finished", "stopped", "refused", "failed"]
"""`stopped` by the scheduler; `refused`: its values cannot be trained; `failed`: its processes died or raised."""
ENDED_STATES = frozenset[State]({"finished", "stopped", "refused"})
"""States in which a trial has nothing more to do, whatever happens to the sweep."""
TrainFunction = Callable[[Recipe, Dataset, Path, bool], object]
"""Trains a recipe on a dataset into a run folder, or continues the run in it if the last argument is true; pickled."""


@dataclass(frozen=True)
class Sweep:
    """Settings of a sweep: what is searched and how."""

    recipe: RecipeContent
    space: Space
    folder: Path
    """The sweep's folder, which all nodes can reach."""
    metric: str
    trials: int
    search: Search
    scheduler: Scheduler

    @classmethod
    def open(cls, folder: Path) -> "Sweep":
        """Return the sweep that was begun in a folder. Raises UserError if it holds no sweep."""
        file = folder / SWEEP_FILE
        if not file.is_file():
            raise UserError(f"{folder}: not a sweep (no {SWEEP_FILE}); give the output of `rayrec tune`")
        content = json.loads(file.read_text())
        parameters = {name: Parameter.model_validate(value) for name, value in content["space"].items()}
        others = {name: content[name] for name in ("metric", "trials", "search", "scheduler")}
        recipe = RecipeContent(str(file), content["recipe"])
        return cls(recipe=recipe, space=Space(str(file), parameters), folder=folder, **others)

    @property
    def is_maximized(self) -> bool:
        return higher_is_better(self.metric)

    @property
    def mode(self) -> Literal["max", "min"]:
        return "max" if self.is_maximized else "min"

    @property
    def trials_folder(self) -> Path:
        return self.folder / "trials"

    @property
    def first_points(self) -> list[dict[str, Scalar]]:
        """Return the assignments that are tried before any is drawn: the recipe's own, and those of a grid."""
        own = own_assignment(self.space, self.recipe)
        return [own, *(point for point in self.space.grid() if self.search == "grid" and point != own)]

    @property
    def size(self) -> int:
        """Return the number of trials: for a grid that of its points, though more may have been allowed."""
        return len(self.first_points) if self.search == "grid" else self.trials

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values of the metric."""
        return max(values) if self.is_maximized else min(values)


@dataclass(frozen=True)
class SweepSettings(Sweep):
    """The settings of a sweep that runs: also what is trained, and on what."""

    dataset: Path
    train: TrainFunction
    in_actors: bool = False
    """Whether the actor of a trial trains it by itself, instead of workers that it starts."""


@contextmanager
def owned_folder(settings: SweepSettings, resume: bool) -> Iterator[None]:
    """Begin the sweep's folder, or take over that of an earlier attempt, for this process alone.

    A new folder in which no trial began is removed at the end. Raises UserError if a folder to
    resume holds no sweep, and ConfigError if it holds another one.
    """
    folder = settings.folder
    file = folder / SWEEP_FILE
    parameters = settings.space.parameters
    # What a resumed sweep must share with the one that was begun.
    now = {
        "recipe": settings.recipe.resolve().model_dump(mode="json"),
        "space": {name: p.model_dump(mode="json", exclude_defaults=True) for name, p in parameters.items()},
        "dataset": id_of(settings.dataset),
        "metric": settings.metric,
        "trials": settings.trials,
        "search": settings.search,
        "scheduler": settings.scheduler,
    }
    begins = not resume or is_vacant(folder)
    if not begins:
        if not file.is_file():
            raise UserError(f"{folder}: no sweep to resume (no {SWEEP_FILE}); give the output of `rayrec tune`")
        before = json.loads(file.read_text())
        changed = [name for name, value in now.items() if before.get(name) != value]
        if changed:
            raise ConfigError(
                f"{folder}: --resume needs the {changed[0]} that the sweep was started with; set it back, or start "
                "a new sweep"
            )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with owned(folder, folder / ".lock"):
            write_json(file, now)
            yield
    finally:
        if begins and not settings.trials_folder.exists():
            remove(folder)


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
    is_given: bool = False
    """Whether it trains the recipe as it stands; `assignment` has its own values, within the space or not."""

    @property
    def first_step(self) -> int:
        """Step after which it trained with its own values: that of another trial's checkpoint, or 0."""
        return int(self.run.rpartition("-")[2]) if self.run != "run" else 0

    def save(self, folder: Path) -> None:
        write_json(folder / TRIAL_FILE, asdict(self))

    @classmethod
    def stop(cls, folder: Path) -> None:
        """Record that the scheduler stops the trial in `folder`, unless it has just ended by itself."""
        record = cls.load(folder)
        if record is not None and record.state == "running":
            replace(record, state="stopped").save(folder)

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
    """The place of the trial in the order in which trials began, from 0, which is the given recipe's."""
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
    is_given: bool = False
    """Whether this is the recipe as it stands."""

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
    found.sort(key=lambda item: (not item[0].is_given, item[0].started, item[0].trial))
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
        is_given=record.is_given,
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
