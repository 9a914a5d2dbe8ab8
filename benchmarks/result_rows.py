"""A file of results to which each run adds a row, so that what is there need not be run again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayrec.common.files import write_json


@dataclass(frozen=True)
class ResultRows:
    """Rows that `keys` tell apart."""

    path: Path
    keys: tuple[str, ...]
    printed: tuple[str, ...]
    """What is printed of a row that is added."""

    def read(self) -> list[dict[str, Any]]:
        """All rows, those added last at the end."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def has(self, **wanted: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row.get(key) == value for key, value in wanted.items()) for row in self.read())

    def add(self, row: dict[str, Any]) -> None:
        """Write and print a row, in place of one with the same keys."""
        others = [other for other in self.read() if any(other.get(key) != row.get(key) for key in self.keys)]
        write_json(self.path, [*others, row])
        print({key: row[key] for key in self.printed}, flush=True)
