"""Files of buckets (S3, Google Cloud Storage, Azure): the one access to them.

obstore makes the requests, lists page by page and cuts large files into parts. What is ours: what fails is tried again
(`rayrec.store.stores`), and an answer that is too short is a failure.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, InvalidPathError, PreconditionError

from rayrec.common.errors import UserError
from rayrec.store.paths import RemotePath, confined
from rayrec.store.stores import BUSY, TOO_LITTLE, store_of, tried

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
Version = dict[str, str]
"""What a store calls one state of a file: an entity tag, or a generation."""
_BLOCK_BYTES = 2**23
_MOST_PARTS = 9_000
"""S3 takes 10,000 parts of one file."""
_AT_ONCE = 8
_BUFFER_BYTES = 2**22
"""Readers of pickles and of torch's files ask for some bytes at a time, each of which would be a request."""


class RemoteFile(NamedTuple):
    """State of a remote file or folder; those of files tell one state from another."""

    bytes: int
    modified: int
    """Seconds since the epoch, the finest unit in which every request of S3 answers."""
    is_folder: bool = False


_FOLDER = RemoteFile(0, 0, is_folder=True)


def status(path: RemotePath) -> RemoteFile | None:
    """Return the state of a file or folder; None if it is not there. Raises UserError, also if there is no bucket."""
    store = store_of(path)

    def attempt() -> RemoteFile | None:
        try:
            if path.key:
                return _state(obstore.head(store, path.key))
        except FileNotFoundError:
            pass
        # A folder is there while something is below it, and the bucket always; without one, listing fails.
        is_there = any(obstore.list(store, path.key or None, chunk_size=1)) or not path.key
        return _FOLDER if is_there else None

    return _listed(path, attempt)


def files_below(folder: RemotePath) -> dict[str, RemoteFile]:
    """Return all files below a folder by their paths in it; empty if there is no such folder.

    Raises UserError, also if there is no such bucket.
    """
    store = store_of(folder)

    def attempt() -> dict[str, RemoteFile]:
        found = (meta for chunk in obstore.list(store, folder.key or None) for meta in chunk)
        return {_name_in(folder, meta["path"]): _state(meta) for meta in found}

    files = _without_marks(folder, _listed(folder, attempt))
    # A store lets one file lie below another, which no folder of a disk could hold.
    for file in files:
        confined(file, folder)
        if around := files.keys() & {str(parent) for parent in PurePath(file).parents}:
            raise UserError(f"{folder}: {min(around)!a} is both a file and a folder; remove one of them")
    return files


def entries_in(folder: RemotePath) -> dict[str, RemoteFile]:
    """Return the files and folders in a folder by their names, sorted. Raises FileNotFoundError, and UserError."""
    store = store_of(folder)

    def attempt() -> dict[str, RemoteFile]:
        listed = obstore.list_with_delimiter(store, folder.key or None)
        files = {_name_in(folder, meta["path"]): _state(meta) for meta in listed["objects"]}
        return files | {_name_in(folder, prefix): _FOLDER for prefix in listed["common_prefixes"]}

    found = _listed(folder, attempt)
    entries = _without_marks(folder, found)
    if not found and not folder.is_dir():
        raise FileNotFoundError(f"{folder}: does not exist")
    return {confined(name, folder): entries[name] for name in sorted(entries)}


def _name_in(folder: RemotePath, key: str) -> str:
    return key.removeprefix(f"{folder.key}/") if folder.key and key != folder.key else key.removeprefix(folder.key)


def _listed(folder: RemotePath, attempt: Callable[[], T]) -> T:
    """Return what listing a folder gives. Raises UserError, also on an object whose name no file could have."""

    def told() -> T:
        try:
            return attempt()
        except InvalidPathError as error:
            key = re.search('Path "(.*?)"(: | contained)', str(error))
            name = _name_in(folder, key[1]) if key else str(error).splitlines()[0]
            where = "lies outside the folder, or names no file; correct or remove it"
            raise UserError(f"{folder}: {name!a} {where}") from None

    return tried(str(folder), "read", told)


def _without_marks(folder: RemotePath, files: dict[str, RemoteFile]) -> dict[str, RemoteFile]:
    """Leave out the objects without bytes by which consoles of stores show folders; obstore lists them as files."""
    files = {name: file for name, file in files.items() if name}
    marks = [n for n, f in files.items() if not f.bytes and not f.is_folder and not (folder / n).is_file()]
    return {name: file for name, file in files.items() if name not in marks}


def open_file(path: RemotePath) -> io.BufferedReader:
    """Open a file, any part of which can be read. Raises FileNotFoundError if it is not there, and UserError."""
    return io.BufferedReader(open_unbuffered(path), _BUFFER_BYTES)


def open_unbuffered(path: RemotePath) -> "RemoteReader":
    """Open a file, of which each read is a request of its own. Raises as `open_file`."""
    found = status(path)
    if found is None or found.is_folder:
        raise FileNotFoundError(f"{path}: does not exist")
    return RemoteReader(path, found.bytes)


def write(path: RemotePath, source: BinaryIO, size: int) -> RemoteFile:
    """Write a file from the next `size` bytes of `source`, which can seek; it appears when all of them arrived.

    Raises UserError.
    """
    store, start = store_of(path), source.tell()
    part_bytes = max(_BLOCK_BYTES, -(-size // _MOST_PARTS))

    def attempt() -> RemoteFile:
        source.seek(start)
        blocks = _blocks(source, size)
        content: Any = b"".join(blocks) if size <= part_bytes else blocks
        obstore.put(store, path.key, content, chunk_size=part_bytes, max_concurrency=4)
        written = _state(obstore.head(store, path.key))
        if written.bytes != source.tell() - start:
            raise OSError(TOO_LITTLE)
        return written

    return tried(str(path), "written", attempt)


def _blocks(source: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the next `size` bytes of a file, which may go on growing."""
    while size and (block := source.read(min(size, _BLOCK_BYTES))):
        size -= len(block)
        yield block


def versioned(path: RemotePath, most_bytes: int) -> tuple[bytes | None, Version] | None:
    """Return the content of a small file, None if it has more bytes, and its version; None if it is not there.

    Raises UserError.
    """

    def attempt() -> tuple[bytes | None, Version] | None:
        try:
            found = obstore.get(store_of(path), path.key)
        except FileNotFoundError:
            return None
        if found.meta["size"] > most_bytes:
            return None, _version(found.meta)
        content = bytes(found.bytes())
        if len(content) != found.meta["size"]:
            raise OSError(TOO_LITTLE)
        return content, _version(found.meta)

    return tried(str(path), "read", attempt)


def put_if(path: RemotePath, content: bytes, before: Version | None) -> Version:
    """Write a file if it still is of the version `before`, or not there if that is None, in one step with the look.

    Return its version then. Raises FileExistsError if it has changed, and UserError.
    """

    def attempt() -> Version:
        mode: Any = "create" if before is None else before
        try:
            return _version(obstore.put(store_of(path), path.key, content, mode=mode))
        except (AlreadyExistsError, PreconditionError):
            there = versioned(path, len(content))
            # It may be ours: what was put arrived, but not the store's answer.
            if there is not None and there[0] == content:
                return there[1]
            # Stores also refuse one of two such requests at a time, of which the other may come to nothing.
            if (there and there[1]) == before:
                raise OSError(BUSY) from None
            raise FileExistsError(f"{path}: was written by another command") from None

    return tried(str(path), "written", attempt)


def _version(of: Any) -> Version:
    return {name: of[name] for name in ("e_tag", "version") if of.get(name) is not None}


def delete(path: RemotePath) -> None:
    """Delete a file if it exists. Raises UserError."""

    def attempt() -> None:
        with suppress(FileNotFoundError):
            obstore.delete(store_of(path), path.key)

    tried(str(path), "written", attempt)


class RemoteReader(io.RawIOBase):
    """A remote file, of which every read is tried again until all that it asked for has come. Raises UserError."""

    def __init__(self, path: RemotePath, size: int) -> None:
        super().__init__()
        self._path, self._size, self._position = path, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Return the number of bytes of the file."""
        return self._size

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readall(self) -> bytes:
        return self.read(max(0, self._size - self._position)) or b""

    def readinto(self, buffer: "WriteableBuffer") -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        if view:
            view[:] = tried(str(self._path), "read", lambda: self._range(self._position, len(view)))
        self._position += len(view)
        return len(view)

    def _range(self, start: int, length: int) -> memoryview:
        """Return bytes of the file. Raises OSError if fewer came, which obstore takes for all there are."""
        data = memoryview(obstore.get_range(store_of(self._path), self._path.key, start=start, length=length))
        if len(data) != length:
            raise OSError(TOO_LITTLE)
        return data


def _state(meta: Any) -> RemoteFile:
    return RemoteFile(meta["size"], int(meta["last_modified"].timestamp()))


def for_each(work: Callable[[T], object], items: Iterable[T]) -> list[object]:
    """Return the results of work on files, several at once, in order. The first error ends it, after what has begun."""
    with ThreadPoolExecutor(_AT_ONCE, "rayrec-store") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
