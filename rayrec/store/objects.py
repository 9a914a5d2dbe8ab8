"""Files of buckets (S3, Google Cloud Storage, Azure): the one access to them.

obstore makes the requests, lists page by page and cuts large files into parts. What is ours: a store may fail for a
while, and what fails is tried again with longer and longer pauses; an answer that is too short is a failure; and every
error is one line that names the URI and what to do.
"""

import io
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl
from urllib.request import Request, urlopen

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError, PreconditionError
from obstore.store import from_url

from rayrec.common.errors import StoreError, UserError
from rayrec.store.paths import RemotePath, confined

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")
Version = dict[str, str]
"""What a store calls one state of a file: an entity tag, or a generation."""
_BLOCK_BYTES = 2**23
_MOST_PARTS = 9_000
"""S3 takes 10,000 parts of one file."""
_AT_ONCE = 8
_PATIENCE_SECONDS = 15.0
"""No new try begins later than that after the first one."""
_FIRST_PAUSE_SECONDS = 0.1
_BUFFER_BYTES = 2**22
"""Readers of pickles and of torch's files ask for some bytes at a time, each of which would be a request."""
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=_PATIENCE_SECONDS)}
"""obstore's own, of one request each: so a part of a large file may fail without the others."""
_CLIENT: Any = {"allow_http": True, "connect_timeout": "5s", "read_timeout": "30s", "timeout": "1h"}
_OPTIONS = ("endpoint_override", "scheme", "region")
"""What may stand in the query of a URI."""
_TOO_LITTLE = "the store sends or holds less than it should"
_BUSY = "the store is busy with another request for the same file"
_LASTING = {
    "unknown kind of store; use s3://, gs://, az:// or abfs://": ("Unable to recognise URL",),
    "no such bucket; make it, or correct the URI": (
        "NoSuchBucket", "bucket does not exist", "ContainerNotFound", "container does not exist",
    ),
    "the bucket is in another region; set AWS_REGION": ("redirect without LOCATION", "301 Moved"),
    "access denied; check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "GOOGLE_APPLICATION_CREDENTIALS) and what they allow": (
        "403 Forbidden", "401 Unauthorized", "lacked the necessary privileges",
        # Where no credentials are set, a machine's own are asked for, which only machines of a cloud have.
        "169.254.169.254", "metadata.google.internal",
    ),
}  # fmt: skip
"""What is wrong and how to fix it, by texts that obstore's errors contain; no retry helps."""
_PASSING = {
    "the store keeps failing; try again later": ("status code: 5", "status code: 429", "SlowDown", _TOO_LITTLE, _BUSY),
    "no answer; check AWS_ENDPOINT_URL (or the URI's endpoint_override) and the network": ("HTTP error",),
}
"""The same, where a retry may help."""
_first_process = 0
"""The process that opened a store first."""


class RemoteFile(NamedTuple):
    """State of a remote file or folder; those of files tell one state from another."""

    bytes: int
    modified: int
    """Seconds since the epoch, the finest unit in which every request of S3 answers."""
    is_folder: bool = False


_FOLDER = RemoteFile(0, 0, is_folder=True)


def store_of(path: RemotePath) -> Any:
    """Return obstore's store in which a path lies, under the name `path.key`. Raises UserError if it cannot be opened.

    A process that was forked from one that had opened a store cannot open one: obstore's threads are not in it.
    """
    global _first_process  # noqa: PLW0603
    _first_process = _first_process or os.getpid()
    if _first_process != os.getpid():
        raise StoreError(f"{path}: cannot be opened in a process forked from one that used a bucket; spawn it instead")
    return _opened(path.store, os.environ.get("AWS_ENDPOINT_URL"))


@lru_cache(maxsize=16)
def _opened(uri: str, endpoint: str | None) -> Any:
    """Return the store of a URI: its options stand before the environment's, which obstore reads."""
    place, _, query = uri.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise StoreError(f"{uri}: cannot be opened: unknown option {unknown[0]!a}; give one of {', '.join(_OPTIONS)}")
    place = re.sub("^gcs:", "gs:", place)
    is_s3 = place.startswith("s3:")
    config: dict[str, Any] = {}
    if host := options.get("endpoint_override"):
        config["base_url" if place.startswith("gs:") else "endpoint"] = f"{options.get('scheme', 'https')}://{host}"
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if is_s3 and not region and not host and not endpoint:
        region = _region_of(place.removeprefix("s3://"))
    if is_s3 and region:
        config["region"] = region
    provider = _profile(uri) if is_s3 else None

    def attempt() -> Any:
        return from_url(  # type: ignore[call-overload]  # whose options differ by scheme
            place, config=config, client_options=_CLIENT, retry_config=_RETRIES, credential_provider=provider
        )

    return tried(uri, "opened", attempt)


def _region_of(bucket: str) -> str | None:
    """Return the region of one of Amazon's buckets, which is told also to who may not read it; None without answer."""
    try:
        with urlopen(Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD"), timeout=5) as answer:
            return answer.headers.get("x-amz-bucket-region")
    except HTTPError as error:
        return error.headers.get("x-amz-bucket-region")
    except (URLError, TimeoutError):
        return None


def _profile(uri: str) -> Any:
    """Return the credentials of `aws configure` and of single sign-on, which only boto3 reads; None if there are none.

    Keys in the environment stand before them. Raises UserError if boto3 is not installed.
    """
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    if "AWS_ACCESS_KEY_ID" in os.environ or not (
        "AWS_PROFILE" in os.environ or any(Path(file).expanduser().is_file() for file in files)
    ):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StoreError(
            f"{uri}: cannot be opened: profiles of AWS need boto3; install it (pip install boto3), or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        return Boto3CredentialProvider()
    except ValueError:  # a profile without credentials, as one that only names a region
        return None
    except Exception as error:  # botocore's errors have no common base beside it
        raise StoreError(f"{uri}: cannot be opened: {error}; check AWS_PROFILE and ~/.aws") from None


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
            raise OSError(_TOO_LITTLE)
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
            raise OSError(_TOO_LITTLE)
        return content, _version(found.meta)

    return tried(str(path), "read", attempt)


def create(path: RemotePath, content: bytes) -> Version:
    """Write a file that is not there, in one step with the look. Raises FileExistsError if it is, and UserError."""
    return _put_if(path, content, None)


def replace(path: RemotePath, content: bytes, version: Version) -> Version:
    """Write a file if it is of a version still, in one step with the look.

    Raises FileExistsError if it is not, and UserError.
    """
    return _put_if(path, content, version)


def _put_if(path: RemotePath, content: bytes, before: Version | None) -> Version:
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
                raise OSError(_BUSY) from None
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
            raise OSError(_TOO_LITTLE)
        return data


def _state(meta: Any) -> RemoteFile:
    return RemoteFile(meta["size"], int(meta["last_modified"].timestamp()))


def tried(name: str, done: str, action: Callable[[], T]) -> T:
    """Return what an action of obstore gives, which is tried again unless no retry can help.

    Raises a StoreError, which says that `name` cannot be `done` ("read"), in place of obstore's errors, which have many
    lines.
    """
    deadline, pause = time.monotonic() + _PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return action()
        except (UserError, FileExistsError):
            raise
        except (OSError, BaseError, ValueError) as error:
            if _lasts(error) or time.monotonic() >= deadline:
                raise StoreError(f"{name}: cannot be {done}: {reason(str(error), 'check the URI')}") from None
        # Many clients that try again at the same moment would be refused again.
        time.sleep(min(pause * random.uniform(0.5, 1.5), max(0, deadline - time.monotonic())))
        pause *= 2


def _lasts(error: Exception) -> bool:
    """Return whether no retry can help."""
    signs = (sign for signs in _LASTING.values() for sign in signs)
    return isinstance(error, FileNotFoundError | ValueError) or any(sign in str(error) for sign in signs)


def reason(error: str, otherwise: str) -> str:
    """Return what an error of obstore means and how to fix it; for an unknown one its first line and `otherwise`."""
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
