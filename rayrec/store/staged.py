"""Staged folders: fetched from their URI before they are read, and sent to it while they are written."""

import logging
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from rayrec.common.errors import UserError
from rayrec.common.process import in_background
from rayrec.common.progress import Progress, SilentProgress
from rayrec.store.files import locked
from rayrec.store.journal import Journal, LocalFile
from rayrec.store.objects import Remote, RemoteFile
from rayrec.store.paths import here, is_at_uri, location, name_at_uri, staged_root
from rayrec.store.transfer import Upload, download, is_large, is_output, outputs

logger = logging.getLogger(__name__)

_PASS_SECONDS = 5.0
"""Pause between two passes that send what a running command wrote."""
_MOST_TRIES = 3
_HANDOVER_SECONDS = 60.0
"""How long a process that was told to end may take until it no longer writes a folder."""


def fetch(path: Path, progress: Progress | None = None, *, whole: bool = False) -> Path:
    """Bring the staged folder of a path up to date with its URI, on this node; return the path on this node.

    Large files are left where they are, and `rayrec.store.files` reads them there; `whole`: those below `path` are
    fetched too, as they will be mapped. Any other path is returned as it is. Only one process at a time fetches, and
    while a process of this machine writes the folder, which is then ahead of its URI, only what is missing of `path`.
    Raises UserError if the remote folder cannot be read.
    """
    path = here(path)
    root = staged_root(path)
    if root is not None:
        below = name_at_uri(path) if whole else None
        _StagedFolder(root).refresh(below, progress or SilentProgress())
    return path


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
    with ExitStack() as owner:
        folder.take(owner)
        mirror = _Mirror(folder, folder.begin(continues, progress), owner)
        is_done = False
        try:
            with mirror.running():
                yield
            is_done = True
        finally:
            try:
                folder.finish(mirror.upload, progress)
            except UserError as error:
                message = f"{error}; everything was written to {path}; the next command with this URI sends it"
                if is_done:
                    raise UserError(message) from None
                logger.warning(message)


@contextmanager
def lent(path: Path, progress: Progress) -> Iterator[bool]:
    """Let a process on any node write the staged folder of a path, which this process mirrors, during the block.

    All that was written is sent before, and what the other process sent (`borrowed`) is fetched after. Yields whether
    the folder is lent: if this process does not mirror it, it is not, and whoever writes it must see `path`.
    """
    mirror = _mirrors.pop(staged_root(path) or path, None)
    if mirror is None:
        yield False
        return
    try:
        with mirror.pass_lock:
            mirror.folder.finish(mirror.upload, progress)
            mirror.owner.close()
            try:
                yield True
            except BaseException:
                with suppress(UserError):  # it would hide the error
                    mirror.take_back(progress)
                raise
            mirror.take_back(progress)
    finally:
        _mirrors[mirror.folder.path] = mirror


@contextmanager
def borrowed(path: Path) -> Iterator[None]:
    """Write the staged folder of a path, which its owner has lent, and send what the block writes, until it ends.

    The folder is first made equal to its URI: what a process that died here has not sent is lost. Raises UserError.
    """
    root = staged_root(here(path))
    assert root is not None, path
    folder, progress = _StagedFolder(root), SilentProgress()
    with ExitStack() as owner:
        folder.take(owner, _HANDOVER_SECONDS)
        mirror = _Mirror(folder, folder.begin(True, progress, is_lent=True), owner)
        try:
            with mirror.running():
                yield
        except BaseException:
            with suppress(UserError):  # it would hide the error
                folder.send(mirror.upload, progress)
            raise
        folder.send(mirror.upload, progress)


def send(path: Path, wrote: Path | None = None) -> None:
    """Send all that this process has written to a staged folder that it mirrors; does nothing for any other path.

    `wrote`: a folder in it whose files others have written to the URI itself. They are deleted there when the folder is
    removed here. Raises UserError.
    """
    mirror = _mirrors.get(staged_root(path) or path)
    if mirror is not None:
        with mirror.pass_lock:
            if wrote is not None:
                mirror.upload.adopt(wrote)
            mirror.folder.send(mirror.upload, SilentProgress())


class _Mirror:
    """The sending of one staged folder by this process, which owns it."""

    def __init__(self, folder: "_StagedFolder", upload: Upload, owner: ExitStack) -> None:
        self.folder, self.upload, self.owner = folder, upload, owner
        self.pass_lock = threading.RLock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Send what is written every few seconds while the block runs."""
        _mirrors[self.folder.path] = self
        try:
            with in_background(self._send_passes, "rayrec-mirror"):
                yield
        finally:
            del _mirrors[self.folder.path]

    def take_back(self, progress: Progress) -> None:
        """Own the folder again, with what another process has written to the URI. Raises UserError."""
        self.folder.take(self.owner, _HANDOVER_SECONDS)
        self.upload = self.folder.begin(True, progress)

    def _send_passes(self, ended: threading.Event) -> None:
        has_warned = False
        is_over = True
        while not ended.wait(_PASS_SECONDS if is_over else _PASS_SECONDS / 10):
            try:
                with self.pass_lock:
                    is_over = self.upload.pass_once()
                has_warned = False
            except UserError as error:
                # The work continues; only the last pass, at its end, has to succeed.
                if not has_warned:
                    logger.warning("%s; trying again", error)
                has_warned = True


_mirrors: dict[Path, _Mirror] = {}
"""The staged folders that this process mirrors."""


class _StagedFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
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

    def refresh(self, below: str | None, progress: Progress) -> None:
        """Bring the folder up to date; `below`: a file or folder in it whose large files are fetched too."""
        with self._lock:
            if not self._is_being_written():
                self._bring_up_to_date(Remote(self._uri), Journal(self._journal_file), progress, below)
            elif below is not None:
                remote = Remote(self._uri)
                missing = {
                    name: file
                    for name, file in remote.files().items()
                    if is_large(name) and _is_below(name, below) and not (self.path / name).exists()
                }
                mirror = _mirrors.get(self.path)
                # The journal belongs to the process that writes.
                self._download(remote, missing, None if mirror is None else mirror.upload.journal, progress)

    def take(self, owner: ExitStack, patience_seconds: float = 0.0) -> None:
        """Be the only process of this machine that writes the folder, until `owner` is closed.

        Raises UserError if another one still does after `patience_seconds`.
        """
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                with self._lock:
                    owner.enter_context(locked(self._writer, self._uri))
                return
            except UserError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)

    def begin(self, continues: bool, progress: Progress, *, is_lent: bool = False) -> Upload:
        """Make the folder equal to its URI. Raises UserError if that cannot be written, or must be empty but is not.

        `is_lent`: several nodes write it in turn, so only what is at the URI counts.
        """
        with self._lock:
            remote, journal = Remote(self._uri), Journal(self._journal_file)
            remote_only: set[str] = set()
            if is_lent:
                self._unsent.unlink(missing_ok=True)
            if continues or self._unsent.exists():
                remote_only = self._bring_up_to_date(remote, journal, progress)
            if not continues:
                there = remote.files()
                # Outputs beside unfinished work were put there by an attempt that died as it ended.
                if any(map(is_output, there)) and not any(is_at_uri(self.path / name) for name in there):
                    raise UserError(f"{self._uri}: already exists; give another --output, or remove it first")
                # These files were fetched before they were removed from the URI.
                shutil.rmtree(self.path, ignore_errors=True)
                self._journal_file.unlink(missing_ok=True)
                journal = Journal(self._journal_file)
            if not is_lent:
                remote.require_writable()
                self._unsent.touch()
            return Upload(remote, self.path, journal, self._uri, remote_only)

    def send(self, upload: Upload, progress: Progress) -> None:
        """Send what has not been sent yet."""
        if not any(upload.pass_once(progress) for _ in range(_MOST_TRIES)):
            raise UserError(f"{self._uri}: files of {self.path} changed while they were sent")
        progress.finish()

    def finish(self, upload: Upload, progress: Progress) -> None:
        """Send what has not been sent yet; the folder is only a copy then."""
        self.send(upload, progress)
        self._unsent.unlink(missing_ok=True)

    def _bring_up_to_date(
        self, remote: Remote, journal: Journal, progress: Progress, below: str | None = None
    ) -> set[str]:
        """Return the names of the files that are at the URI alone."""
        files = {name: file for name, file in remote.files().items() if is_output(name)}
        wanted = {
            name: file
            for name, file in files.items()
            if not is_large(name) or (below is not None and _is_below(name, below))
        }
        if self._unsent.exists():
            self._require_as_left(files, journal)
            wanted = {name: file for name, file in wanted.items() if not (self.path / name).exists()}
            self._download(remote, wanted, journal, progress)
            self.finish(Upload(remote, self.path, journal, self._uri), progress)
        else:
            wanted = {n: f for n, f in wanted.items() if not self._is_copy(n, f, journal)}
            self._download(remote, wanted, journal, progress)
            for name in outputs(self.path).keys() | journal.copied.keys():
                if name not in files or not self._is_copy(name, files[name], journal):
                    (self.path / name).unlink(missing_ok=True)
                    journal.remove(name)
        self._make_folders_of(files)
        return {name for name in files if not (self.path / name).exists()}

    def _download(
        self, remote: Remote, files: dict[str, RemoteFile], journal: Journal | None, progress: Progress
    ) -> None:
        download(remote, files, self.path, journal, progress, self._uri)
        if files:
            progress.finish()

    def _make_folders_of(self, files: Iterable[str]) -> None:
        """Make the folders in which files are, and leave no other that is empty: folders tell what there is."""
        there = {(self.path / name).parent for name in files}
        for folder in there:
            folder.mkdir(parents=True, exist_ok=True)
        for folder in sorted((path for path in self.path.rglob("*") if path.is_dir()), reverse=True):
            if folder not in there and is_output(folder.relative_to(self.path).as_posix()):
                with suppress(OSError):  # others are in it
                    folder.rmdir()

    def _is_copy(self, name: str, file: RemoteFile, journal: Journal) -> bool:
        copied, path = journal.known(name), self.path / name
        return copied is not None and path.exists() and copied == (file, LocalFile.of(path.stat()))

    def _require_as_left(self, files: dict[str, RemoteFile], journal: Journal) -> None:
        """Raise UserError if others changed the URI since this machine's last, unfinished work on it."""
        left = {name: copied.remote for name, copied in journal.copied.items()}
        names = ({name for name in files if not is_large(name)} | left.keys()) - journal.begun
        if changed := [name for name in names if files.get(name) != left.get(name)]:
            raise UserError(
                f"{self._uri}: {min(changed)} was changed by another machine, but {self.path.parent} has work that "
                "was never sent; move that folder away to continue with what is at the URI"
            )

    def _is_being_written(self) -> bool:
        try:
            with locked(self._writer, self._uri):
                return False
        except UserError:
            return True


def _is_below(name: str, folder: str) -> bool:
    """Return whether a file is `folder`, or is in it; "" is the folder that everything is in."""
    return not folder or name == folder or name.startswith(f"{folder}/")
