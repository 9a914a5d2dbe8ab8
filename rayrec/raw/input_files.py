"""Raw input files: found from paths, folders, globs and URIs, and read in ranges of whole lines."""

import fnmatch
import glob
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from rayrec.common.errors import UserError
from rayrec.store.objects import RemoteFile, entries_in, open_unbuffered, status
from rayrec.store.paths import RemotePath, is_uri

MAX_LINE_BYTES = 2**24
_BLOCK_BYTES, _LEAST_BLOCK = 2**23, 2**16
Packing = Literal["gzip", "zip", "zstd"]
_MAGIC: dict[bytes, Packing] = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # without members
    b"\x28\xb5\x2f\xfd": "zstd",
}
"""The first bytes of packed files."""
READ_ERRORS = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
"""Errors that reading a damaged packed file raises."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DESCRIPTIONS = {"json", "md"}


@dataclass(frozen=True)
class InputFile:
    """One raw file, plain, gzip, zstd or a zip file of one member."""

    name: str
    """Name to show to the user: an absolute path or a URI."""
    path: Path
    bytes: int
    modified: float
    """Seconds since the epoch."""
    packing: Packing | None

    @property
    def base_name(self) -> str:
        return self.path.name

    def open(self) -> pa.NativeFile:
        """Return the text of the file, decompressed; a plain file can seek.

        Raises UserError if a zip file cannot be opened or does not have one member.
        """
        return self.unpack(self.open_packed())

    def open_packed(self) -> pa.NativeFile:
        """Open the file's bytes as they are, any part of which can be read; a bucket gives all that are asked for.

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
            case "gzip" | "zstd":
                return pa.CompressedInputStream(file, self.packing)
            case "zip":
                return pa.PythonFile(_only_member(self.name, file), "r")


def _only_member(name: str, file: pa.NativeFile) -> IO[bytes]:
    try:
        archive = zipfile.ZipFile(file)
        # Archives made by macOS's Finder contain the attributes of a file as another file.
        members = [m for m in archive.infolist() if not m.is_dir() and not m.filename.startswith("__MACOSX/")]
        if "[Content_Types].xml" in archive.namelist():
            raise UserError(f"{name}: a spreadsheet; save it as CSV")
        if len(members) != 1:
            raise UserError(f"{name}: a zip file of {len(members)} files; give one file in each, or unpack it")
        return archive.open(members[0])
    except (*READ_ERRORS, pa.ArrowException, RuntimeError) as error:
        raise UserError(f"{name}: cannot be unpacked ({str(error).splitlines()[0]}); fetch it again") from None


def list_inputs(paths: Iterable[str]) -> list[InputFile]:
    """Return the files that `paths` (each a file, a folder, a glob or a URI of one of these) stand for.

    Files of one folder or glob are in natural order of their names (day_2 before day_10). Hidden
    files of a folder, and files that describe data (.json, .md), are left out.
    Raises UserError if a path gives no file or a file is given twice.
    """
    files = [file for path in paths for file in _list(str(path))]
    seen: set[str] = set()
    for file in files:
        if file.name in seen:
            raise UserError(f"{file.name}: given twice; give every file once")
        seen.add(file.name)
    return files


def _list(given: str) -> list[InputFile]:
    """Return the files of one path, with the first bytes of each read, which tell how it is packed."""
    found = {}
    try:
        if is_uri(given) and not given.startswith("file://"):
            found = {path: (file.bytes, float(file.modified)) for path, file in _at_uri(RemotePath.of(given)).items()}
        else:
            for path in _on_disk(Path(unquote(urlsplit(given).path)) if is_uri(given) else Path(given)):
                state = path.stat()
                # Microseconds, as every Python can say them.
                found[path] = state.st_size, state.st_mtime_ns // 1000 / 10**6
        if not found:
            raise UserError(f"{given}: no such file, or a folder without files; give a file, a folder, a glob or a URI")
        return [_describe(path, *found[path]) for path in sorted(found, key=lambda path: _natural(str(path)))]
    except (OSError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{given}: cannot be read: {str(error).splitlines()[0]}; check the path") from None


def _on_disk(given: Path) -> list[Path]:
    path = given.expanduser().absolute()
    if path.is_dir():
        return [inside for inside in path.iterdir() if _is_data(inside) and inside.is_file()]
    # A file whose name holds glob characters is that file.
    if path.exists() or not glob.has_magic(str(path)):
        return [path] if path.is_file() else []
    return [found for found in map(Path, glob.glob(str(path))) if found.is_file()]


def _at_uri(path: RemotePath) -> dict[Path, RemoteFile]:
    """Return the file at a URI, the data files in that folder, or the files that match its last part as a glob."""
    state = status(path)
    if state is not None and not state.is_folder:
        return {path: state}
    if state is None and not (glob.has_magic(path.name) and path.parent.is_dir()):
        return {}
    folder = path if state is not None else path.parent
    files = {folder / name: file for name, file in entries_in(folder).items() if not file.is_folder}
    if state is not None:
        return {file: of for file, of in files.items() if _is_data(file)}
    return {file: of for file, of in files.items() if fnmatch.fnmatchcase(file.name, path.name)}


def _is_data(path: Path) -> bool:
    return path.name[0] not in "._" and path.suffix[1:] not in _DESCRIPTIONS


def _describe(path: Path, size: int, modified: float) -> InputFile:
    described = InputFile(str(path), path, size, modified, None)
    with described.open_packed() as file:
        head = file.read(max(map(len, _MAGIC)))
    return replace(
        described, packing=next((packing for magic, packing in _MAGIC.items() if head.startswith(magic)), None)
    )


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key that reads runs of digits as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


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


def read_lines(chunk: Chunk) -> Iterator[bytes]:
    """Yield the blocks of whole lines, each line ended by a newline, which together are exactly the lines of the chunk.

    A byte order mark at the start of the file is left out.

    Raises UserError on a damaged packed file or an endless line.
    """
    packing = chunk.file.packing
    try:
        yield from _read_lines(chunk)
    except READ_ERRORS as error:
        if packing is None:
            raise
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{chunk.file.name}: damaged {packing} file ({reason}); fetch it again") from None


def _read_lines(chunk: Chunk) -> Iterator[bytes]:
    # What is read past the end of a short chunk belongs to the next one.
    block_bytes = _BLOCK_BYTES if chunk.stop is None else min(_BLOCK_BYTES, max(chunk.stop - chunk.start, _LEAST_BLOCK))
    with chunk.file.open() as stream:
        offset = max(0, chunk.start - 1)
        if offset:
            stream.seek(offset)
        # The line that begins before the chunk belongs to the chunk before.
        is_skipping = chunk.start > 0
        carried = b""
        while block := stream.read(block_bytes):
            if is_skipping:
                cut = block.find(b"\n") + 1
                offset += cut or len(block)
                if chunk.stop is not None and offset >= chunk.stop:
                    return
                if not cut:
                    continue
                block, is_skipping = block[cut:], False
            elif offset == 0 and not carried and block.startswith(BYTE_ORDER_MARK):
                block = block[len(BYTE_ORDER_MARK) :]
                offset = len(BYTE_ORDER_MARK)
            data = carried + block
            if chunk.stop is not None and len(data) > (last := max(chunk.stop - 1 - offset, 0)):
                # The newline that ends the last line that begins before `stop`.
                end = data.find(b"\n", last) + 1
                if end:
                    yield data[:end]
                    return
            cut = data.rfind(b"\n") + 1
            if cut:
                yield data[:cut]
            offset += cut
            carried = data[cut:]
            if len(carried) > MAX_LINE_BYTES:
                raise UserError(
                    f"{chunk.file.name}: a line longer than {MAX_LINE_BYTES // 2**20} MiB; give one row a line"
                )
        if carried:
            yield carried + b"\n"


def read_data_lines(chunk: Chunk) -> Iterator[bytes]:
    """Yield the blocks of `read_lines`, without the blank lines at the end of the file."""
    blank = b""
    for block in read_lines(chunk):
        end = len(block)
        if block.endswith((b"\n\n", b"\n\r\n")) or block in (b"\n", b"\r\n"):
            content = len(block.rstrip(b"\r\n"))
            end = block.find(b"\n", content) + 1 if content else 0
        if end:
            yield blank + block[:end] if blank else block[:end]
            blank = b""
        blank += block[end:]
    if blank and not _is_blank_from(chunk):
        yield blank


def _is_blank_from(chunk: Chunk) -> bool:
    """Tell whether nothing but blank lines follows the chunk in its file."""
    if chunk.stop is None:
        return True
    with chunk.file.open() as stream:
        stream.seek(chunk.stop)
        while block := stream.read(_LEAST_BLOCK):
            if block.strip(b"\r\n"):
                return False
    return True
