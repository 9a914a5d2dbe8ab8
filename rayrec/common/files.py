"""Files and folders that are either complete or absent, even if the process or the machine dies at any moment.

What is written is brought to the disk before it gets its name. Locks keep two processes from writing the same output.
"""

import glob
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any
from uuid import uuid4

from rayrec.common.disk_errors import naming, temporary_folders
from rayrec.common.errors import PassingError, UserError

logger = logging.getLogger(__name__)

_URI = re.compile(r"^[a-z][a-z0-9+.-]*://")
_LONGEST_NAME = 160
"""Bytes; file systems take 255, also of the longer names under which files are written, with endings and numbers."""
_UNFINISHED_FILE = re.compile(r"\..+\.[0-9a-f]{32}")


def is_uri(path: str) -> bool:
    """Return whether `path` names its file system, as s3://bucket/key does."""
    return _URI.match(path) is not None


def file_name(name: str) -> str:
    """Return the name of a file or folder for something of any name: another for each, not hidden, in no folder."""
    escaped = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return shortened(f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped or "%")


def shortened(name: str) -> str:
    """Return a name, or where a file could not have it the beginning of it and a hash."""
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    beginning = name.encode()[: _LONGEST_NAME // 2].decode(errors="ignore")
    return f"{beginning}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def confined(name: str, where: object) -> str:
    """`name`, if it is that of a file below a folder; those in manifests, buckets and archives may be anything.

    Raises UserError, which begins with `where`.
    """
    parts = name.split("/")
    if "\0" in name or not all(parts) or not {".", ".."}.isdisjoint(parts):
        raise UserError(f"{where}: {name!a} lies outside the folder, or names no file; correct or remove it")
    return name


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part of it."""
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
def new_file(path: Path) -> Iterator[Path]:
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


def sha256_in(file: BufferedReader) -> str:
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
