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
from rayrec.store.claims import MANIFEST_FILE, Claim, is_claimed, unfinished_work
from rayrec.store.files import files_below, is_output, remove, sync, write_atomically
from rayrec.store.paths import RemotePath, cache_root, file_name, path_of, place_on_this_node

logger = logging.getLogger(__name__)

OutputKind = Literal["file", "folder", "place"]
"""What a command makes: a new file; a new folder, renamed to its name when it is whole; files in a folder that may be
there."""

_shared: ContextVar[Claim | None] = ContextVar("shared", default=None)
"""The claim on the `shared` folder in whose block we are."""


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
    with owned(path):
        require_output(path)
        if isinstance(path, RemotePath):
            new = _shared_folder(path, fingerprint) if shared else _put_folder(path, fingerprint)
            with new as folder:
                yield folder
            return
        unfinished = path.with_name(f".{path.name}.unfinished-{fingerprint or 'new'}")
        if fingerprint is None:
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            with naming(path, *temporary_folders()):
                unfinished.mkdir(exist_ok=True)
                yield unfinished
                _remove_hidden(unfinished)
                # All of it is on the disk before it has its name.
                for written in (*unfinished.rglob("*"), unfinished):
                    sync(written)
                if path.exists():
                    path.rmdir()
                os.rename(unfinished, path)
                sync(path.parent)
            for left in path.parent.glob(f".{glob.escape(path.name)}.unfinished-*"):
                shutil.rmtree(left, ignore_errors=True)
        except BaseException as error:
            if not _goes_on(unfinished, fingerprint, error):
                shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextmanager
def _shared_folder(path: RemotePath, fingerprint: str | None) -> Iterator[Path]:
    """Do the part of `new_folder` at a URI that many nodes write: claim it, and in the end say that it is whole."""
    claim = Claim.take(path, fingerprint or "")
    before = _shared.set(claim)
    try:
        yield path
        claim.finish()
    except BaseException as error:
        if not _goes_on(path, fingerprint, error):
            _give_up(claim)
        raise
    finally:
        _shared.reset(before)
    with suppress(UserError):  # the folder is whole also with them
        _remove_hidden(path)


@contextmanager
def _put_folder(path: RemotePath, fingerprint: str | None) -> Iterator[Path]:
    """Do the part of `new_folder` at a URI that this node alone writes: claim it, and put at the end what it wrote."""
    # Its parts are on this node alone, so others begin anew: the claim has no fingerprint.
    claim = Claim.take(path, "")
    here = cache_root() / "unfinished" / f"{file_name(str(path))}-{fingerprint or 'new'}"
    if fingerprint is None:
        shutil.rmtree(here, ignore_errors=True)
    try:
        with naming(here, *temporary_folders()):
            here.mkdir(parents=True, exist_ok=True)
            yield here
        _put(here, claim)
    except BaseException as error:
        if not _goes_on(here, fingerprint, error):
            shutil.rmtree(here, ignore_errors=True)
            _give_up(claim)
        raise
    # What was written is its copy on this node (`rayrec.store.node_copy`).
    place = place_on_this_node(path)
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    os.rename(here, place)


def _put(here: Path, claim: Claim) -> None:
    """Put the files of a folder to its URI: those that say that others are whole (*.json) last, as they were written.

    Each only while the folder is ours, and the manifest by the claim, which decides.
    """

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


def _give_up(claim: Claim) -> None:
    with suppress(UserError):  # it would hide the error
        claim.give_up()


def write_manifest(folder: Path, content: str) -> None:
    """Write what says that a folder is whole, its last file; that of a `shared` folder appears when its block ends."""
    claim = _shared.get()
    if claim is not None and claim.folder == folder:
        claim.manifest = content.encode()
    else:
        write_atomically(folder / MANIFEST_FILE, content)


def _remove_hidden(folder: Path) -> None:
    """Remove what is in a folder but no part of its content."""
    for path in folder.iterdir():
        if not is_output(path.name):
            remove(path)


def _goes_on(unfinished: Path, fingerprint: str | None, error: BaseException) -> bool:
    """Return whether the same work may go on after an error from what is there, and say so."""
    goes_on = fingerprint is not None and (isinstance(error, PassingError) or not isinstance(error, UserError))
    if goes_on:
        logger.warning("%s: finished parts are kept; run the same command again to continue", unfinished)
    return goes_on


def is_begun(path: Path, fingerprint: str) -> bool:
    """Return whether a `shared` new folder at a URI was begun with a fingerprint and is not whole. Raises UserError."""
    return isinstance(path, RemotePath) and unfinished_work(path) == fingerprint


def has_unfinished_work(path: Path) -> bool:
    """Return whether something was begun to be written as `path` that is not whole. Raises UserError."""
    if isinstance(path, RemotePath):
        return unfinished_work(path) is not None
    return any(path.parent.glob(f".{glob.escape(path.name)}.unfinished-*"))


def is_vacant(path: Path) -> bool:
    """Return whether `path` is absent or an empty folder, or at a URI a folder that is not whole."""
    if isinstance(path, RemotePath):
        return not any(map(is_output, files_below(path))) or is_claimed(path)
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
def owned(output: Path) -> Iterator[None]:
    """Hold `output`, which need not exist, for this thread alone to write; the thread may hold it more than once.

    Raises UserError if another process of this machine, or another thread of this one, writes it.
    """
    with naming(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    with locked(output.with_name(f".{output.name}.lock"), output, again=True):
        yield


@contextmanager
def locked(lock: Path, output: Path | str, *, again: bool = False) -> Iterator[None]:
    """Hold a lock file, which is released when the process dies. Raises UserError if it is held already.

    That of a URI is on this machine, and keeps no other one out. `again`: the thread that holds it may hold it once
    more.
    """
    from filelock import FileLock, Timeout

    if isinstance(lock, RemotePath):
        lock = cache_root() / "locks" / hashlib.sha256(str(lock).encode()).hexdigest()
        lock.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(lock, is_singleton=again)
    try:
        with naming(lock):
            held.acquire(blocking=False)
    except Timeout:
        raise UserError(f"{output}: another command is writing to it; wait until it ends") from None
    try:
        yield
    finally:
        if held.lock_counter == 1:
            lock.unlink(missing_ok=True)
        held.release()
