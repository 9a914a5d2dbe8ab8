"""What a staged folder and its remote one have in common: the state of each file when it was last copied."""

import json
import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rayrec.common.files import write_atomically
from rayrec.storage.remote import RemoteFile


@dataclass(frozen=True)
class LocalFile:
    """What tells one state of a local file from another."""

    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "LocalFile":
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class Copied:
    """A file that was the same on both sides."""

    remote: RemoteFile
    local: LocalFile


class Journal:
    """Lines of JSON that are added to as files are copied, by any thread.

    A kill loses no more than the copies under way, and of these `begun` knows: whether they arrived cannot be told.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.copied: dict[str, Copied] = {}
        self.begun: set[str] = set()
        """Files that were being sent, or removed remotely, when the process before this one died."""
        for name, state in self._lines():
            self._note(name, state)
        self._rewrite()

    def begin(self, names: Iterable[str]) -> None:
        """The remote files may change from now on."""
        self._append([[name, "begun"] for name in names])

    def add(self, name: str, remote: RemoteFile, local: LocalFile) -> None:
        """A file is the same on both sides."""
        self._append([[name, [remote.bytes, remote.modified, local.bytes, local.modified_ns]]])

    def remove(self, name: str) -> None:
        """A file is on no side."""
        self._append([[name, None]])

    def _append(self, lines: list[list[object]]) -> None:
        with self._lock:
            with self._path.open("a") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))
            for name, state in lines:
                self._note(str(name), state)

    def _note(self, name: str, state: object) -> None:
        self.begun.discard(name)
        if state == "begun":
            self.begun.add(name)
        elif isinstance(state, list):
            self.copied[name] = Copied(RemoteFile(*state[:2]), LocalFile(*state[2:]))
        else:
            self.copied.pop(name, None)

    def _lines(self) -> Iterator[tuple[str, object]]:
        if not self._path.exists():
            return
        for line in self._path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # the last one may be torn
                name, state = json.loads(line)
                yield name, state

    def _rewrite(self) -> None:
        states = {
            name: [c.remote.bytes, c.remote.modified, c.local.bytes, c.local.modified_ns]
            for name, c in self.copied.items()
        }
        lines: list[list[object]] = [[name, state] for name, state in states.items()]
        lines += [[name, "begun"] for name in self.begun]
        write_atomically(self._path, "".join(f"{json.dumps(line)}\n" for line in lines))
