"""A staged folder: brought up to date before it is read, and its URI kept like it while it is written."""

import fcntl
import logging
import os
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
from rayrec.storage.outputs import is_output
from rayrec.storage.remote import Remote, RemoteFile
from rayrec.storage.transfer import Upload, download

logger = logging.getLogger(__name__)

_PASS_SECONDS = 5.0
"""Between two passes that send what a running command wrote."""
_MOST_TRIES = 3


def fetch(path: Path, progress: Progress | None = None) -> None:
    """Bring a staged folder up to date with its URI; nothing is done for any other path.

    One process at a time does so. While a process of this machine writes the folder, it is what that has written.
    Raises UserError where the remote folder cannot be read.
    """
    if staged_root(path) == path:
        _StagedFolder(path).refresh(progress or SilentProgress())


@contextmanager
def mirrored(path: Path, *, continues: bool, progress: Progress) -> Iterator[None]:
    """Keep the URI of a staged folder like what the block writes into it; nothing is done for any other path.

    Every few seconds what is new is sent, in the order in which it was written, and at the end all that is left, also
    where the block ends in an error. `continues`: what is there is fetched first; else it is an error. Raises
    UserError where the URI cannot be written; at the end it says where the local copy is, which is kept, and which
    the next command that is given the URI sends.
    """
    if staged_root(path) != path:
        yield
        return
    folder = _StagedFolder(path)
    with folder.owned():
        upload = folder.begin(continues, progress)
        try:
            with in_background(partial(_send_passes, upload), "rayrec-mirror"):
                yield
        except BaseException:
            try:
                folder.finish(upload, progress)
            except UserError as error:
                logger.warning("%s; what was written is in %s", error, path)
            raise
        try:
            folder.finish(upload, progress)
        except UserError as error:
            raise UserError(
                f"{error}; all was written to {path}, and the next command that is given the URI sends it"
            ) from None


class _StagedFolder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._uri = location(path)
        home = path.parent
        home.mkdir(parents=True, exist_ok=True)
        self._lock, self._writer = home / ".lock", home / ".writer"
        self._journal_file = home / ".journal"
        self._unsent = home / ".unsent"
        """There while the folder may be ahead of its URI; without it the folder is a copy, whatever happened to it."""

    def refresh(self, progress: Progress) -> None:
        with self._locked():
            if not self._is_being_written():
                self._bring_up_to_date(Remote.open(self._uri), Journal(self._journal_file), progress)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Be the one process of this machine that writes the folder. Raises UserError where another one is."""
        with ExitStack() as stack:
            with self._locked():  # in which others look whether somebody is
                stack.enter_context(locked(self._writer, self._uri))
            yield

    def begin(self, continues: bool, progress: Progress) -> Upload:
        """Make the folder that of the URI. Raises UserError where it cannot be written, or should be empty."""
        with self._locked():
            remote, journal = Remote.open(self._uri), Journal(self._journal_file)
            if continues or self._unsent.exists():
                self._bring_up_to_date(remote, journal, progress)
            if not continues:
                if any(map(is_output, remote.files())):
                    raise UserError(f"{self._uri}: already exists; give another --output, or remove it first")
                # What was fetched from the URI before its files were removed.
                shutil.rmtree(self._path, ignore_errors=True)
                self._journal_file.unlink(missing_ok=True)
                journal = Journal(self._journal_file)
            remote.require_writable()
            self._unsent.touch()
            return self._upload(remote, journal)

    def finish(self, upload: Upload, progress: Progress) -> None:
        """Send what is left."""
        if not any(upload.pass_once(progress) for _ in range(_MOST_TRIES)):
            raise UserError(f"{self._uri}: files of {self._path} changed while they were sent")
        progress.finish()
        self._unsent.unlink(missing_ok=True)

    def _upload(self, remote: Remote, journal: Journal) -> Upload:
        return Upload(remote, self._path, journal, f"send to {self._uri}")

    def _bring_up_to_date(self, remote: Remote, journal: Journal, progress: Progress) -> None:
        files = {name: file for name, file in remote.files().items() if is_output(name)}
        if self._unsent.exists():
            self._require_as_left(files, journal)
            wanted = {name: file for name, file in files.items() if not (self._path / name).exists()}
            self._download(remote, wanted, journal, progress)
            self.finish(self._upload(remote, journal), progress)
            return
        self._download(remote, {n: f for n, f in files.items() if not self._is_copy(n, f, journal)}, journal, progress)
        for name in list(journal.copied):
            if name not in files:
                self._remove(name)
                journal.remove(name)

    def _download(self, remote: Remote, files: dict[str, RemoteFile], journal: Journal, progress: Progress) -> None:
        download(remote, files, self._path, journal, progress, f"fetch {self._uri}")
        if files:
            progress.finish()

    def _remove(self, name: str) -> None:
        path = self._path / name
        path.unlink(missing_ok=True)
        # Remotely there are no empty folders.
        for folder in path.relative_to(self._path).parents[:-1]:
            with suppress(OSError):
                (self._path / folder).rmdir()

    def _is_copy(self, name: str, file: RemoteFile, journal: Journal) -> bool:
        copied = journal.copied.get(name)
        if copied is None or copied.remote != file or name in journal.begun:
            return False
        try:
            return LocalFile.of((self._path / name).stat()) == copied.local
        except FileNotFoundError:
            return False

    def _require_as_left(self, files: dict[str, RemoteFile], journal: Journal) -> None:
        """Raise UserError where others changed the URI since this machine's last, unfinished work on it."""
        left = {name: copied.remote for name, copied in journal.copied.items()}
        changed = [
            name
            for name in files.keys() | left.keys()
            if files.get(name) != left.get(name) and name not in journal.begun
        ]
        if changed:
            raise UserError(
                f"{self._uri}: {min(changed)} was changed by another machine, while {self._path.parent} has work that "
                "was never sent; move that folder away to go on with what the URI has"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other process of this machine brings the folder up to date."""
        descriptor = os.open(self._lock, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _is_being_written(self) -> bool:
        try:
            descriptor = os.open(self._writer, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False


def _send_passes(upload: Upload, ended: threading.Event) -> None:
    """One pass of an upload after the other."""
    told = False
    is_over = True
    while not ended.wait(_PASS_SECONDS if is_over else _PASS_SECONDS / 10):
        try:
            is_over = upload.pass_once()
            told = False
        except UserError as error:
            # The work goes on: the last pass, at its end, is the one that has to succeed.
            if not told:
                logger.warning("%s; trying again", error)
            told = True
