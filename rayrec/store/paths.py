"""Where files and folders lie: paths of this machine, and `RemotePath`s, which are URIs with the same verbs.

So a function takes a folder without knowing whether it is on a disk or in a bucket. What a library opens by its name,
or maps, needs a file of this node: `rayrec.store.node_copy`.
"""

import fnmatch
import hashlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path, PosixPath, PurePath
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import unquote, urlsplit

from pydantic import BeforeValidator, PlainSerializer, PlainValidator

from rayrec.common.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rayrec.store.objects import RemoteFile

REGISTRY_SCHEME = "models:/"
"""The scheme of models in MLflow's registry."""
CACHE_VARIABLE = "RAYREC_CACHE"
_DEFAULT_CACHE = "~/.cache/rayrec"
_SPARK_FOLDERS = "SPARK_LOCAL_DIRS"
"""Set by Spark for the Python processes of an executor: its folders for files of its own, with commas in between."""
_URI = re.compile(r"^[a-z][a-z0-9+.-]*://")
_COLLAPSED = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")
_LONGEST_NAME = 160
"""Bytes; file systems take 255, also of the longer names under which files are written, with endings and numbers."""


class RemotePath(PosixPath):
    """A file or folder of another file system, such as s3://bucket/folder/file; its text is its URI.

    Folders are only beginnings of names there: one exists while a file is below it, and is never made. Files appear
    whole, and are not renamed or locked. Reading and writing raise UserError if the store fails.

    It is a Path so that the 300 functions that take a folder say `Path`, and not a union of two types. What needs a
    file of this machine asks for `__fspath__`, which raises: open, os, shutil, NumPy, pyarrow, and the methods that are
    not here. One trap is left: `Path(remote)` is a local path of the same parts, which Python makes without asking.
    """

    # Its parts are the root, the store ("s3:bucket", with the query of the URI), and the names below it.

    @classmethod
    def of(cls, uri: str) -> Self:
        """Return the path of a URI. Raises ConfigError if it does not name a folder, or contains a password.

        Names that begin with a dot are only rayrec's own, which `to_path` refuses.
        """
        parts = urlsplit(uri)
        if parts.password is not None:
            raise ConfigError(
                "leave the password out, because URIs are stored with the results; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or the variables of your file system, instead"
            )
        names = [unquote(name) for name in parts.path.split("/") if name]
        if not parts.netloc or parts.fragment or not {".", ".."}.isdisjoint(names):
            form = f"{parts.scheme}://BUCKET/FOLDER, without names in dots{', and # as %23' if parts.fragment else ''}"
            raise ConfigError(f"{uri}: names no folder; write it as {form}")
        query = f"?{parts.query}".replace("/", "%2F") if parts.query else ""
        return cls("/", f"{parts.scheme}:{parts.netloc}{query}", *names)

    @property
    def store(self) -> str:
        """The URI of the bucket, or of what else holds all files of the store, with the query of the path's URI."""
        scheme, _, place = self.parts[1].partition(":")
        return f"{scheme}://{place}"

    @property
    def key(self) -> str:
        """The name of the file or folder in its store; "" for the store itself."""
        return "/".join(self.parts[2:])

    @property
    def name(self) -> str:
        return super().name if len(self.parts) > 2 else urlsplit(self.store).netloc

    def __str__(self) -> str:
        if len(self.parts) < 2 or self.parts[0] != "/":
            return "/".join(self.parts)
        place, mark, query = self.store.partition("?")
        # What a URI would take for something else.
        names = (
            re.sub("%(?=[0-9A-Fa-f]{2})", "%25", n).replace("#", "%23").replace("?", "%3F") for n in self.parts[2:]
        )
        return "/".join([place, *names]) + mark + query

    def __fspath__(self) -> str:
        raise TypeError(f"{self}: is at a URI, and is opened by its own methods or as a copy on this node")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def relative_to(self, *others: Any, **options: Any) -> Path:  # type: ignore[override]
        return Path(*super().relative_to(*others, **options).parts)

    def absolute(self) -> Self:
        return self

    def expanduser(self) -> Self:
        return self

    def _status(self) -> "RemoteFile | None":
        from rayrec.store.objects import status

        return status(self)

    def exists(self, **_: bool) -> bool:
        return self._status() is not None

    def is_file(self, **_: bool) -> bool:
        found = self._status()
        return found is not None and not found.is_folder

    def is_dir(self, **_: bool) -> bool:
        found = self._status()
        return found is not None and found.is_folder

    def is_symlink(self) -> bool:
        return False

    def stat(self, **_: bool) -> os.stat_result:
        """Return size and time of change; of a folder those of its newest file. Raises FileNotFoundError."""
        from rayrec.store.objects import files_below

        found = self._status()
        if found is None:
            raise FileNotFoundError(f"{self}: does not exist")
        modified = (
            max((f.modified for f in files_below(self).values()), default=0) if found.is_folder else found.modified
        )
        kind = 0o040755 if found.is_folder else 0o100644
        times = dict.fromkeys(("st_atime_ns", "st_mtime_ns", "st_ctime_ns"), modified * 10**9)
        return os.stat_result((kind, 0, 0, 1, 0, 0, found.bytes, modified, modified, modified), times)

    def iterdir(self) -> Iterator[Self]:  # type: ignore[override]
        from rayrec.store.objects import entries_in

        yield from (self / name for name in entries_in(self))

    def glob(self, pattern: str, **_: Any) -> Iterator[Self]:  # type: ignore[override]
        """Yield the files and folders whose names below this folder match, sorted."""
        from rayrec.store.objects import files_below

        files, patterns = [PurePath(name) for name in files_below(self)], pattern.split("/")
        for path in sorted({*files, *(folder for file in files for folder in file.parents if folder.name)}):
            if len(path.parts) == len(patterns) and all(map(fnmatch.fnmatchcase, path.parts, patterns)):
                yield self / path

    def open(self, mode: str = "r", *_: Any, **__: Any) -> Any:
        """Open the file to read, any part of it if the mode is `rb`; a new one is written by `rayrec.store.files`."""
        from rayrec.store.objects import open_file

        assert mode in ("r", "rb"), mode
        file = open_file(self)
        return file if mode == "rb" else io.TextIOWrapper(file, encoding="utf-8")

    def read_bytes(self) -> bytes:
        with self.open("rb") as file:
            content: bytes = file.read()
        return content

    def read_text(self, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode()

    def write_bytes(self, data: Any) -> int:
        from rayrec.store.objects import write

        write(self, io.BytesIO(data), len(data))
        return len(data)

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: the files of a folder make it."""

    def unlink(self, missing_ok: bool = False) -> None:
        from rayrec.store.objects import delete

        delete(self)


def to_path(given: str | Path) -> Path:
    """Return the path of a file or folder given as a path or a URI; one of file:// is local.

    Touches no file, except that a model of MLflow's registry (`models:/`) is looked up, and fetched if only MLflow's
    server can. Raises ConfigError on a URI that does not name a folder, or contains a password.
    """
    if isinstance(given, RemotePath):
        return given
    text = str(given)
    if text.startswith(REGISTRY_SCHEME):
        from rayrec.store.mlflow_server import registered_folder

        return to_path(registered_folder(text, cache_root() / "mlflow"))
    if _COLLAPSED.match(text):
        raise ConfigError(f"{text}: a URI that was made a Path loses a slash; give it as text")
    if not is_uri(text):
        return Path(text)
    if text.startswith("file://"):
        return Path(unquote(urlsplit(text).path))
    path = RemotePath.of(text)
    if any(name.startswith(".") for name in path.parts[2:]):
        raise ConfigError(f"{text}: names no folder; write it as s3://BUCKET/FOLDER, without names in dots")
    return path


def path_of(text: str) -> Path:
    """Return the path whose text this is, of whatever file."""
    return RemotePath.of(text) if is_uri(text) else Path(text)


def cache_root() -> Path:
    """Return the folder of this node for copies of remote files: RAYREC_CACHE, if set; in a task of Spark one that goes
    with its executor.
    """
    of_spark = os.environ.get(_SPARK_FOLDERS)
    if of_spark:
        return Path(of_spark.partition(",")[0]) / "rayrec"
    return Path(os.environ.get(CACHE_VARIABLE) or _DEFAULT_CACHE).expanduser().absolute()


def copies_folder() -> Path:
    """Return the folder of this node in which copies of remote files lie (`rayrec.store.node_copy`)."""
    return cache_root() / "copies"


def place_on_this_node(path: Path) -> Path:
    """Return the place of a file or folder on this node: the path itself, or where the copy of a remote one lies."""
    return Path(copies_folder(), *path.parts[1:]) if isinstance(path, RemotePath) else path


def is_uri(path: str) -> bool:
    """Return whether `path` names its file system, as s3://bucket/key does."""
    return _URI.match(path) is not None


def is_utf8(name: str) -> bool:
    """Return whether a name is all characters: Python stands for other bytes by halves of characters."""
    return "\0" not in name and name.encode(errors="replace").decode() == name


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


def _as_path(given: object) -> Path:
    if not isinstance(given, str | Path):
        raise ValueError("give a path or a URI")
    try:
        return to_path(given)
    except ConfigError as error:  # pydantic's message shows what was given too
        raise ValueError(str(error).removeprefix(f"{given}: ")) from None


def _refuse_uri(given: object) -> object:
    if isinstance(given, RemotePath) or is_uri(str(given)) or _COLLAPSED.match(str(given)):
        raise ConfigError("takes a local path, not a URI")
    return given


Folder = Annotated[Path, PlainValidator(_as_path, json_schema_input_type=Path), PlainSerializer(str, when_used="json")]
"""The type of a field that takes a folder or a URI."""
KeptPath = Annotated[Path, PlainValidator(lambda given: path_of(str(given))), PlainSerializer(str, when_used="json")]
"""The type of a path in what rayrec keeps for itself. Unlike a user's, it may have names that begin with a dot."""
LocalPath = Annotated[Path, BeforeValidator(_refuse_uri)]
"""The type of a field that takes a path but not a URI."""
