"""Files and folders that are either complete or absent, even if the process dies at any moment; locks on them."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from rayrec.common.errors import DiskFullError, UserError

_URI = re.compile(r"^[a-z][a-z0-9+.-]*://")
_UNFINISHED_FILE = re.compile(r"\..+\.[0-9a-f]{32}")


def is_uri(path: str) -> bool:
    """Whether `path` names its file system, as s3://bucket/key does."""
    return _URI.match(path) is not None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with new_file(path) as temporary, temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to, which becomes `path` when the block ends without an error.

    Two processes may write the same file at once; the last one wins. The file's folder is made if missing, but not the
    folder around that: a late task must not bring back an output that was given up.
    """
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_unfinished_files(folder: Path) -> None:
    """Remove what killed writers of a `new_file` left in `folder` and below it. Nobody may write there meanwhile."""
    for path in folder.rglob(".*"):
        if _UNFINISHED_FILE.fullmatch(path.name) and path.is_file():
            path.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path` that becomes `path` when the block ends without an error.

    On an error the sibling is removed. Raises UserError if `path` exists and is not an empty folder.
    """
    require_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.unfinished-"))
    try:
        temporary.chmod(0o755)
        yield temporary
        if path.exists():
            path.rmdir()  # require_absent allowed an empty folder; a race that filled it fails here
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def resumable_folder(path: Path, fingerprint: str) -> Iterator[Path]:
    """Like `new_folder`, for long work: the next caller with the same fingerprint finds what was done of it.

    The sibling survives a kill and every error except a `UserError` after which the same work could not succeed (one of
    a full disk is survived). Raises UserError if another process writes the folder.
    """
    require_absent(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.parent / f".{path.name}.unfinished-{fingerprint}"
    with locked(unfinished.with_name(f"{unfinished.name}.lock"), path):
        unfinished.mkdir(exist_ok=True)
        try:
            yield unfinished
            if path.exists():
                path.rmdir()
            os.rename(unfinished, path)
        except DiskFullError:
            raise
        except UserError:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


@contextmanager
def locked(lock: Path, output: Path | str) -> Iterator[None]:
    """Hold a lock file, which is released when the process dies. Raises UserError if another process holds it."""
    from filelock import FileLock, Timeout

    held = FileLock(lock)
    try:
        held.acquire(blocking=False)
    except Timeout:
        raise UserError(f"{output}: another run is writing it; wait for its end") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        held.release()


def is_vacant(path: Path) -> bool:
    """Whether `path` is absent or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def require_absent(path: Path) -> None:
    """Raise UserError if `path` exists and is not an empty folder."""
    if not is_vacant(path):
        raise UserError(f"{path}: already exists; give another --output, or remove it first")
