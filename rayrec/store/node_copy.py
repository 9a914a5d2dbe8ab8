"""Copies of remote files on this node, for what libraries map or open by name; made when they are asked for."""

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.store.files import is_output, new_file, remove
from rayrec.store.paths import RemotePath, copies_folder, place_on_this_node

if TYPE_CHECKING:
    from rayrec.store.objects import RemoteFile

_BLOCK_BYTES = 2**23


def on_this_node(path: Path) -> Path:
    """Return a file or folder of this node: `path` itself, or its copy, which is made equal to what is at the URI now.

    A file is copied again if its size or time of change differs. Nothing is there if nothing is at the URI. Raises
    UserError if that cannot be read.
    """
    if not isinstance(path, RemotePath):
        return path
    from filelock import FileLock

    from rayrec.store.objects import files_below, for_each, status

    copy, found = place_on_this_node(path), status(path)
    wanted: dict[Path, RemoteFile] = {}
    if found is not None and not found.is_folder:
        wanted[Path()] = found
    elif found is not None:
        wanted = {Path(name): file for name, file in files_below(path).items() if is_output(name)}
    with naming(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(copy.with_name(f".{copy.name}.lock")):

        def bring(name: Path) -> None:
            file, target = wanted[name], copy / name
            with naming(target, needed=file.bytes):
                if not target.is_file() or (target.stat().st_size, int(target.stat().st_mtime)) != file[:2]:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _download(path / name, target, file)

        if Path() in wanted and copy.is_dir():
            shutil.rmtree(copy)
        elif Path() not in wanted and copy.is_file():
            copy.unlink()
        # What says that others are whole comes after them.
        for_each(bring, [name for name in wanted if name.suffix != ".json"])
        for_each(bring, [name for name in wanted if name.suffix == ".json"])
        if Path() not in wanted:
            for old in sorted(copy.rglob("*"), reverse=True):
                name = old.relative_to(copy)
                if old.is_file() and is_output(name.as_posix()) and name not in wanted:
                    old.unlink()
                elif old.is_dir() and not any(old.iterdir()):
                    old.rmdir()
            if not wanted:
                remove(copy)
    return copy


def _download(path: Path, target: Path, file: "RemoteFile") -> None:
    with path.open("rb") as source, new_file(target) as temporary:
        with temporary.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK_BYTES)
        if temporary.stat().st_size != file.bytes:
            raise UserError(f"{path}: changed while it was read; run again")
        os.utime(temporary, (file.modified, file.modified))


def original(path: Path) -> Path:
    """Return the path that a copy on this node is of; any other path is returned as it is."""
    if not path.is_relative_to(copies_folder()):
        return path
    return RemotePath("/", *path.relative_to(copies_folder()).parts)


def shown(text: str) -> str:
    """Return a text for a person, with URIs in place of copies on this node."""
    copies = re.escape(f"{copies_folder()}/")
    return re.sub(rf"{copies}[^\s'\",;]+", lambda match: str(original(Path(match[0]))), text)
