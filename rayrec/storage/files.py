"""Files by their paths: on this node if they are here, and otherwise where their URI says.

New files lie on the disk, and those of an unfinished folder at a URI (`rayrec.storage.unfinished`) at that URI alone.
"""

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from rayrec.common import files
from rayrec.common.disk_errors import naming
from rayrec.internals.torch_checkpoint import Streams
from rayrec.storage.location import here, is_at_uri, location, name_at_uri, staged_root, staging_root
from rayrec.storage.remote import Remote
from rayrec.storage.transfer import for_each

_SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
"""Set by Spark for the Python processes of an executor: its folders for files of its own, with commas in between."""
_BUFFER_BYTES = 2**22
"""Readers of pickles and of torch's files ask for some bytes at a time, each of which would be a request."""


def open_file(path: Path) -> io.BufferedReader:
    """Return a file to read any part of. Raises OSError, and UserError if a bucket cannot be read."""
    if is_remote(path):
        remote, name = _remote_file(path)
        return io.BufferedReader(remote.open(name), _BUFFER_BYTES)
    return on_this_node(path).open("rb")


def open_parquet(path: Path, dictionaries: Sequence[str] = ()) -> pq.ParquetFile:
    """Return a Parquet file, mapped if it is on this node; otherwise a read asks for all columns of a row group at
    once.

    Those of `dictionaries` that are columns of text come dictionary encoded. Raises OSError or ArrowInvalid, and
    UserError if a bucket cannot be read.
    """
    source: Any = on_this_node(path)
    options = {"memory_map": True}
    if is_remote(path):
        remote, name = _remote_file(path)
        source, options = remote.open(name), {"pre_buffer": True}
    file = pq.ParquetFile(source, **options)
    texts = [f.name for f in file.schema_arrow if f.name in dictionaries and pa.types.is_string(f.type)]
    return pq.ParquetFile(source, metadata=file.metadata, read_dictionary=texts, **options) if texts else file


def read_bytes(path: Path) -> bytes:
    """Return the content of a small file. Raises as `open_file`."""
    with open_file(path) as file:
        return file.read()


def exists(path: Path) -> bool:
    """Return whether a file is there: on this node, or at its URI if it is in an unfinished folder there."""
    if not is_at_uri(path):
        return path.exists()
    remote, name = _remote_file(path)
    return remote.has(name)


def files_below(folder: Path) -> list[str]:
    """Return all files in a folder and those in it, sorted, by their paths in `folder`."""
    if not is_at_uri(folder):
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    remote, below = _remote_file(folder)
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

    As `rayrec.common.files.new_file`, or by sending it to the URI if `path` is in an unfinished folder there; until
    then it lies in a folder of its own on this node's disk. Raises UserError if the URI cannot be written.
    """
    if not is_at_uri(path):
        with files.new_file(path) as temporary:
            yield temporary
        return
    with naming(_local_disk()), tempfile.TemporaryDirectory(dir=_local_disk()) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        remote, name = _remote_file(path)
        with temporary.open("rb") as file:
            remote.write(name, file, temporary.stat().st_size)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, whole or not at all. Raises UserError as `new_file`."""
    if not is_at_uri(path):
        files.write_json(path, value)
    else:
        with new_file(path) as temporary:
            files.write_json(temporary, value)


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
            remote, name = _remote_file(path)
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
    remote, name = _remote_file(path)
    with naming(staging_root()):
        staging_root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=staging_root()) as file:
            yield cast(BinaryIO, file)
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            remote.write(name, cast(BinaryIO, file), size)


def delete_remote_files(path: Path) -> None:
    """Delete the file at the URI of a path in a staged folder, or all files of a folder there. Raises UserError."""
    remote, below = _remote_file(path)
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


def remote_folder(path: Path) -> Remote:
    """Return what is at the URI of the staged folder that a path is or lies in. Raises UserError."""
    root = staged_root(path)
    assert root is not None, path
    return Remote(location(root))


def _remote_file(path: Path) -> tuple[Remote, str]:
    return remote_folder(path), name_at_uri(path)


REMOTE_STREAMS = Streams(open_file, new_remote_file)
"""How torch writes and reads a checkpoint at its URI."""
