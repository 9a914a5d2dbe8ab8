"""Files and folders that are complete or absent, even if the process or the machine dies at any moment, by their paths.

What is written is brought to the disk before it gets its name. Locks keep two processes from writing the same output.
Files are read on this node if they are here, and otherwise where their URI says; those of an unfinished folder at a URI
(`rayrec.store.unfinished`) are at that URI alone.
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from uuid import uuid4

from rayrec.common.disk_errors import naming, temporary_folders
from rayrec.common.errors import PassingError, UserError
from rayrec.internals.torch_checkpoint import Streams
from rayrec.store.paths import here, is_at_uri, location, name_at_uri, staged_root, staging_root

if TYPE_CHECKING:
    from rayrec.store.objects import Remote

logger = logging.getLogger(__name__)

_UNFINISHED_FILE = re.compile(r"\..+\.[0-9a-f]{32}")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part of it."""
    if not is_at_uri(path):
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def as_json(value: Any) -> str:
    """Return `value` as the indented text of a JSON file."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, as_json(value))


@contextmanager
def _new_local_file(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which becomes `path` when the block ends without an error.

    The file and its name are on the disk then. Two processes may write the same file at once; the last one wins. The
    file's folder is made if missing, but not the folder around that: a late task must not bring back an output that was
    given up. Raises DiskError if the disk is full or may not be written.
    """
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


def remove_unfinished_files(folder: Path) -> None:
    """Remove what killed writers of a `new_file` left in `folder` and below it. Nobody may write there meanwhile."""
    for path in folder.rglob(".*"):
        if _UNFINISHED_FILE.fullmatch(path.name) and path.is_file():
            path.unlink()


@contextmanager
def new_folder(path: Path, fingerprint: str | None = None) -> Iterator[Path]:
    """Yield a sibling of `path` that becomes `path` when the block ends without an error, all of it on the disk.

    On an error the sibling is removed. With `fingerprint`, for long work, it survives a kill and every error except a
    `UserError` after which the same work could not succeed (a `PassingError` is survived), and the next caller with the
    same fingerprint finds what was done. What attempts with other fingerprints left is kept until one succeeds.
    Raises UserError if `path` exists and is not an empty folder, or if another process writes it.
    """
    require_absent(path)
    with owned(path):
        require_absent(path)
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
            goes_on = isinstance(error, PassingError) or not isinstance(error, UserError)
            if fingerprint is not None and goes_on:
                logger.warning("%s: finished parts are kept; run the same command again to continue", unfinished)
            else:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk, so that a loss of power does not undo them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(root: Path) -> None:
    """Bring the names in `root` and all folders below it to the disk; the files themselves were synced before."""
    for folder, _, _ in os.walk(root):
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

    Raises UserError if another process, or another thread of this one, writes it.
    """
    with naming(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    with locked(output.with_name(f".{output.name}.lock"), output, again=True):
        yield


@contextmanager
def locked(lock: Path, output: Path | str, *, again: bool = False) -> Iterator[None]:
    """Hold a lock file, which is released when the process dies. Raises UserError if it is held already.

    `again`: the thread that holds it may hold it once more.
    """
    from filelock import FileLock, Timeout

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
    """Return whether `path` is absent or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def require_absent(path: Path) -> None:
    """Raise UserError if `path` exists and is not an empty folder, or cannot be made."""
    if not is_vacant(path):
        raise UserError(f"{path}: already exists; give another --output, or remove it first")
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        reason = "is not writable" if parent.is_dir() else "is not a folder"
        raise UserError(f"{path}: cannot be created, because {parent} {reason}; give another --output")


_SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
"""Set by Spark for the Python processes of an executor: its folders for files of its own, with commas in between."""
_BUFFER_BYTES = 2**22
"""Readers of pickles and of torch's files ask for some bytes at a time, each of which would be a request."""


def open_file(path: Path) -> io.BufferedReader:
    """Return a file to read any part of. Raises OSError, and UserError if a bucket cannot be read."""
    if is_remote(path):
        remote, name = remote_file(path)
        return io.BufferedReader(remote.open(name), _BUFFER_BYTES)
    return on_this_node(path).open("rb")


def read_bytes(path: Path) -> bytes:
    """Return the content of a small file. Raises as `open_file`."""
    with open_file(path) as file:
        return file.read()


def exists(path: Path) -> bool:
    """Return whether a file is there: on this node, or at its URI if it is in an unfinished folder there."""
    if not is_at_uri(path):
        return path.exists()
    remote, name = remote_file(path)
    return remote.has(name)


def files_below(folder: Path) -> list[str]:
    """Return all files in a folder and those in it, sorted, by their paths in `folder`."""
    if not is_at_uri(folder):
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    remote, below = remote_file(folder)
    return sorted(name.removeprefix(f"{below}/") for name in remote.files(below))


def files_in(folder: Path, pattern: str) -> list[Path]:
    """Return the files in a folder whose names match a pattern (`*.parquet`), sorted by name."""
    if not is_at_uri(folder):
        return sorted(folder.glob(pattern))
    names = [PurePath(name) for name in files_below(folder)]
    return [folder / name for name in names if len(name.parts) == 1 and name.match(pattern)]


def make_folder(path: Path) -> None:
    """Make a folder to write files to, and those around it; at a URI there are none to make."""
    if not is_at_uri(path):
        path.mkdir(parents=True, exist_ok=True)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there. Raises UserError if a bucket cannot be."""
    if is_at_uri(path):
        delete_remote_files(path)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to, whose file becomes that of `path` when the block ends without an error.

    As `_new_local_file`, or by sending it to the URI if `path` is in an unfinished folder there; until
    then it lies in a folder of its own on this node's disk. Raises UserError if the URI cannot be written.
    """
    if not is_at_uri(path):
        with _new_local_file(path) as temporary:
            yield temporary
        return
    with naming(_local_disk()), tempfile.TemporaryDirectory(dir=_local_disk()) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        remote, name = remote_file(path)
        with temporary.open("rb") as file:
            remote.write(name, file, temporary.stat().st_size)


def mappable(path: Path) -> Path:
    """Return a file (`*.arrow`) or folder to map into memory: itself, or its copy on this node.

    What is in an unfinished folder at a URI must be whole, and is copied for tasks of Spark alone: those of an executor
    share one copy, which goes with the executor. Raises UserError if the URI cannot be read.
    """
    if not is_at_uri(path):
        return path
    from filelock import FileLock

    assert _SPARK_FOLDERS in os.environ, path
    copy = _local_disk() / f"rayrec-{hashlib.sha256(location(path).encode()).hexdigest()[:16]}" / path.name
    with naming(copy), ExitStack() as stack:
        copy.parent.mkdir(exist_ok=True)
        stack.enter_context(FileLock(copy.with_name(".lock")))
        if not copy.exists():
            remote, name = remote_file(path)
            unfinished = copy.with_name(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            is_file = path.suffix == ".arrow"
            (unfinished if is_file else unfinished / path.name).mkdir(parents=True)
            for found in [name] if is_file else remote.files(name):
                target = unfinished / PurePath(found).relative_to(PurePath(name).parent)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as sink:
                    remote.read(found, sink)
            (unfinished / path.name).rename(copy)
    return copy


def _local_disk() -> Path:
    """Return a folder for files of this node: in a task of Spark one that goes with its executor."""
    return Path(os.environ.get(_SPARK_FOLDERS, tempfile.gettempdir()).partition(",")[0])


@contextmanager
def new_remote_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that is written to the URI of a path in a staged folder when the block ends without an error.

    What the block writes lies on this node's disk meanwhile, so that sending it can be tried again. Raises UserError.
    """
    remote, name = remote_file(path)
    with naming(staging_root()):
        staging_root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=staging_root()) as file:
            yield cast(BinaryIO, file)
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            remote.write(name, cast(BinaryIO, file), size)


def delete_remote_files(path: Path) -> None:
    """Delete the file at the URI of a path in a staged folder, or all files of a folder there. Raises UserError."""
    from rayrec.store.objects import for_each

    remote, below = remote_file(path)
    remote.delete(below)
    for_each(remote.delete, remote.files(below))


def on_this_node(path: Path) -> Path:
    """Return where a file or folder is looked for: where another node sees it, if it is one that both see, or in the
    copy.
    """
    return path if path.exists() else here(path)


def is_remote(path: Path) -> bool:
    """Return whether a path is in a staged folder and its file, if there is one, is not on this node."""
    return staged_root(path) is not None and not on_this_node(path).exists()


def checkpoint_streams(checkpoint: Path) -> Streams | None:
    """Return how torch reads a checkpoint that is at its URI alone; None if it is on this node."""
    return REMOTE_STREAMS if is_remote(checkpoint / ".metadata") else None


def sizes_in(folder: Path) -> Callable[[str], int]:
    """Return a function that gives the bytes of a file in a folder; it raises FileNotFoundError, and UserError."""
    root = staged_root(folder)
    remote = {} if root is None else remote_folder(folder).files(name_at_uri(folder))

    def size(name: str) -> int:
        path = folder / name
        found = None if root is None or path.exists() else remote.get(path.relative_to(root).as_posix())
        return path.stat().st_size if found is None else found.bytes

    return size


def remote_folder(path: Path) -> "Remote":
    """Return what is at the URI of the staged folder that a path is or lies in. Raises UserError."""
    root = staged_root(path)
    assert root is not None, path
    from rayrec.store.objects import Remote  # pyarrow takes a while to import

    return Remote(location(root))


def remote_file(path: Path) -> tuple["Remote", str]:
    """Return the folder at the URI of a path in a staged folder, and the name of the path in it. Raises UserError."""
    return remote_folder(path), name_at_uri(path)


REMOTE_STREAMS = Streams(open_file, new_remote_file)
"""How torch writes and reads a checkpoint at its URI."""
