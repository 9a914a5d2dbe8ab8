"""Files of buckets, and of whatever else pyarrow opens by a URI: the one access to them.

A store may fail for a while, or answer with less than was asked for. What fails is tried again, with longer and longer
pauses, and pyarrow, which takes a short answer for a whole one, is not trusted with the length of what it read.
"""

import io
import os
import random
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import PurePath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

from rayrec.common.errors import StoreError, UserError
from rayrec.store.paths import RemotePath, confined

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
_BLOCK_BYTES = 2**23
_AT_ONCE = 8
_PATIENCE_SECONDS = 15.0
"""No new try begins so long after the first one; one on which nobody answers takes AWS's library six seconds."""
_FIRST_PAUSE_SECONDS = 0.1
_RETRY_SECONDS = 5
_BUFFER_BYTES = 2**22
"""Readers of pickles and of torch's files ask for some bytes at a time, each of which would be a request."""
_OBJECT_STORES = {"s3", "gcs", "abfs"}
"""File systems in which a folder is only the beginning of names, so a new one does not exist."""
_TOO_LITTLE = "the store sends or holds less than it should"
_LASTING = {
    "unknown kind of store; use s3://, gs://, abfs:// or hdfs://": ("Unrecognized filesystem type",),
    "no such bucket; make it, or correct the URI": ("NO_SUCH_BUCKET", "bucket does not exist"),
    "access denied; check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "GOOGLE_APPLICATION_CREDENTIALS) and what they allow": (
        "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN", "INVALID_SIGNATURE",
        "SIGNATURE_DOES_NOT_MATCH", "HTTP response code 401", "HTTP response code 403", "UNAUTHENTICATED",
        "PERMISSION_DENIED", "OAuth2 access token",
    ),
}  # fmt: skip
"""What is wrong and how to fix it, by texts that errors of AWS's and Google's libraries contain; no retry helps."""
_PASSING = {
    "no answer; check AWS_ENDPOINT_URL (or the URI's endpoint_override) and the network": (
        "NETWORK_CONNECTION", "curlCode", "CURL error",
    ),
    "the store keeps failing; try again later": ("HTTP status 5", "SLOW_DOWN", _TOO_LITTLE),
}  # fmt: skip
"""The same, where a retry may help."""


class RemoteFile(NamedTuple):
    """State of a remote file or folder; those of files tell one state from another."""

    bytes: int
    modified: int
    """Seconds since the epoch, the finest unit in which every request of S3 answers."""
    is_folder: bool = False


def open_filesystem(given: str) -> tuple[fs.FileSystem, str]:
    """Return the file system that a URI names, and the path in it.

    Gives up after seconds on a store that does not answer.

    What people leave as it is in a URI, such as blanks and letters beyond ASCII, pyarrow wants in percent signs. Raises
    UserError on a URI that it cannot open.
    """
    uri = quote(re.sub("%(?![0-9A-Fa-f]{2})", "%25", given), safe="%/:?#[]@!$&'()*+,;=")
    if uri.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:
        uri += f"{'&' if urlsplit(uri).query else '?'}retry_limit_seconds={_RETRY_SECONDS}"  # by default 15 minutes
    filesystem, path = tried(given, "opened", lambda: fs.FileSystem.from_uri(uri))
    return filesystem, path


def open_remote(filesystem: fs.FileSystem, path: str, uri: str) -> "RemoteReader":
    """Open a file, any part of which can be read; errors name it by its URI, or by that of its folder.

    Raises FileNotFoundError if it is not there, and UserError.
    """

    def attempt() -> pa.NativeFile | None:
        try:
            return filesystem.open_input_file(path)
        except FileNotFoundError:
            return None

    file = tried(uri, "read", attempt)
    if file is None:
        raise FileNotFoundError(f"{uri}: does not exist")
    return RemoteReader(file, uri)


def filesystem_of(path: RemotePath) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, and its name there. Raises UserError if the store cannot be opened."""
    filesystem, root = _opened(path.store, os.environ.get("AWS_ENDPOINT_URL"), os.getpid())
    return filesystem, f"{root.rstrip('/')}/{path.key}".rstrip("/")


@lru_cache(maxsize=16)
def _opened(store: str, endpoint: str | None, process: int) -> tuple[fs.FileSystem, str]:
    return open_filesystem(store)


@lru_cache(maxsize=16)
def _require_bucket(path: RemotePath) -> None:
    """Raise UserError if there is no such bucket, which to its files looks as if none were there."""
    filesystem, name = filesystem_of(path)

    def attempt() -> None:
        if filesystem.type_name in _OBJECT_STORES and filesystem.get_file_info(name).type == fs.FileType.NotFound:
            raise OSError("NO_SUCH_BUCKET")

    tried(str(path), "read", attempt)


def status(path: RemotePath) -> RemoteFile | None:
    """Return the state of a file or folder; None if it is not there. Raises UserError, also if there is no bucket."""
    filesystem, name = filesystem_of(path)
    info = tried(str(path), "read", lambda: filesystem.get_file_info(name))
    if info.type == fs.FileType.NotFound:
        _require_bucket(_bucket(path))
        return None
    return _state(info)


def files_below(folder: RemotePath) -> dict[str, RemoteFile]:
    """Return all files below a folder by their paths in it; empty if there is no such folder.

    Raises UserError, also if there is no such bucket.
    """
    filesystem, name = filesystem_of(folder)
    selector = fs.FileSelector(name, allow_not_found=True, recursive=True)
    infos = tried(str(folder), "read", lambda: filesystem.get_file_info(selector))
    files = {i.path.removeprefix(f"{name}/"): _state(i) for i in infos if i.type == fs.FileType.File}
    if not files:
        _require_bucket(_bucket(folder))
    # A store takes any text for a name, and lets one file lie below another.
    for file in files:
        confined(file, folder)
        if around := files.keys() & {str(parent) for parent in PurePath(file).parents}:
            raise UserError(f"{folder}: {min(around)!a} is both a file and a folder; remove one of them")
    return files


def names_in(folder: RemotePath) -> list[str]:
    """Return the names of the files and folders in a folder, sorted. Raises FileNotFoundError, and UserError."""
    filesystem, name = filesystem_of(folder)
    selector = fs.FileSelector(name, allow_not_found=True)
    infos = tried(str(folder), "read", lambda: filesystem.get_file_info(selector))
    if not infos and not folder.is_dir():
        raise FileNotFoundError(f"{folder}: does not exist")
    return sorted(confined(info.base_name, folder) for info in infos)


def open_file(path: RemotePath) -> io.BufferedReader:
    """Open a file, any part of which can be read. Raises FileNotFoundError if it is not there, and UserError."""
    return io.BufferedReader(open_unbuffered(path), _BUFFER_BYTES)


def open_unbuffered(path: RemotePath) -> "RemoteReader":
    """Open a file, of which each read is a request of its own. Raises as `open_file`."""
    filesystem, name = filesystem_of(path)
    return open_remote(filesystem, name, str(path))


def write(path: RemotePath, source: BinaryIO, size: int) -> RemoteFile:
    """Write a file from the next `size` bytes of `source`, which can seek; it appears when all of them arrived.

    Raises UserError.
    """
    filesystem, name = filesystem_of(path)
    start = source.tell()

    def attempt() -> RemoteFile:
        source.seek(start)
        left = size
        if filesystem.type_name not in _OBJECT_STORES:
            filesystem.create_dir(name.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(name) as sink:
            while left and (block := source.read(min(left, _BLOCK_BYTES))):
                left -= sink.write(block)
        written = _state(filesystem.get_file_info(name))
        if written.bytes != size - left:
            raise OSError(_TOO_LITTLE)
        return written

    return tried(str(path), "written", attempt)


def delete(path: RemotePath) -> None:
    """Delete a file if it exists. Raises UserError."""
    filesystem, name = filesystem_of(path)

    def attempt() -> None:
        if filesystem.get_file_info(name).type == fs.FileType.File:
            filesystem.delete_file(name)

    tried(str(path), "written", attempt)


class RemoteReader(io.RawIOBase):
    """A remote file, of which every read is tried again until all that it asked for has come. Raises UserError."""

    def __init__(self, file: pa.NativeFile, uri: str) -> None:
        super().__init__()
        self._file, self._uri, self._size, self._position = file, uri, file.size(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def size(self) -> int:
        """Return the number of bytes of the file."""
        return int(self._size)

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
            tried(self._uri, "read", lambda: self._fill(view, self._position))
        self._position += len(view)
        return len(view)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _fill(self, view: memoryview, start: int) -> None:
        """Read `view` full. Raises OSError if less came than that.

        pyarrow says that all has come even if it has not, and leaves the rest of the memory as it was. So the last byte
        is given a value beforehand. If it is still that, the file's byte may happen to be the same, and all is read
        again over another value.
        """
        value = random.randrange(256)
        for last in (value, value ^ 255):
            view[-1] = last
            self._file.seek(start)
            if self._file.readinto(view) == len(view) and view[-1] != last:
                return
        raise OSError(_TOO_LITTLE)


def delete_folder(path: RemotePath) -> None:
    """Delete what a store has of a folder without files: pyarrow leaves an object there that stands for it."""
    filesystem, name = filesystem_of(path)

    def attempt() -> None:
        if path.key and filesystem.get_file_info(name).type == fs.FileType.Directory:
            filesystem.delete_dir(name)

    tried(str(path), "written", attempt)


def _bucket(path: RemotePath) -> RemotePath:
    return type(path)(*path.parts[:2])


def _state(info: fs.FileInfo) -> RemoteFile:
    is_folder = info.type == fs.FileType.Directory
    return RemoteFile(info.size or 0, int(info.mtime.timestamp()) if info.mtime else 0, is_folder)


def tried(name: str, done: str, action: Callable[[], T]) -> T:
    """Return what an action of pyarrow gives, which is tried again unless no retry can help.

    Raises a StoreError, which says that `name` cannot be `done` ("read"), in place of pyarrow's errors, which may have
    hundreds of lines.
    """
    deadline, pause = time.monotonic() + _PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return action()
        except (OSError, pa.ArrowException) as error:
            if _lasts(error) or time.monotonic() > deadline:
                raise StoreError(f"{name}: cannot be {done}: {reason(str(error), 'check the URI')}") from None
        # Many clients that try again at the same moment would be refused again.
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause *= 2


def _lasts(error: Exception) -> bool:
    """Return whether no retry can help."""
    signs = (sign for signs in _LASTING.values() for sign in signs)
    return isinstance(error, FileNotFoundError | pa.ArrowInvalid) or any(sign in str(error) for sign in signs)


def reason(error: str, otherwise: str) -> str:
    """Return what an error of pyarrow means and how to fix it; for an unknown one its first line and `otherwise`."""
    explanations = (_LASTING | _PASSING).items()
    known = (explanation for explanation, signs in explanations if any(sign in error for sign in signs))
    return next(known, f"{error.splitlines()[0][:300] if error else 'unknown reason'}; {otherwise}")


def for_each(work: Callable[[T], object], items: Iterable[T]) -> list[object]:
    """Return the results of work on files, several at once, in order. The first error ends it, after what has begun."""
    with ThreadPoolExecutor(_AT_ONCE, "rayrec-store") as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
