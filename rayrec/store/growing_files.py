"""Files that grow while work goes on: a run's history, TensorBoard's events.

On a disk they are written where they belong. A store cannot append, so those of a folder at a URI grow on this node,
and are put again as often as they have grown.
"""

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.common.process import in_background
from rayrec.store import objects
from rayrec.store.files import copy, files_below
from rayrec.store.paths import RemotePath, cache_root

logger = logging.getLogger(__name__)

_LOOK_SECONDS, _PUT_SECONDS = 0.5, 5.0
"""Pause between two looks for what has grown, in a folder of a disk and in one at a URI."""


def pause_between_looks(folder: Path) -> float:
    """Return the seconds after which to look again at files of a folder that grow."""
    return _PUT_SECONDS if isinstance(folder, RemotePath) else _LOOK_SECONDS


class GrowingFiles:
    """Files of a folder that grow while they are written, on this node, and at a URI put again every few seconds."""

    def __init__(self, folder: Path, target: RemotePath | None) -> None:
        """`folder` is where to write them, and `target` the folder at a URI that they are of, if they are of one."""
        self.folder, self._target = folder, target
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, int]] = {}

    def put(self) -> None:
        """Put what has grown since the last time. Raises UserError."""
        if self._target is None:
            return
        with self._lock:
            for name in files_below(self.folder):
                with (self.folder / name).open("rb") as file:
                    status = os.fstat(file.fileno())
                    state = status.st_size, status.st_mtime_ns
                    if self._seen.get(name) != state:
                        objects.write(self._target / name, file, status.st_size)
                        self._seen[name] = state

    def _put_often(self, ended: threading.Event) -> None:
        has_warned = False
        while not ended.wait(_PUT_SECONDS):
            try:
                self.put()
                has_warned = False
            except UserError as error:
                # The work goes on; only the last time has to succeed.
                if not has_warned:
                    logger.warning("%s; trying again", error)
                has_warned = True


@contextmanager
def growing_files(folder: Path, *names: str) -> Iterator[GrowingFiles]:
    """Yield the files of a folder that grow; all of them are there when the block ends. Raises UserError.

    `names`: files that may be there already, and go on growing.
    """
    if not isinstance(folder, RemotePath):
        yield GrowingFiles(folder, None)
        return
    with naming(cache_root()):
        cache_root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_root()) as here:
            files = GrowingFiles(Path(here), folder)
            for name in names:
                with suppress(FileNotFoundError):
                    copy(folder / name, files.folder / name)
            try:
                with in_background(files._put_often, "rayrec-growing"):
                    yield files
            except BaseException:
                with suppress(UserError):  # it would hide the error
                    files.put()
                raise
            files.put()
