"""history.jsonl: one JSON object a line, written by rank 0 as training goes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayrec.common.files import write_atomically


class History:
    """Appends records; each line is on disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def cut_after(self, step: int) -> None:
        """Drop records of steps beyond `step`: a resumed run makes them again. Also drops a torn last line."""
        if self._path.exists():
            kept = [json.dumps(record) + "\n" for record in read_history(self._path) if record["step"] <= step]
            write_atomically(self._path, "".join(kept))

    def append(self, record: dict[str, Any]) -> None:
        """`record` has a `step`; values are JSON."""
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_history(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a history file, whole lines only; none where there is no file."""
    if not path.exists():
        return
    with path.open() as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)
