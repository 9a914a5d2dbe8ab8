"""Runs the tasks of a job with progress and readable errors, and leaves no task behind."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rayrec.common import errors
from rayrec.common.disk_errors import disk_error, temporary_folders
from rayrec.common.errors import UserError
from rayrec.common.process import in_background
from rayrec.common.progress import Progress
from rayrec.preprocessing.engines.engine import Counter, Engine, Item, Result

_POLL_SECONDS = 0.5
_USER_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)


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
