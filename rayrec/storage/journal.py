"""The journal of a staged folder: the state of each file, locally and remotely, when it was last copied."""

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
    """Tells one state of a local file from another."""

    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "LocalFile":
        return cls(status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class Copied:
    """The states of a file when it was the same on both sides."""

    remote: RemoteFile
    local: LocalFile


class Journal:
    """A file of JSON lines to which any thread appends as files are copied.

    A kill loses only the copies in progress. `begun` has their names, as nobody knows whether they arrived.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.copied: dict[str, Copied] = {}
        self.begun: set[str] = set()
        """Files that were being sent, or deleted remotely, when the previous process died."""
        for name, state in self._lines():
            self._note(name, state)
        self._rewrite()

    def begin(self, names: Iterable[str]) -> None:
        """Record that these remote files may change from now on."""
        self._append([[name, "begun"] for name in names])

    def add(self, name: str, remote: RemoteFile, local: LocalFile) -> None:
        """Record that a file is the same on both sides."""
        self._append([[name, [remote.bytes, remote.modified, local.bytes, local.modified_ns]]])

    def remove(self, name: str) -> None:
        """Record that a file exists on neither side."""
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
            if line.endswith("\n"):  # the last one may be cut short
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
