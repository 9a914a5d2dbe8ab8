"""What a preprocessing job works with and returns, and the stages of a long job.

The files of each stage stay until no other needs them, so a job that died can continue.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rayrec.common.files import write_json
from rayrec.common.progress import Progress
from rayrec.config import Config
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import SplitInfo

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ResultT = TypeVar("ResultT", bound=Config)


@dataclass(frozen=True)
class Workspace:
    """A Spark session and the unfinished dataset folder."""

    spark: "SparkSession"
    folder: Path
    """The dataset that is being written; every task can read and write it."""
    scratch: Path
    """A folder for the files that stages pass on to each other."""
    progress: Progress


@dataclass(frozen=True)
class WrittenDataset:
    """What a job wrote into the dataset folder, besides the vocabularies."""

    schema: Schema
    splits: dict[str, SplitInfo]
    rejected: dict[str, int]
    """Number of bad rows by reason."""


class _Nothing(Config):
    """The result of a stage that has none."""


class Stages:
    """Runs stages by name, each once however often the job is started.

    A stage is done when its mark NAME.json, which holds its result, lies in `folder`; it is written last. The files
    that it leaves lie in a folder of their own. Paths in results are absolute: the job must start in the same place.
    """

    def __init__(self, folder: Path, progress: Progress, reclaim: Callable[[], None] = lambda: None) -> None:
        """`reclaim`: called when files are released, to free what else finished stages hold."""
        self._folder = folder
        self._progress = progress
        self._reclaim = reclaim

    def run(
        self, name: str, kind: type[ResultT], work: Callable[[Path], ResultT], folder: Path | None = None
    ) -> ResultT:
        """The result of `work(folder)`, or what it was when the stage was done before.

        `folder`: where the stage's files lie, by default NAME, next to the mark; it is empty when `work` begins.
        """
        mark = self._folder / f"{name}.json"
        if mark.exists():
            self._progress.message(f"{name}: done before")
            return kind.model_validate_json(mark.read_bytes())
        files = folder or self._folder / name
        shutil.rmtree(files, ignore_errors=True)
        files.mkdir(parents=True)
        result = work(files)
        write_json(mark, result.model_dump(mode="json"))
        return result

    def leave(self, name: str, work: Callable[[Path], None], folder: Path | None = None) -> None:
        """Run a stage that has no result but its files."""

        def run(files: Path) -> _Nothing:
            work(files)
            return _Nothing()

        self.run(name, _Nothing, run, folder)

    def release(self, *names: str) -> None:
        """Remove the files of stages that no later stage reads; they stay done."""
        for name in names:
            shutil.rmtree(self._folder / name, ignore_errors=True)
        self._reclaim()
