"""Raw input files: found from paths, folders, globs and URIs, opened, and cut into chunks."""

import fnmatch
import glob
import json
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.store.objects import RemoteFile, entries_in, files_below, open_unbuffered, status
from rayrec.store.paths import RemotePath, is_uri, is_utf8

Packing = Literal["gzip", "zip", "zstd", "bz2", "xz", "lz4"]
_MAGIC: dict[bytes, Packing] = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # without members
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
"""The first bytes of packed files."""
_PARQUET = b"PAR1"
HEAD_BYTES = 2**16
"""Bytes of a text that are looked at to tell what it is."""
READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
"""Errors that reading a damaged packed file raises."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark name a folder for rows whose value is missing."""


@dataclass(frozen=True)
class InputFile:
    """One raw file, plain or packed; a zip file has one member."""

    name: str
    """Name to show to the user: an absolute path or a URI."""
    path: Path
    bytes: int
    modified: float
    """Seconds since the epoch."""
    packing: Packing | None
    is_parquet: bool = False
    """Whether its first bytes are those of Parquet."""
    partitions: tuple[tuple[str, str | None], ...] = ()
    """Columns that the names of its folders tell, as `day=2024-05-01/` does, with the value of all its rows."""

    @property
    def base_name(self) -> str:
        return self.path.name

    def open(self) -> pa.NativeFile:
        """Return the text of the file, decompressed; a plain file can seek.

        Raises UserError if a zip file cannot be opened or does not have one member.
        """
        return self.unpack(self.open_packed())

    def open_packed(self) -> pa.NativeFile:
        """Open the file's bytes as they are, any range of which can be read; a bucket gives all that are asked for.

        Raises OSError, and UserError if a bucket cannot be read.
        """
        if isinstance(self.path, RemotePath):
            return pa.PythonFile(open_unbuffered(self.path), "r")
        return pa.OSFile(str(self.path), "r")

    def unpack(self, file: pa.NativeFile) -> pa.NativeFile:
        """Return the text of the file's bytes. Raises UserError as `open`."""
        match self.packing:
            case None:
                return file
            case "zip":
                return pa.PythonFile(_only_member(self.name, file), "r")
            case "xz":
                return pa.PythonFile(lzma.open(file), "r")
            case packing:
                return pa.CompressedInputStream(file, packing)


def _only_member(name: str, file: pa.NativeFile) -> IO[bytes]:
    try:
        archive = zipfile.ZipFile(file)
        # Archives made by macOS's Finder contain the attributes of a file as another file.
        members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
        if {"[Content_Types].xml", "content.xml"}.intersection(archive.namelist()):
            raise UserError(f"{name}: a spreadsheet; save it as CSV")
        if len(members) != 1:
            raise UserError(f"{name}: a zip file of {len(members)} files; give one file in each, or unpack it")
        return archive.open(members[0])
    except (*READ_ERRORS, pa.ArrowException, RuntimeError) as error:
        raise unreadable(name, error, "fetch it again", "cannot be unpacked") from None


def list_inputs(paths: Iterable[str]) -> list[InputFile]:
    """Return the files that `paths` (each a file, a folder, a glob or a URI of one of these) stand for.

    Files of one folder, with those of the folders in it, or of a glob are in natural order of their names (day_2 before
    day_10). Left out of a folder are hidden files, whose names begin with a dot or an underscore, and files that
    describe data (.md, .yaml, and .json that is not a row in each line or one array, if there are other files).
    Raises UserError if a path gives no file or a pipe, if a file is given twice, or if it is of a table with a log,
    which alone knows the files whose rows still count.
    """
    files = [file for path in paths for file in _list(str(path))]
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise UserError(f"{file.name}: given twice; give every file once")
        seen.add(file.name)
    for folder in dict.fromkeys(folder for file in files for folder in file.path.parents):
        if (lake := _lake(folder)) is not None:
            raise UserError(
                f"{folder}: a table of {lake}, whose files also hold rows that were removed; write its rows to Parquet "
                f"files in another folder with a reader of {lake}, and give that folder"
            )
    return files


def _lake(folder: Path) -> str | None:
    """Return what keeps a log in the folder, which lies in it or above a file; None if nothing does."""
    if isinstance(folder, RemotePath) and not folder.key:  # tables lie in folders of a bucket
        return None
    for lake, log in (("Delta Lake", "_delta_log"), ("Apache Hudi", ".hoodie")):
        if (folder / log).is_dir():
            return lake
    return "Apache Iceberg" if any((folder / "metadata").glob("*.metadata.json")) else None


def _list(given: str) -> list[InputFile]:
    """Return the files of one path, with the first bytes of each read, which tell how it is packed."""
    try:
        if is_uri(given) and not given.startswith("file://"):
            found, is_folder = _at_uri(RemotePath.of(given))
            states = {path: (file.bytes, float(file.modified)) for path, file in found.items()}
            outside = 2  # the root and the store
        else:
            path = Path(unquote(urlsplit(given).path)) if is_uri(given) else Path(given)
            if given.startswith("~") and not path.exists():
                path = path.expanduser()
            if given == "-" or path.is_fifo() or path.is_socket() or path.is_char_device():
                raise UserError(f"{given}: a pipe cannot be read twice; save it to a file and give that")
            on_disk, is_folder = _on_disk(path.absolute())
            if other := next((path for path in on_disk if not is_utf8(str(path))), None):
                raise UserError(f"{str(other)!a}: a name that is not UTF-8; rename the file or folder")
            stats = {path: path.stat() for path in on_disk}
            # Microseconds, as every Python can say them.
            states = {path: (state.st_size, state.st_mtime_ns // 1000 / 10**6) for path, state in stats.items()}
            outside = 0 if path.is_absolute() else len(Path.cwd().parts)
        files = [
            _describe(path, *states[path], outside) for path in sorted(states, key=lambda path: _natural(str(path)))
        ]
        if is_folder:
            files = [file for file in files if not _describes_data(file)] or [
                file for file in files if file.path.suffix == ".json"
            ]
        if not files:
            raise UserError(f"{given}: no such file, or a folder without files; give a file, a folder, a glob or a URI")
        return files
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: ~NAME of nobody
        if isinstance(error, UserError):
            raise
        raise unreadable(given, error, "check the path", "cannot be read") from None


def _on_disk(path: Path) -> tuple[list[Path], bool]:
    """Return the file at a path, the files in that folder and the folders in it, or those that match a glob.

    Tell also whether it is a folder.
    """

    def fail(error: OSError) -> None:
        raise error

    if path.is_dir():
        found, seen = [], {path.resolve()}
        for folder, inner, names in os.walk(path, onerror=fail, followlinks=True):
            # Links may lead around in a circle.
            targets = {name: (Path(folder) / name).resolve() for name in inner if name[0] not in "._"}
            inner[:] = [name for name, target in targets.items() if target not in seen]
            seen.update(targets.values())
            found += [Path(folder) / name for name in names if name[0] not in "._"]
        return _files(found), True
    # A file whose name holds glob characters is that file.
    if path.exists() or not glob.has_magic(str(path)):
        return _files([path]), False
    return _files(map(Path, glob.glob(str(path)))), False


def _files(found: Iterable[Path]) -> list[Path]:
    """Return the files among paths. Raises UserError at a link that leads nowhere, whose rows would be missed."""
    files = []
    for path in found:
        if path.is_symlink() and not path.exists():
            raise UserError(f"{path}: a link to {os.readlink(path)}, which does not exist; mend or remove it")
        if path.is_file():
            files.append(path)
    return files


def _at_uri(path: RemotePath) -> tuple[dict[Path, RemoteFile], bool]:
    """Return the files at a URI as `_on_disk` does; a glob may stand in the last name."""
    state = status(path)
    if state is not None and state.is_folder:
        below = files_below(path)
        return {path / name: f for name, f in below.items() if not re.search(r"(^|/)[._]", name)}, True
    if state is not None:
        return {path: state}, False
    if not (glob.has_magic(path.name) and path.parent.is_dir()):
        return {}, False
    files = {path.parent / name: file for name, file in entries_in(path.parent).items() if not file.is_folder}
    return {file: of for file, of in files.items() if fnmatch.fnmatchcase(file.name, path.name)}, False


def _describe(path: Path, size: int, modified: float, outside: int) -> InputFile:
    """Return a file, of whose folders the first `outside` tell no columns."""
    pairs = (name.partition("=") for name in path.parent.parts[outside:])
    partitions = {
        unquote(key): None if value == _NO_VALUE else unquote(value) for key, is_pair, value in pairs if key and is_pair
    }
    described = InputFile(str(path), path, size, modified, None, partitions=tuple(partitions.items()))
    with described.open_packed() as file:
        head = file.read(max(map(len, _MAGIC)))
    packing = next((packing for magic, packing in _MAGIC.items() if head.startswith(magic)), None)
    return replace(described, packing=packing, is_parquet=head.startswith(_PARQUET))


def _describes_data(file: InputFile) -> bool:
    if file.path.suffix == ".json":
        with file.open_packed() as stream:
            head = stream.read(HEAD_BYTES).lstrip(BYTE_ORDER_MARK).strip()
        if head.startswith(b"[") or not head:
            return False
        first, _, second = head.partition(b"\n")
        try:
            has_rows = isinstance(json.loads(first), dict) and second.lstrip().startswith(b"{")
        except ValueError:
            return True
        return not has_rows
    return file.path.suffix in (".md", ".yaml", ".yml")


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that reads runs of digits as numbers."""
    return [(int(run), "") if run.isdigit() else (-1, run) for run in re.split(r"([0-9]+)", name)]


@dataclass(frozen=True)
class Chunk:
    """The lines of a file that begin in a range of its bytes."""

    file: InputFile
    file_index: int
    start: int
    stop: int | None
    """End of the range; None for the end of the file."""


def plan_chunks(files: Iterable[InputFile], chunk_bytes: int) -> list[Chunk]:
    """Cut files into chunks of about `chunk_bytes`, in order; a packed file, which cannot be entered midway, is one."""
    chunks = []
    for index, file in enumerate(files):
        starts = [0] if file.packing else range(0, max(file.bytes, 1), chunk_bytes)
        chunks += [
            Chunk(file, index, start, None if file.packing else min(start + chunk_bytes, file.bytes))
            for start in starts
        ]
    return chunks
