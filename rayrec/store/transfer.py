"""Copies files between a folder and a remote one, several at once, and records in a journal what both hold."""

import io
import os
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.common.progress import Progress, SilentProgress
from rayrec.store.files import new_file
from rayrec.store.journal import Journal, LocalFile
from rayrec.store.objects import Remote, RemoteFile, for_each

_DOTTED_OUTPUTS = {".metadata"}
"""Other names that begin with a dot are temporary or concern this machine only; this one is in torch's checkpoints."""


_LARGE = {".parquet", ".arrow", ".safetensors", ".distcp", ".metadata"}


def is_large(name: str) -> bool:
    """Return whether a file may be larger than a description: it is read where it lies, or fetched when somebody maps
    it.
    """
    file = name.rpartition("/")[2]
    return file[file.rfind(".") :] in _LARGE


def is_output(name: str) -> bool:
    """Return whether a file, given by its path in a folder, is a finished part of the folder's content."""
    *folders, file = name.split("/")
    is_hidden = file.startswith(".") and file not in _DOTTED_OUTPUTS
    return not is_hidden and not any(folder.startswith(".") for folder in folders)


def outputs(folder: Path) -> dict[str, LocalFile]:
    """Return the output files below a folder, in the order in which they may appear elsewhere; those that vanish are
    left out.

    Manifests come after all other files, in the order in which they were written.
    """
    found = {}
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(root, file) for file in files):
            name = path.relative_to(folder).as_posix()
            with suppress(FileNotFoundError):
                if is_output(name):
                    found[name] = LocalFile.of(path.stat())
    return dict(sorted(found.items(), key=lambda item: _order(*item)))


def is_manifest(name: str) -> bool:
    """Return whether a file says that other files are complete, or refers to them, so that it must not appear before
    them.
    """
    return name.endswith(".json")


def _order(name: str, file: LocalFile) -> tuple[bool, int, str]:
    return is_manifest(name), file.modified_ns if is_manifest(name) else 0, name


def download(
    remote: Remote, files: Mapping[str, RemoteFile], folder: Path, journal: Journal | None, progress: Progress, uri: str
) -> None:
    """Fetch files, each of which appears only when it is complete. Raises UserError."""
    if not files:
        return
    title = f"fetch {uri}"
    counted = _Counted(progress, title, sum(file.bytes for file in files.values()))

    def one(name: str) -> None:
        target = folder / name
        with naming(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        with naming(target, needed=files[name].bytes), new_file(target) as temporary, temporary.open("wb") as sink:
            if remote.read(name, sink) != files[name].bytes:
                raise UserError(f"{title}: {name} changed while it was read; run again")
        if journal is not None:
            journal.add(name, files[name], LocalFile.of(target.stat()))
        counted.add(files[name].bytes)

    for manifests in (False, True):
        for_each(one, [name for name in files if is_manifest(name) is manifests])


class Upload:
    """Sends what a process writes into a folder, in several passes."""

    def __init__(
        self, remote: Remote, folder: Path, journal: Journal, uri: str, remote_only: Iterable[str] = ()
    ) -> None:
        """`remote_only`: files that `folder` lacks; each is deleted when the folder that it would be in is gone."""
        self._remote, self._folder, self.journal, self._title = remote, folder, journal, f"send to {uri}"
        self._seen: set[str] = set()
        self._remote_only = set(remote_only)

    def adopt(self, folder: Path) -> None:
        """Take over what others wrote to the URI of a folder in this one; it is deleted when the folder is removed."""
        below = folder.relative_to(self._folder).as_posix()
        self._remote_only |= {name for name in self._remote.files(below) if not (self._folder / name).exists()}

    def pass_once(self, progress: Progress | None = None) -> bool:
        """Send new and changed files, then delete those that an earlier pass saw and that are gone.

        Return False if the folder changed meanwhile: then no manifest was sent and nothing was deleted, because files
        that a manifest refers to may be missing. The next pass does so. Raises UserError.
        """
        # Manifests are read first, and sent as they were then, so that all files that they refer to are found.
        manifests = {}
        try:
            for name in filter(is_manifest, outputs(self._folder)):
                with (self._folder / name).open("rb") as source:
                    file = LocalFile.of(os.fstat(source.fileno()))
                    manifests[name] = file, source.read(file.bytes)
        except FileNotFoundError:
            return False
        found = outputs(self._folder)
        if any(file != found.get(name) for name, (file, _) in manifests.items()):
            return False
        ordinary = [n for n, file in found.items() if not is_manifest(n) and not self._is_sent(n, file)]
        counted = _Counted(progress or SilentProgress(), self._title, sum(found[name].bytes for name in ordinary))

        def one(name: str) -> bool:
            try:
                source = (self._folder / name).open("rb")
            except FileNotFoundError:
                return False
            with source:
                # A file that grows is sent up to this size, and again by the next pass.
                file = LocalFile.of(os.fstat(source.fileno()))
                self._send(name, source, file)
            counted.add(file.bytes)
            return True

        are_sent = all(for_each(one, ordinary))
        self._seen |= found.keys()
        if not are_sent:
            return False
        for name, (file, content) in manifests.items():
            if not self._is_sent(name, file):
                self._send(name, io.BytesIO(content), file)
        gone = {name for name in self._seen - found.keys() if not (self._folder / name).exists()}
        gone |= {name for name in self._remote_only if not (self._folder / name).parent.exists()}
        # Manifests go first, so that none is left that refers to a file that is gone.
        for name in sorted(gone, key=lambda name: (not is_manifest(name), name)):
            self.journal.begin(name)
            self._remote.delete(name)
            self.journal.remove(name)
        self._seen -= gone
        self._remote_only -= gone
        return True

    def _is_sent(self, name: str, file: LocalFile) -> bool:
        copied = self.journal.known(name)
        return copied is not None and copied.local == file

    def _send(self, name: str, source: BinaryIO, file: LocalFile) -> None:
        self.journal.begin(name)
        self.journal.add(name, self._remote.write(name, source, file.bytes), file)


class _Counted:
    """Shows copied bytes as a stage of the progress, in MiB."""

    def __init__(self, progress: Progress, title: str, size: int) -> None:
        self._progress, self._done, self._lock = progress, 0, threading.Lock()
        if size:
            progress.stage(f"{title}, MiB", _mib(size))

    def add(self, size: int) -> None:
        with self._lock:
            before, self._done = self._done, self._done + size
            self._progress.advance(_mib(self._done) - _mib(before))


def _mib(size: int) -> int:
    return -(-size // 2**20)
