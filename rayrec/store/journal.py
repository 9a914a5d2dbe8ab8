"""The journal of a staged folder: the state of each file, locally and remotely, when it was last copied."""

import json
import os
import threading
from pathlib import Path
from typing import NamedTuple

from rayrec.common.disk_errors import naming
from rayrec.store.files import write_atomically
from rayrec.store.objects import RemoteFile


class LocalFile(NamedTuple):
    """Tells one state of a local file from another."""

    bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "LocalFile":
        return cls(status.st_size, status.st_mtime_ns)


class Copied(NamedTuple):
    """The states of a file when it was the same on both sides."""

    remote: RemoteFile
    local: LocalFile


class Journal:
    """A file of JSON lines to which any thread appends as files are copied.

    A kill, or a loss of power, loses only the copies in progress. `begun` has their names, as nobody knows whether they
    arrived.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.copied: dict[str, Copied] = {}
        self.begun: set[str] = set()
        """Files that were being sent, or deleted remotely, when the previous process died."""
        for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
            if line.endswith("\n"):  # the last one may be cut short
                self._note(*json.loads(line))
        lines = [_line(name, [*copied.remote, *copied.local]) for name, copied in self.copied.items()]
        write_atomically(path, "".join(lines + [_line(name, "begun") for name in self.begun]))

    def begin(self, name: str) -> None:
        """Record that a remote file may change from now on."""
        self._append(name, "begun")

    def add(self, name: str, remote: RemoteFile, local: LocalFile) -> None:
        """Record that a file is the same on both sides."""
        self._append(name, [*remote, *local])

    def remove(self, name: str) -> None:
        """Record that a file exists on neither side."""
        self._append(name, None)

    def known(self, name: str) -> Copied | None:
        """Return the states of a file when it was last copied; None if it was not, or may have changed remotely since
        then.
        """
        return None if name in self.begun else self.copied.get(name)

    def _append(self, name: str, state: object) -> None:
        with self._lock:
            with naming(self._path), self._path.open("a") as file:
                file.write(_line(name, state))
                file.flush()
                os.fsync(file.fileno())  # before the remote file may change
            self._note(name, state)

    def _note(self, name: str, state: object) -> None:
        self.begun.discard(name)
        if state == "begun":
            self.begun.add(name)
        elif isinstance(state, list):
            self.copied[name] = Copied(RemoteFile(*state[:2]), LocalFile(*state[2:]))
        else:
            self.copied.pop(name, None)


def _line(name: str, state: object) -> str:
    return f"{json.dumps([name, state])}\n"
