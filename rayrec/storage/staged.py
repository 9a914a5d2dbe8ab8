"""Staged folders: fetched from their URI before they are read, and sent to it while they are written."""

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from rayrec.common.background import in_background
from rayrec.common.errors import UserError
from rayrec.common.files import locked
from rayrec.common.progress import Progress, SilentProgress
from rayrec.storage.journal import Journal, LocalFile
from rayrec.storage.location import location, staged_root
from rayrec.storage.remote import Remote, RemoteFile
from rayrec.storage.transfer import Upload, download, is_output

logger = logging.getLogger(__name__)

_PASS_SECONDS = 5.0
"""Pause between two passes that send what a running command wrote."""
_MOST_TRIES = 3


def fetch(path: Path, progress: Progress | None = None) -> None:
    """Bring a staged folder up to date with its URI; does nothing for any other path.

    Only one process at a time does so, and none while a process of this machine writes the folder, which is then ahead
    of its URI. Raises UserError if the remote folder cannot be read.
    """
    if staged_root(path) == path:
        _StagedFolder(path).refresh(progress or SilentProgress())


@contextmanager
def mirrored(path: Path, *, continues: bool, progress: Progress) -> Iterator[None]:
    """Send what the block writes into a staged folder to its URI; does nothing for any other path.

    New files are sent every few seconds, in the order in which they were written, and the rest at the end, even if the
    block ends with an error. `continues`: files at the URI are fetched first; otherwise they are an error. Raises
    UserError if the URI cannot be written. At the end of the block, its message names the local copy, which is kept and
    which the next command that is given the URI sends.
    """
    if staged_root(path) != path:
        yield
        return
    folder = _StagedFolder(path)
    with folder.owned():
        upload = folder.begin(continues, progress)
        is_done = False
        try:
            with in_background(partial(_send_passes, upload), "rayrec-mirror"):
                yield
            is_done = True
        finally:
            try:
                folder.finish(upload, progress)
            except UserError as error:
                message = f"{error}; all was written to {path}, and the next command that is given the URI sends it"
                if is_done:
                    raise UserError(message) from None
                logger.warning(message)


class _StagedFolder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._uri = location(path)
        home = path.parent
        home.mkdir(parents=True, exist_ok=True)
        from filelock import FileLock

        self._lock = FileLock(home / ".lock")
        """Held while a process of this machine brings the folder up to date, or looks whether another writes it."""
        self._writer = home / ".writer"
        """The lock file of the process that writes the folder."""
        self._journal_file = home / ".journal"
        self._unsent = home / ".unsent"
        """Exists while the folder may be ahead of its URI; without it, the folder is only a copy."""

    def refresh(self, progress: Progress) -> None:
        with self._lock:
            if not self._is_being_written():
                self._bring_up_to_date(Remote(self._uri), Journal(self._journal_file), progress)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the only process of this machine that writes the folder. Raises UserError if another one does."""
        with ExitStack() as stack:
            with self._lock:
                stack.enter_context(locked(self._writer, self._uri))
            yield

    def begin(self, continues: bool, progress: Progress) -> Upload:
        """Make the folder equal to its URI. Raises UserError if that cannot be written, or must be empty but is not."""
        with self._lock:
            remote, journal = Remote(self._uri), Journal(self._journal_file)
            if continues or self._unsent.exists():
                self._bring_up_to_date(remote, journal, progress)
            if not continues:
                if any(map(is_output, remote.files())):
                    raise UserError(f"{self._uri}: already exists; give another --output, or remove it first")
                # These files were fetched before they were removed from the URI.
                shutil.rmtree(self._path, ignore_errors=True)
                self._journal_file.unlink(missing_ok=True)
                journal = Journal(self._journal_file)
            remote.require_writable()
            self._unsent.touch()
            return Upload(remote, self._path, journal, self._uri)

    def finish(self, upload: Upload, progress: Progress) -> None:
        """Send what has not been sent yet."""
        if not any(upload.pass_once(progress) for _ in range(_MOST_TRIES)):
            raise UserError(f"{self._uri}: files of {self._path} changed while they were sent")
        progress.finish()
        self._unsent.unlink(missing_ok=True)

    def _bring_up_to_date(self, remote: Remote, journal: Journal, progress: Progress) -> None:
        files = {name: file for name, file in remote.files().items() if is_output(name)}
        if self._unsent.exists():
            self._require_as_left(files, journal)
            wanted = {name: file for name, file in files.items() if not (self._path / name).exists()}
            self._download(remote, wanted, journal, progress)
            self.finish(Upload(remote, self._path, journal, self._uri), progress)
            return
        self._download(remote, {n: f for n, f in files.items() if not self._is_copy(n, f, journal)}, journal, progress)
        for name in list(journal.copied):
            if name not in files:
                self._remove(name)
                journal.remove(name)

    def _download(self, remote: Remote, files: dict[str, RemoteFile], journal: Journal, progress: Progress) -> None:
        download(remote, files, self._path, journal, progress, self._uri)
        if files:
            progress.finish()

    def _remove(self, name: str) -> None:
        path = self._path / name
        path.unlink(missing_ok=True)
        # There are no empty folders at the URI.
        for folder in path.relative_to(self._path).parents[:-1]:
            with suppress(OSError):
                (self._path / folder).rmdir()

    def _is_copy(self, name: str, file: RemoteFile, journal: Journal) -> bool:
        copied, path = journal.known(name), self._path / name
        return copied is not None and path.exists() and copied == (file, LocalFile.of(path.stat()))

    def _require_as_left(self, files: dict[str, RemoteFile], journal: Journal) -> None:
        """Raise UserError if others changed the URI since this machine's last, unfinished work on it."""
        left = {name: copied.remote for name, copied in journal.copied.items()}
        names = (files.keys() | left.keys()) - journal.begun
        if changed := [name for name in names if files.get(name) != left.get(name)]:
            raise UserError(
                f"{self._uri}: {min(changed)} was changed by another machine, while {self._path.parent} has work that "
                "was never sent; move that folder away to continue with what is at the URI"
            )

    def _is_being_written(self) -> bool:
        try:
            with locked(self._writer, self._uri):
                return False
        except UserError:
            return True


def _send_passes(upload: Upload, ended: threading.Event) -> None:
    """Run one pass of an upload after another."""
    has_warned = False
    is_over = True
    while not ended.wait(_PASS_SECONDS if is_over else _PASS_SECONDS / 10):
        try:
            is_over = upload.pass_once()
            has_warned = False
        except UserError as error:
            # The work continues; only the last pass, at its end, has to succeed.
            if not has_warned:
                logger.warning("%s; trying again", error)
            has_warned = True
