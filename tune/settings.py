"""The settings that all trials of a sweep share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rayrec.config.evaluate import higher_is_better
from rayrec.ingest.dataset import Dataset
from rayrec.recipes import Recipe, RecipeContent
from tune.space import Space

Search = Literal["random", "grid", "optuna", "pbt"]
Scheduler = Literal["none", "asha"]
TrainFunction = Callable[[Recipe, Dataset, Path, bool], object]
"""Trains a recipe on a dataset into a run folder, or continues the run in it if the last argument is true; pickled."""


@dataclass(frozen=True)
class SweepSettings:
    """The settings of a sweep: what is trained, what is searched, and how."""

    recipe: RecipeContent
    space: Space
    dataset: Path
    folder: Path
    """The sweep's folder, which all nodes can reach."""
    metric: str
    trials: int
    search: Search
    scheduler: Scheduler
    train: TrainFunction

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
        """The best of some values of the metric."""
        return max(values) if self.is_maximized else min(values)
