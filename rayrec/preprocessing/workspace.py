"""Holds what a preprocessing job works with and returns, and runs its stages and their tasks.

The files of each stage stay until no other needs them, so a job that died can continue.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Self

from pydantic import TypeAdapter

from rayrec.common import errors
from rayrec.common.disk_errors import disk_error, temporary_folders
from rayrec.common.errors import UserError
from rayrec.common.process import in_background
from rayrec.common.progress import Progress
from rayrec.features.schema import Schema
from rayrec.ingest.dataset import Dropped, FoundKeys, SplitInfo, Times
from rayrec.preprocessing.engine import Counter, Engine, Item, Result
from rayrec.store.files import remove, sync_folders, write_json

_POLL_SECONDS = 0.5
_USER_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)


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
    found_keys: dict[str, FoundKeys] = field(default_factory=dict)
    """`Manifest.found_keys`."""
    known_values: dict[str, dict[str, FoundKeys]] = field(default_factory=dict)
    """`Manifest.known_values`."""
    warnings: list[str] = field(default_factory=list)
    """`Manifest.warnings`."""


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

    def run(self, name: str, kind: type[Result], work: Callable[[Path], Result], *folders: Path) -> Result:
        """Return the result of `work(folder)`, or of the stage if it is already done.

        JSON can hold the result; paths in it have the type `rayrec.store.paths.KeptPath`, which knows URIs. `folders`:
        where the stage's files lie, by default NAME, next to the mark. They are empty when `work` begins, which
        is given the first.
        """
        mark = self._folder / f"{name}.json"
        if mark.exists():
            self._progress.message(f"{name}: already done")
            result: Result = TypeAdapter(kind).validate_json(mark.read_bytes())
            return result
        folders = folders or (self._folder / name,)
        for folder in folders:
            remove(folder)
            folder.mkdir(parents=True, exist_ok=True)
        result = work(folders[0])
        sync_folders(self._folder.parent)
        write_json(mark, TypeAdapter(kind).dump_python(result, mode="json"))
        return result

    def leave(self, name: str, work: Callable[[Path], None], *folders: Path) -> None:
        """Run a stage that has no result but its files."""
        self.run(name, NoneType, work, *folders)

    def release(self, *names: str) -> None:
        """Remove the files of stages that no later stage reads; they stay done."""
        for name in names:
            remove(self._folder / name)


@contextmanager
def counted_rows(engine: Engine, progress: Progress, stage: str, total: int | None = None) -> Iterator[Counter]:
    """Yield a stage of the work: hold a counter that its tasks add rows to, and pass its growth on to `progress`.

    An exception that a task raised for the user leaves the block as that UserError.
    """
    progress.stage(stage, total)
    counter = engine.counter()

    def watch(ended: threading.Event) -> None:
        shown = 0
        is_last = False
        while not is_last:
            is_last = ended.wait(_POLL_SECONDS)
            rows = counter.value
            # Tasks that ran again after a failure count twice.
            grown = (rows if total is None else min(rows, total)) - shown
            if grown > 0:
                progress.advance(grown)
                shown += grown

    with in_background(watch, f"progress-{stage}"), user_errors():
        yield counter


@contextmanager
def user_errors() -> Iterator[None]:
    """Raise UserError for a failure, here or in a Spark task, that the user can fix; other errors pass unchanged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if found := _USER_ERROR.search(str(error)):
            raise getattr(errors, found[1])(found[2]) from error
        if (of_disk := disk_error(error, temporary_folders())) is not None:
            raise of_disk from error
        raise


@contextmanager
def no_tasks_left_behind(engine: Engine) -> Iterator[None]:
    """Wait for the tasks of a block that ends with an error, because they write to folders that the caller removes."""
    try:
        yield
    except BaseException:
        engine.cancel()
        raise


def run_brief_tasks(engine: Engine, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """Run tasks as `engine.run`, for items that mostly take a moment: each task, which takes longer to start,
    does several.
    """
    count = min(len(items), 4 * engine.parallelism)
    groups = [items[first::count] for first in range(count)]
    found = engine.run(groups, lambda group: [function(item) for item in group])
    return [found[place % count][place // count] for place in range(len(items))]
