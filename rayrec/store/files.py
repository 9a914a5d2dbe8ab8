"""Files, on disks and at URIs, that are whole or absent even if a process or machine dies at any moment.

On a disk, a file is written under another name, and brought to the disk before it gets its own. At a URI it is written
on this node, and put in one piece. The second half is what else is done with files of either: list, remove, copy, hash.
"""

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from uuid import uuid4

from rayrec.common.disk_errors import naming
from rayrec.store import objects
from rayrec.store.paths import RemotePath, cache_root, place_on_this_node, shortened


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
    assert isinstance(path, RemotePath), path
    with naming(cache_root()):
        cache_root().mkdir(parents=True, exist_ok=True)
        name = shortened(f"{path.parent.name}-{path.name}")
        with tempfile.NamedTemporaryFile(dir=cache_root(), prefix=f"{name}.") as file:
            yield cast(BinaryIO, file)
            file.flush()
            with open(file.name, "rb") as written:  # a library may have written it anew, by its name
                objects.write(path, written, os.fstat(written.fileno()).st_size)


def files_below(folder: Path) -> dict[str, int]:
    """Return the bytes of all files in a folder and those in it, by their paths in `folder`, sorted."""
    found = {}
    if isinstance(folder, RemotePath):
        found = {name: file.bytes for name, file in objects.files_below(folder).items()}
    else:
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # others may remove it meanwhile
                if path.is_file():
                    found[path.relative_to(folder).as_posix()] = path.stat().st_size
    return dict(sorted(found.items()))


def sizes_in(folder: Path) -> Callable[[str], int]:
    """Return a function that gives the bytes of a file in a folder; it raises FileNotFoundError, and UserError."""
    if not isinstance(folder, RemotePath):
        return lambda name: (folder / name).stat().st_size
    found = files_below(folder)

    def size(name: str) -> int:
        if name not in found:
            raise FileNotFoundError(f"{folder / name}: does not exist")
        return found[name]

    return size


def is_output(name: str) -> bool:
    """Return whether a file, given by its path in a folder, is a finished part of the folder's content.

    Other names that begin with a dot are temporary, or of this machine only; `.metadata` is in torch's checkpoints.
    """
    *folders, file = name.split("/")
    return (not file.startswith(".") or file == ".metadata") and not any(f.startswith(".") for f in folders)


def remove_hidden(folder: Path) -> None:
    """Remove what is no part of a folder's content: its hidden folders, and what killed writers of `new_file` left.

    Nobody may write there meanwhile. Raises UserError if a store cannot be changed.
    """
    for path in folder.iterdir():
        if not is_output(path.name):
            remove(path)
    for name in files_below(folder):
        if not is_output(name):
            remove(folder / name)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, if it is there. Raises UserError if a store cannot be changed.

    At a URI, first what says that others are whole goes (*.json). What its copy on this node holds goes too.
    """
    if isinstance(path, RemotePath):
        names = files_below(path)
        if not names:
            objects.delete(path)
        for of_json in (True, False):
            objects.for_each(objects.delete, [path / name for name in names if name.endswith(".json") is of_json])
        path = place_on_this_node(path)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def copy(source: Path, target: Path, *, link: bool = False) -> None:
    """Copy a file, or a folder with all that is in it, from and to wherever they lie. Raises OSError, and UserError.

    `link`: files that never change get a second name instead, where the disk can do so.
    """
    if source.is_dir():
        for name in files_below(source):
            copy(source / name, target / name, link=link)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, RemotePath) or isinstance(target, RemotePath):
        with source.open("rb") as file, new_file(target) as temporary, temporary.open("wb") as sink:
            shutil.copyfileobj(file, sink, 2**22)
        return
    if link:
        with suppress(OSError):
            os.link(source, target)
            return
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
