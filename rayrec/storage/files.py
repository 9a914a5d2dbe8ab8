"""Files by their paths: on this node if they are here, and otherwise where their URI says."""

import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow.parquet as pq

from rayrec.internals.torch_checkpoint import Streams
from rayrec.storage.location import here, location, staged_root, staging_root
from rayrec.storage.remote import Remote

_BUFFER_BYTES = 2**22
"""Readers of pickles and of torch's files ask for some bytes at a time, each of which would be a request."""


def open_file(path: Path) -> io.BufferedReader:
    """A file to read any part of. Raises OSError, and UserError if a bucket cannot be read."""
    if is_remote(path):
        remote, name = _remote_file(path)
        return io.BufferedReader(remote.open(name), _BUFFER_BYTES)
    return on_this_node(path).open("rb")


def open_parquet(path: Path) -> pq.ParquetFile:
    """A Parquet file, mapped if it is on this node; otherwise a read asks for all columns of a row group at once.

    Raises OSError or ArrowInvalid, and UserError if a bucket cannot be read.
    """
    if is_remote(path):
        remote, name = _remote_file(path)
        return pq.ParquetFile(remote.open(name), pre_buffer=True)
    return pq.ParquetFile(on_this_node(path), memory_map=True)


@contextmanager
def new_remote_file(path: Path) -> Iterator[BinaryIO]:
    """A file that is written to the URI of a path in a staged folder when the block ends without an error.

    What the block writes lies on this node's disk meanwhile, so that sending it can be tried again. Raises UserError.
    """
    remote, name = _remote_file(path)
    staging_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=staging_root()) as file:
        yield cast(BinaryIO, file)
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        remote.write(name, cast(BinaryIO, file), size)


def delete_remote_files(folder: Path) -> None:
    """Delete all files at the URI of a folder in a staged one, one after the other. Raises UserError."""
    remote, below = _remote_file(folder)
    for name in remote.files(below):
        remote.delete(name)


def on_this_node(path: Path) -> Path:
    """Where a file or folder is looked for: where another node sees it, if it is one that both see, or in the copy."""
    return path if path.exists() else here(path)


def is_remote(path: Path) -> bool:
    """Whether a path is in a staged folder and its file, if there is one, is not on this node."""
    return staged_root(path) is not None and not on_this_node(path).exists()


def checkpoint_streams(checkpoint: Path) -> Streams | None:
    """How torch reads a checkpoint that is at its URI alone; None if it is on this node."""
    return REMOTE_STREAMS if is_remote(checkpoint / ".metadata") else None


def sizes_in(folder: Path) -> Callable[[str], int]:
    """A function that gives the bytes of a file in a folder; it raises FileNotFoundError, and UserError."""
    root = staged_root(folder)
    remote = {} if root is None else Remote(location(root)).files(folder.relative_to(root).as_posix().removeprefix("."))

    def size(name: str) -> int:
        path = folder / name
        found = None if root is None or path.exists() else remote.get(path.relative_to(root).as_posix())
        return path.stat().st_size if found is None else found.bytes

    return size


def _remote_file(path: Path) -> tuple[Remote, str]:
    path = here(path)
    root = staged_root(path)
    assert root is not None, path
    return Remote(location(root)), path.relative_to(root).as_posix()


REMOTE_STREAMS = Streams(open_file, new_remote_file)
"""How torch writes and reads a checkpoint at its URI."""
