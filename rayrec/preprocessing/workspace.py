"""Holds what a preprocessing job works with and returns, and runs the stages of a long job.

The files of each stage stay until no other needs them, so a job that died can continue.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Self, TypeVar

from pydantic import TypeAdapter

from rayrec.common.progress import Progress
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dropped, SplitInfo, Times
from rayrec.preprocessing.engines.engine import Engine
from rayrec.store.files import remove, sync_folders, write_json

ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Workspace:
    """What runs the tasks of a job, and the unfinished dataset folder."""

    engine: Engine
    folder: Path
    """The dataset that is being written; every task can read and write it, by `rayrec.store.files`."""
    scratch: Path
    """A folder for the files that stages pass on to each other."""
    progress: Progress

    def within(self, scratch: Path) -> Self:
        """Return the same workspace for a stage whose scratch files lie in a folder of their own."""
        return replace(self, scratch=scratch)


@dataclass(frozen=True)
class WrittenDataset:
    """Files that a job wrote into the dataset folder, besides the vocabularies."""

    schema: Schema
    splits: dict[str, SplitInfo]
    rejected: dict[str, int]
    """Number of bad rows by reason."""
    times: Times | None = None
    """When the rows happened; None if they have no times."""
    moment: int = 0
    """`Manifest.moment`."""
    dropped: dict[str, Dropped] = field(default_factory=dict)
    """`Manifest.dropped`."""


class Stages:
    """Runs stages by name, each once however often the job is started.

    A stage is done when its mark NAME.json, which holds its result, lies in `folder`; it is written last, when the
    files are on the disk. These lie in a folder of their own. Paths in results are absolute: the job must start in the
    same place.
    """

    def __init__(self, folder: Path, progress: Progress) -> None:
        """`folder` lies in that of the dataset."""
        self._folder = folder
        self._progress = progress

    def run(
        self, name: str, kind: type[ResultT], work: Callable[[Path], ResultT], folder: Path | None = None
    ) -> ResultT:
        """Return the result of `work(folder)`, or of the stage if it is already done.

        JSON can hold the result; paths in it have the type `rayrec.store.paths.KeptPath`, which knows URIs. `folder`:
        where the stage's files lie, by default NAME, next to the mark; it is empty when `work` begins.
        """
        mark = self._folder / f"{name}.json"
        if mark.exists():
            self._progress.message(f"{name}: already done")
            result: ResultT = TypeAdapter(kind).validate_json(mark.read_bytes())
            return result
        files = folder or self._folder / name
        remove(files)
        files.mkdir(parents=True, exist_ok=True)
        result = work(files)
        sync_folders(self._folder.parent)
        write_json(mark, TypeAdapter(kind).dump_python(result, mode="json"))
        return result

    def leave(self, name: str, work: Callable[[Path], None], folder: Path | None = None) -> None:
        """Run a stage that has no result but its files."""
        self.run(name, NoneType, work, folder)

    def release(self, *names: str) -> None:
        """Remove the files of stages that no later stage reads; they stay done."""
        for name in names:
            remove(self._folder / name)
