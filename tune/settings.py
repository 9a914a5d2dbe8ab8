"""The settings that all trials of a sweep share, and the sweep's folder, in which one process works at a time."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.evaluate import higher_is_better
from rayrec.ingest.dataset import MANIFEST_FILE, Dataset
from rayrec.recipes import Recipe, RecipeContent
from rayrec.store.files import is_vacant, locked, remove, require_absent, write_json
from tune.space import Parameter, Space

Search = Literal["random", "grid", "optuna", "pbt"]
Scheduler = Literal["none", "asha"]
SWEEP_FILE = "sweep.json"
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
        """Return the sweep that was begun in a folder. Raises UserError if there is none."""
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

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values of the metric."""
        return max(values) if self.is_maximized else min(values)


@dataclass(frozen=True)
class SweepSettings(Sweep):
    """The settings of a sweep that runs: also what is trained, and on what."""

    dataset: Path
    train: TrainFunction


@contextmanager
def owned_folder(settings: SweepSettings, resume: bool) -> Iterator[None]:
    """Begin the sweep's folder, or take over that of an earlier attempt, for this process alone.

    A new folder in which no trial began is removed at the end. Raises UserError if something else is in it, and
    ConfigError if it holds another sweep.
    """
    folder = settings.folder
    file = folder / SWEEP_FILE
    manifest = (settings.dataset / MANIFEST_FILE).read_bytes()
    parameters = settings.space.parameters
    # What a resumed sweep must share with the one that was begun.
    now = {
        "recipe": settings.recipe.resolve().model_dump(mode="json"),
        "space": {name: p.model_dump(mode="json", exclude_defaults=True) for name, p in parameters.items()},
        "dataset": hashlib.sha256(manifest).hexdigest(),
        "metric": settings.metric,
        "trials": settings.trials,
        "search": settings.search,
        "scheduler": settings.scheduler,
    }
    begins = not resume or is_vacant(folder)
    if begins:
        require_absent(folder)
    elif not file.is_file():
        raise UserError(f"{folder}: no sweep to resume (no {SWEEP_FILE}); give the output of `rayrec tune`")
    else:
        before = json.loads(file.read_text())
        changed = [name for name, value in now.items() if before.get(name) != value]
        if changed:
            raise ConfigError(
                f"{folder}: --resume needs the {changed[0]} that the sweep was started with; set it back, or start "
                "a new sweep"
            )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder / ".lock", folder):
            write_json(file, now)
            yield
    finally:
        if begins and not settings.trials_folder.exists():
            remove(folder)
