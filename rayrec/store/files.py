"""Files and folders, on disks and at URIs, that are whole or absent even if a process or machine dies at any moment.

On a disk, what is written is brought to it before it gets its name. At a URI, files appear whole, the JSON files of a
folder come last, and a mark stands in the folder until all are there. Locks and marks keep two writers apart.
"""

import glob
import hashlib
import io
import json
import logging
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from uuid import uuid4

from rayrec.common.disk_errors import naming, temporary_folders
from rayrec.common.errors import PassingError, UserError
from rayrec.common.process import in_background
from rayrec.store.paths import RemotePath, cache_root, copy_of, file_name, shortened

logger = logging.getLogger(__name__)

_UNFINISHED_FILE = re.compile(r"\..+\.[0-9a-f]{32}")
_MARK = ".unfinished-"
"""The beginning of the name of a file that says that the folder at a URI is not whole."""
_PUT_SECONDS = 5.0
"""Pause between two looks for files that have grown."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part of it."""
    data = content.encode() if isinstance(content, str) else content
    if isinstance(path, RemotePath):
        path.write_bytes(data)
        return
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_bytes(data)


def as_json(value: Any) -> str:
    """Return `value` as the indented text of a JSON file."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, as_json(value))


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path of this node to write to, whose file becomes that of `path` when the block ends without an error.

    The file and its name are on the disk then, or at the URI. Two processes may write the same file at once; the last
    one wins. The file's folder is made if missing, but not the folder around that: a late task must not bring back an
    output that was given up. Raises DiskError if the disk is full or may not be written, and UserError if the store
    cannot be.
    """
    if isinstance(path, RemotePath):
        with new_remote_file(path) as file:
            yield Path(file.name)
        return
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with naming(path):
            path.parent.mkdir(exist_ok=True)
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    except BaseException:
        with suppress(OSError):  # a second one, of a name that is too long or a disk that is read-only
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def new_remote_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that becomes that of a URI when the block ends without an error. Raises UserError.

    What the block writes lies on this node's disk meanwhile, so that putting it can be tried again.
    """
    from rayrec.store.objects import write

    assert isinstance(path, RemotePath), path
    with naming(cache_root()):
        cache_root().mkdir(parents=True, exist_ok=True)
        name = shortened(f"{path.parent.name}-{path.name}")
        with tempfile.NamedTemporaryFile(dir=cache_root(), prefix=f"{name}.") as file:
            yield cast(BinaryIO, file)
            file.flush()
            with open(file.name, "rb") as written:  # a library may have written it anew, by its name
                write(path, written, os.fstat(written.fileno()).st_size)


def remove_unfinished_files(folder: Path) -> None:
    """Remove what killed writers of a `new_file` left in `folder` and below it. Nobody may write there meanwhile."""
    if not isinstance(folder, RemotePath):  # where files are whole as soon as they have names
        for path in folder.rglob(".*"):
            if _UNFINISHED_FILE.fullmatch(path.name) and path.is_file():
                path.unlink()


@contextmanager
def new_folder(path: Path, fingerprint: str | None = None, *, shared: bool = False) -> Iterator[Path]:
    """Yield a folder that becomes `path` when the block ends without an error, all of it on the disk or at the URI.

    On an error it is removed. With `fingerprint`, for long work, it survives a kill and every error except a
    `UserError` after which the same work could not succeed (a `PassingError` is survived), and the next caller with the
    same fingerprint finds what was done. What attempts with other fingerprints left is kept until one succeeds.

    Where `path` is on a disk, the folder is a sibling of it. Where it is at a URI, it is a folder of this node, whose
    files are put at the end; or, if it is `shared`, `path` itself, so that other nodes write to it, too. Raises
    UserError if `path` exists and is not an empty folder, or if another process writes it.
    """
    require_absent(path)
    with owned(path):
        require_absent(path)
        if isinstance(path, RemotePath):
            with _new_remote_folder(path, fingerprint, shared) as folder:
                yield folder
            return
        unfinished = path.with_name(f".{path.name}.unfinished-{fingerprint or 'new'}")
        if fingerprint is None:
            shutil.rmtree(unfinished, ignore_errors=True)
        try:
            with naming(path, *temporary_folders()):
                unfinished.mkdir(exist_ok=True)
                yield unfinished
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
def _new_remote_folder(path: RemotePath, fingerprint: str | None, shared: bool) -> Iterator[Path]:
    """Do the part of `new_folder` at a URI: mark the folder, write or put its files, the JSON last, take the mark away.

    Whoever begins removes what others left there, and first of all their mark. So of two that write at the same time
    the first one finds at its end that its mark is gone, and gives up.
    """
    mark = path / f"{_MARK}{fingerprint if shared and fingerprint else uuid4().hex}"
    here = cache_root() / "unfinished" / f"{file_name(str(path))}-{fingerprint or 'new'}"
    if not mark.exists():
        remove(path)
        mark.write_bytes(b"")
    if fingerprint is None:
        shutil.rmtree(here, ignore_errors=True)
    try:
        if shared:
            yield path
        else:
            with naming(here, *temporary_folders()):
                here.mkdir(parents=True, exist_ok=True)
                yield here
            _put(here, path, mark)
        _require_mark(mark)
        mark.unlink()
    except BaseException as error:
        if not _goes_on(path if shared else here, fingerprint, error):
            shutil.rmtree(here, ignore_errors=True)
            with suppress(UserError):  # it would hide the error
                if mark.exists():
                    remove(path)
        raise
    shutil.rmtree(here, ignore_errors=True)


def _put(here: Path, path: RemotePath, mark: RemotePath) -> None:
    """Put the files of a folder to a URI: those that say that others are whole (*.json) last, as they were written."""
    from rayrec.store.objects import for_each, write

    def put(name: str) -> None:
        with (here / name).open("rb") as file:
            modified = write(path / name, file, os.fstat(file.fileno()).st_size).modified
        os.utime(here / name, (modified, modified))

    _require_mark(mark)
    names = [name for name in files_below(here) if is_output(name)]
    for_each(put, [name for name in names if not name.endswith(".json")])
    _require_mark(mark)
    manifests = [name for name in names if name.endswith(".json")]
    for name in sorted(manifests, key=lambda name: (here / name).stat().st_mtime_ns):
        put(name)
    # What was written is its copy on this node (`rayrec.store.node_copy`).
    copy_of(path).parent.mkdir(parents=True, exist_ok=True)
    os.rename(here, copy_of(path))


def _require_mark(mark: RemotePath) -> None:
    if not mark.exists():
        raise UserError(f"{mark.parent}: another command has begun to write it; give another --output")


def _goes_on(unfinished: Path, fingerprint: str | None, error: BaseException) -> bool:
    """Return whether the same work may go on after an error from what is there, and say so."""
    goes_on = fingerprint is not None and (isinstance(error, PassingError) or not isinstance(error, UserError))
    if goes_on:
        logger.warning("%s: finished parts are kept; run the same command again to continue", unfinished)
    return goes_on


def is_begun(path: Path, fingerprint: str) -> bool:
    """Return whether a `shared` new folder at a URI was begun with a fingerprint and is not whole. Raises UserError."""
    return isinstance(path, RemotePath) and (path / f"{_MARK}{fingerprint}").exists()


def has_unfinished_work(path: Path) -> bool:
    """Return whether something was begun to be written as `path` that is not whole. Raises UserError."""
    if isinstance(path, RemotePath):
        return any(name.startswith(_MARK) for name in _files_at(path))
    return any(path.parent.glob(f".{glob.escape(path.name)}.unfinished-*"))


class GrowingFiles:
    """Files of a folder that grow while they are written, on this node, and at a URI put again every few seconds."""

    def __init__(self, folder: Path, target: Path) -> None:
        """`folder` is where to write them, and `target` the folder that they are of, which may be the same."""
        self.folder, self._target = folder, target
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, int]] = {}

    def put(self) -> None:
        """Put what has grown since the last time. Raises UserError."""
        from rayrec.store.objects import write

        if not isinstance(self._target, RemotePath):
            return
        with self._lock:
            for name in files_below(self.folder):
                with (self.folder / name).open("rb") as file:
                    status = os.fstat(file.fileno())
                    state = status.st_size, status.st_mtime_ns
                    if self._seen.get(name) != state:
                        write(self._target / name, file, status.st_size)
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
        yield GrowingFiles(folder, folder)
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


def files_below(folder: Path) -> list[str]:
    """Return all files in a folder and those in it, sorted, by their paths in `folder`."""
    return sorted(_files_at(folder))


def sizes_in(folder: Path) -> Callable[[str], int]:
    """Return a function that gives the bytes of a file in a folder; it raises FileNotFoundError, and UserError."""
    if not isinstance(folder, RemotePath):
        return lambda name: (folder / name).stat().st_size
    found = _files_at(folder)

    def size(name: str) -> int:
        if name not in found:
            raise FileNotFoundError(f"{folder / name}: does not exist")
        return found[name]

    return size


def _files_at(folder: Path) -> dict[str, int]:
    """Return the bytes of all files below a folder by their paths in it."""
    if isinstance(folder, RemotePath):
        from rayrec.store import objects

        return {name: file.bytes for name, file in objects.files_below(folder).items()}
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # others may remove it meanwhile
            if path.is_file():
                found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return found


def is_output(name: str) -> bool:
    """Return whether a file, given by its path in a folder, is a finished part of the folder's content.

    Other names that begin with a dot are temporary, or of this machine only; `.metadata` is in torch's checkpoints.
    """
    *folders, file = name.split("/")
    return (not file.startswith(".") or file == ".metadata") and not any(f.startswith(".") for f in folders)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there. Raises UserError if a store cannot be changed.

    At a URI, first what says that others are whole goes, and last what says that they are not.
    """
    if isinstance(path, RemotePath):
        from rayrec.store.objects import delete, for_each

        names = files_below(path)
        if not names:
            delete(path)
        for_each(delete, [path / name for name in names if name.endswith(".json")])
        for_each(delete, [path / name for name in names if not name.endswith(".json") and not name.startswith(_MARK)])
        for_each(delete, [path / name for name in names if name.startswith(_MARK)])
        path = copy_of(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    """Copy a file, or a folder with all that is in it, from and to wherever they lie. Raises OSError, and UserError."""
    if source.is_dir():
        for name in files_below(source):
            copy(source / name, target / name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, RemotePath) or isinstance(target, RemotePath):
        with source.open("rb") as file, new_file(target) as temporary, temporary.open("wb") as sink:
            shutil.copyfileobj(file, sink, 2**22)
    else:
        shutil.copyfile(source, target)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk, so that a loss of power does not undo them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(root: Path) -> None:
    """Bring the names in `root` and all folders below it to the disk; the files themselves were synced before."""
    for folder, _, _ in os.walk(root) if not isinstance(root, RemotePath) else ():
        sync(Path(folder))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return sha256_in(file)


def sha256_in(file: io.BufferedReader) -> str:
    """Return the SHA-256 of an open file in hexadecimal."""
    return hashlib.file_digest(file, "sha256").hexdigest()


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


def is_vacant(path: Path) -> bool:
    """Return whether `path` is absent or an empty folder, or at a URI a folder that is not whole."""
    if isinstance(path, RemotePath):
        names = files_below(path)
        return not any(map(is_output, names)) or any(name.startswith(_MARK) for name in names)
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def require_absent(path: Path) -> None:
    """Raise UserError if `path` exists and is not an empty folder, or cannot be made."""
    if not is_vacant(path):
        raise UserError(f"{path}: already exists; give another --output, or remove it first")
    if isinstance(path, RemotePath):
        return
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        reason = "is not writable" if parent.is_dir() else "is not a folder"
        raise UserError(f"{path}: cannot be created, because {parent} {reason}; give another --output")
