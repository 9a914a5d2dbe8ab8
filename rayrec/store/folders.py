"""Folders, on disks and at URIs, that are whole or absent even if a process or machine dies at any moment.

On a disk, a folder is written under another name and then renamed; a lock keeps other commands of the machine away.
At a URI its manifest.json is the claim of the one who writes it, and comes last (`rayrec.store.claims`).
"""

import errno
import glob
import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Literal
from uuid import uuid4

from rayrec.common.disk_errors import disk_error, naming, temporary_folders
from rayrec.common.errors import PassingError, UserError
from rayrec.store import objects
from rayrec.store.claims import MANIFEST_FILE, UNFINISHED, Claim, claim_on
from rayrec.store.files import files_below, is_output, remove_hidden, sync, write_atomically
from rayrec.store.paths import RemotePath, cache_root, file_name, path_of, place_on_this_node

logger = logging.getLogger(__name__)

OutputKind = Literal["file", "folder", "place"]
"""What a command makes: a new file; a new folder, renamed to its name when it is whole; files in a folder that may be
there."""


class _Beside:
    """A folder of a disk that is written under another name beside its own, which it takes when it is whole."""

    def __init__(self, path: Path, fingerprint: str | None) -> None:
        # Absolute, as workers have other working folders.
        self._path, self.folder = path, path.absolute().with_name(f"{_unfinished_prefix(path)}{fingerprint or 'new'}")
        if fingerprint is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)

    def finish(self) -> None:
        remove_hidden(self.folder)
        # All of it is on the disk before it has its name.
        for written in (*self.folder.rglob("*"), self.folder):
            sync(written)
        if self._path.exists():
            self._path.rmdir()
        os.rename(self.folder, self._path)
        sync(self._path.parent)

    def give_up(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def tidy(self) -> None:
        """Remove what attempts with other fingerprints left."""
        for left in self._path.parent.glob(f"{glob.escape(_unfinished_prefix(self._path))}*"):
            shutil.rmtree(left, ignore_errors=True)


class _Staged:
    """A folder of this node, whose files are put to a URI when all of them are there."""

    def __init__(self, path: RemotePath, fingerprint: str | None) -> None:
        self.folder = cache_root() / "unfinished" / f"{file_name(str(path))}-{fingerprint or 'new'}"
        if fingerprint is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        # Its parts are on this node alone, so others begin anew: the claim has no fingerprint.
        self._claim = Claim.take(path, "")

    def finish(self) -> None:
        """Put the files: those that say that others are whole (*.json) last, as they were written.

        Each only while the folder is ours, and the manifest by the claim, which decides.
        """
        here, claim = self.folder, self._claim

        def put(name: str) -> None:
            claim.require()
            with (here / name).open("rb") as file:
                modified = objects.write(claim.folder / name, file, os.fstat(file.fileno()).st_size).modified
            os.utime(here / name, (modified, modified))

        names = [name for name in files_below(here) if is_output(name) and name != MANIFEST_FILE]
        objects.for_each(put, [name for name in names if not name.endswith(".json")])
        marks = [name for name in names if name.endswith(".json")]
        for name in sorted(marks, key=lambda name: (here / name).stat().st_mtime_ns):
            put(name)
        if (here / MANIFEST_FILE).exists():
            claim.manifest = (here / MANIFEST_FILE).read_bytes()
        claim.finish()
        if claim.manifest is not None:
            modified = (claim.folder / MANIFEST_FILE).stat().st_mtime
            os.utime(here / MANIFEST_FILE, (modified, modified))

    def give_up(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._claim.give_up()

    def tidy(self) -> None:
        """Make what was written its copy on this node (`rayrec.store.node_copy`)."""
        remove_hidden(self.folder)
        place = place_on_this_node(self._claim.folder)
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(self.folder, place)


_being_written: ContextVar[_Beside | _Staged | Claim | None] = ContextVar("being_written", default=None)
"""The new folder in whose block we are."""


@contextmanager
def new_folder(path: Path, fingerprint: str | None = None, *, shared: bool = False) -> Iterator[Path]:
    """Yield a folder that becomes `path` when the block ends without an error, all of it on the disk or at the URI.

    On an error it is removed. With `fingerprint`, for long work, it survives a kill and every error except a
    `UserError` after which the same work could not succeed (a `PassingError` is survived), and the next caller with the
    same fingerprint finds what was done. What attempts with other fingerprints left is kept until one succeeds.

    Where `path` is on a disk, the folder is a sibling of it. Where it is at a URI, it is a folder of this node, whose
    files are put at the end; or, if it is `shared`, `path` itself, so that other nodes write to it, too. Hidden files
    (`.scratch`) do not become part of it. The manifest, if it has one, is written by `write_manifest`.

    Raises UserError if `path` exists and is not an empty folder, or if another process of this machine writes it; and
    at the end if another machine has taken it over at the URI (`rayrec.store.claims`).
    """
    require_output(path)
    with owned(path), naming(place_on_this_node(path), *temporary_folders()):
        require_output(path)
        new: _Beside | _Staged | Claim
        if not isinstance(path, RemotePath):
            new = _Beside(path, fingerprint)
        else:
            new = Claim.take(path, fingerprint or "") if shared else _Staged(path, fingerprint)
        before = _being_written.set(new)
        try:
            yield new.folder
            new.finish()
        except BaseException as error:
            if fingerprint is not None and (isinstance(error, PassingError) or not isinstance(error, UserError)):
                logger.warning("%s: finished parts are kept; run the same command again to continue", new.folder)
            else:
                with suppress(UserError):  # it would hide the error
                    new.give_up()
            raise
        finally:
            _being_written.reset(before)
        new.tidy()


def write_manifest(folder: Path, content: str) -> None:
    """Write what says that a folder is whole, its last file; that of a `shared` folder appears when its block ends."""
    new = _being_written.get()
    if isinstance(new, Claim) and new.folder == folder:
        new.manifest = content.encode()
    else:
        write_atomically(folder / MANIFEST_FILE, content)


def _unfinished_prefix(path: Path) -> str:
    """Return how the names begin under which a folder of a disk is written; fingerprints follow."""
    return f".{path.name}.unfinished-"


def unfinished_work(path: Path) -> set[str]:
    """Return the fingerprints of what was begun to be written as `path` and is not whole. Raises UserError."""
    if isinstance(path, RemotePath):
        fingerprint = (claim_on(path) or {}).get(UNFINISHED)
        return set() if fingerprint is None else {fingerprint}
    prefix = _unfinished_prefix(path)
    return {left.name.removeprefix(prefix) for left in path.parent.glob(f"{glob.escape(prefix)}*")}


def is_vacant(path: Path) -> bool:
    """Return whether `path` is absent or an empty folder, or at a URI a folder that is not whole."""
    if isinstance(path, RemotePath):
        return not any(map(is_output, files_below(path))) or claim_on(path) is not None
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def require_output(
    path: Path, kind: OutputKind = "folder", *, inputs: Iterable[str | Path] = (), is_own: bool = False
) -> None:
    """Raise UserError unless an output can be made at `path`, where something is written and removed to see it.

    `inputs`: what the command reads, as it was given; nothing may be written in it. `is_own`: what is there is the
    command's own, to go on with. A URI is not tried, since one may not remove what one may write.
    """
    with naming(path):
        if not is_own and not isinstance(path, RemotePath):
            _require_place(path, kind)
        for given in inputs:
            if is_read_from(given, path, kind):
                raise UserError(f"{path}: lies in what is read ({given}); give another --output")
        if not is_own and (not is_vacant(path) or (kind == "file" and path.is_dir())):
            raise UserError(f"{path}: already exists; give another --output, or remove it first")
        if not isinstance(path, RemotePath):
            _try_to_write(path, in_it=path.is_dir() and (is_own or kind == "place"))


def is_read_from(given: str | Path, path: Path, kind: OutputKind = "folder") -> bool:
    """Return whether an output would lie in an input: a folder, a file, a glob, or one of these at a URI."""
    read = path_of(str(given))
    if isinstance(read, RemotePath) or isinstance(path, RemotePath):
        return path.is_relative_to(read)
    real = Path(os.path.realpath(path))
    if read.is_dir() and kind == "file" and path.suffix in (".yaml", ".yml"):  # no rows (`rayrec.raw.input_files`)
        return False
    return real.is_relative_to(os.path.realpath(read)) or (kind == "file" and real.match(str(read.absolute())))


def _require_place(path: Path, kind: OutputKind) -> None:
    """Raise UserError for a path of this machine where no new file or folder can be made."""
    if path.is_symlink() and (kind == "folder" or not path.exists()):
        missing = "" if path.exists() else ", which does not exist"
        raise UserError(f"{path}: a link to {os.readlink(path)}{missing}; give that path or another --output")
    if path.name in ("", "..") or Path.cwd().is_relative_to(os.path.realpath(path)):
        raise UserError(f"{path}: the folder in which the command runs is in it; give another --output")
    if kind == "folder" and os.path.ismount(path):
        raise UserError(f"{path}: a mount point, which cannot be replaced; give a folder in it as --output")


def _try_to_write(path: Path, in_it: bool) -> None:
    """Make and remove something where an output will be written: in it, or in the nearest folder around it that is
    there, under a name as long as any of what is unfinished.
    """
    parent = path if in_it else next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise UserError(f"{path}: cannot be created, because {parent} is not a folder; give another --output")
    trial = parent / f".{path.name}.{uuid4().hex}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        place = path if error.errno == errno.ENAMETOOLONG else parent
        if (of_disk := disk_error(OSError(error.errno, "", str(place)), [place])) is not None:
            raise of_disk from None
        reason = f"{parent} takes no new folder ({str(error.strerror).lower()})"  # such as /proc
        raise UserError(f"{path}: cannot be created, because {reason}; give another --output") from None


@contextmanager
def owned(output: Path, lock: Path | None = None) -> Iterator[None]:
    """Hold `output`, which need not exist, for this thread alone to write; the thread may hold it more than once.

    `lock`: the file that is locked, which the end of the process releases, by default one beside the output. That of a
    URI is on this machine, and keeps no other one out. Raises UserError if another process of this machine, or another
    thread of this one, writes it.
    """
    from filelock import FileLock, Timeout

    lock = lock or output.with_name(f".{output.name}.lock")
    if isinstance(lock, RemotePath):
        lock = cache_root() / "locks" / hashlib.sha256(str(lock).encode()).hexdigest()
    held = FileLock(lock, is_singleton=True)
    try:
        with naming(lock):
            lock.parent.mkdir(parents=True, exist_ok=True)
            held.acquire(blocking=False)
    except Timeout:
        raise UserError(f"{output}: another command is writing to it; wait until it ends") from None
    try:
        yield
    finally:
        if held.lock_counter == 1:
            lock.unlink(missing_ok=True)
        held.release()
