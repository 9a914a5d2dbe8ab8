"""Copies files between a folder and a remote one, several at once, and records in a journal what both hold."""

import io
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from rayrec.common.errors import UserError
from rayrec.common.files import new_file
from rayrec.common.progress import Progress, SilentProgress
from rayrec.storage.journal import Journal, LocalFile
from rayrec.storage.outputs import in_order_of_removal, is_manifest, outputs
from rayrec.storage.remote import Remote, RemoteFile

_AT_ONCE = 8
T = TypeVar("T")


def download(
    remote: Remote, files: Mapping[str, RemoteFile], folder: Path, journal: Journal, progress: Progress, title: str
) -> None:
    """Fetch files, each of which appears only when it is complete. Raises UserError."""
    if not files:
        return
    counted = _Counted(progress, title, sum(file.bytes for file in files.values()))

    def one(name: str) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_file(target) as temporary, temporary.open("wb") as sink:
            if remote.read(name, sink) != files[name].bytes:
                raise UserError(f"{title}: {name} changed while it was read; run again")
        journal.add(name, files[name], LocalFile.of(target.stat()))
        counted.add(files[name].bytes)

    ordinary = [name for name in files if not is_manifest(name)]
    _each(one, ordinary)
    _each(one, [name for name in files if is_manifest(name)])


class Upload:
    """Sends what a process writes into a folder, in several passes."""

    def __init__(self, remote: Remote, folder: Path, journal: Journal, title: str) -> None:
        self._remote, self._folder, self._journal, self._title = remote, folder, journal, title
        self._seen: set[str] = set()

    def pass_once(self, progress: Progress | None = None) -> bool:
        """Send new and changed files, then delete those that an earlier pass saw and that are gone.

        Returns False if the folder changed meanwhile: then no manifest was sent and nothing was deleted, because files
        that a manifest refers to may be missing. The next pass does so. Raises UserError.
        """
        # Manifests are read first, and sent as they were then, so that all files that they refer to are found.
        manifests = {name: _content(self._folder / name) for name in outputs(self._folder) if is_manifest(name)}
        found = outputs(self._folder)
        if any(content is None or content.file != found.get(name) for name, content in manifests.items()):
            return False
        changed = {name: file for name, file in found.items() if not self._is_sent(name, file)}
        ordinary = [name for name in changed if not is_manifest(name)]
        counted = _Counted(
            progress or SilentProgress(),
            self._title,
            sum(changed[name].bytes for name in ordinary),
        )

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

        are_sent = all(_each(one, ordinary))
        self._seen |= found.keys()
        if not are_sent:
            return False
        for name, content in manifests.items():
            if content is not None and not self._is_sent(name, content.file):
                self._send(name, io.BytesIO(content.data), content.file)
        gone = {name for name in self._seen - found.keys() if not (self._folder / name).exists()}
        for name in in_order_of_removal(gone):
            self._journal.begin([name])
            self._remote.delete(name)
            self._journal.remove(name)
        self._seen -= gone
        return True

    def _is_sent(self, name: str, file: LocalFile) -> bool:
        copied = self._journal.copied.get(name)
        return copied is not None and copied.local == file and name not in self._journal.begun

    def _send(self, name: str, source: BinaryIO, file: LocalFile) -> None:
        self._journal.begin([name])
        self._journal.add(name, self._remote.write(name, source, file.bytes), file)


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


def _each(work: Callable[[str], T], names: Iterable[str]) -> list[T]:
    """The results in order. The first error ends the work, after the copies that have begun."""
    with ThreadPoolExecutor(_AT_ONCE, "rayrec-storage") as pool:
        futures = [pool.submit(work, name) for name in names]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Content:
    data: bytes
    file: LocalFile


def _content(path: Path) -> _Content | None:
    """The content of a file; None if it has gone."""
    try:
        with path.open("rb") as source:
            file = LocalFile.of(os.fstat(source.fileno()))
            return _Content(source.read(file.bytes), file)
    except FileNotFoundError:
        return None
