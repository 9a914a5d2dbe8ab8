"""Folders of remote file systems, whose files are read and written whole."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from rayrec.common.errors import UserError

_BLOCK_BYTES = 2**23
_RETRY_SECONDS = 5
_OBJECT_STORES = {"s3", "gcs", "abfs"}
"""File systems in which a folder is only the beginning of names, so a new one does not exist."""
_PROBE = ".rayrec-probe"
_REASONS = {
    "no such bucket; make it, or correct the URI": ("NO_SUCH_BUCKET", "bucket does not exist"),
    "access denied; check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "GOOGLE_APPLICATION_CREDENTIALS) and what they allow": (
        "ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "INVALID_CLIENT_TOKEN", "INVALID_SIGNATURE",
        "SIGNATURE_DOES_NOT_MATCH", "HTTP response code 401", "HTTP response code 403", "UNAUTHENTICATED",
        "PERMISSION_DENIED", "OAuth2 access token",
    ),
    "no answer; check AWS_ENDPOINT_URL (or the URI's endpoint_override) and the network": (
        "NETWORK_CONNECTION", "curlCode", "CURL error",
    ),
}  # fmt: skip
"""What is wrong and how to fix it, by texts that errors of AWS's and Google's libraries contain."""


class RemoteFile(NamedTuple):
    """Tells one state of a remote file from another."""

    bytes: int
    modified: int
    """Seconds since the epoch, the finest unit in which every request of S3 answers."""


def open_filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    """The file system that a URI names, and the path in it. Gives up after seconds on a store that does not answer.

    Raises UserError on a URI that pyarrow cannot open.
    """
    if uri.startswith(("gs://", "gcs://")) and "retry_limit_seconds" not in uri:
        uri += f"{'&' if urlsplit(uri).query else '?'}retry_limit_seconds={_RETRY_SECONDS}"  # by default 15 minutes
    with _explained(uri, "opened"):
        filesystem, path = fs.FileSystem.from_uri(uri)
    return filesystem, path


class Remote:
    """A folder of a file system; files are named by their paths in it. Every method raises UserError."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._filesystem, path = open_filesystem(uri)
        self._path = path.rstrip("/")

    def files(self) -> dict[str, RemoteFile]:
        """All files below the folder; empty if there is no such folder. The bucket must exist."""
        with _explained(self._uri, "read"):
            if self._filesystem.type_name in _OBJECT_STORES:
                bucket = self._path.partition("/")[0]
                (info,) = self._filesystem.get_file_info([bucket])
                if info.type == fs.FileType.NotFound:
                    raise OSError("NO_SUCH_BUCKET")
            selector = fs.FileSelector(self._path, allow_not_found=True, recursive=True)
            infos = self._filesystem.get_file_info(selector)
            return {
                info.path.removeprefix(f"{self._path}/"): _state(info)
                for info in infos
                if info.type == fs.FileType.File
            }

    def read(self, name: str, sink: BinaryIO) -> int:
        """Copy a file to `sink`; returns the number of bytes."""
        copied = 0
        with _explained(self._uri, "read"), self._filesystem.open_input_stream(f"{self._path}/{name}") as source:
            while block := source.read(_BLOCK_BYTES):
                copied += sink.write(block)
        return copied

    def write(self, name: str, source: BinaryIO, size: int) -> RemoteFile:
        """Write a file from the next `size` bytes of `source`; it appears when all of them have arrived."""
        path = f"{self._path}/{name}"
        with _explained(self._uri, "written"):
            if self._filesystem.type_name not in _OBJECT_STORES:
                self._filesystem.create_dir(path.rpartition("/")[0], recursive=True)
            with self._filesystem.open_output_stream(path) as sink:
                while size and (block := source.read(min(size, _BLOCK_BYTES))):
                    size -= sink.write(block)
            return _state(*self._filesystem.get_file_info([path]))

    def delete(self, name: str) -> None:
        """Delete a file if it exists."""
        path = f"{self._path}/{name}"
        with _explained(self._uri, "written"):
            (info,) = self._filesystem.get_file_info([path])
            if info.type == fs.FileType.File:
                self._filesystem.delete_file(path)

    def require_writable(self) -> None:
        """Raise UserError if files cannot be written or deleted, before the work instead of after it."""
        self.write(_PROBE, io.BytesIO(), 0)
        self.delete(_PROBE)


def _state(info: fs.FileInfo) -> RemoteFile:
    return RemoteFile(info.size or 0, int(info.mtime.timestamp()) if info.mtime else 0)


@contextmanager
def _explained(name: str, done: str) -> Iterator[None]:
    """Raise a UserError in place of pyarrow's errors, which may have hundreds of lines."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"{name}: cannot be {done}: {reason(str(error), 'check the URI')}") from None


def reason(error: str, otherwise: str) -> str:
    """What an error of pyarrow means and how to fix it; for an unknown one its first line and `otherwise`."""
    known = (explanation for explanation, signs in _REASONS.items() if any(sign in error for sign in signs))
    return next(known, f"{error.splitlines()[0][:300] if error else 'unknown reason'}; {otherwise}")
