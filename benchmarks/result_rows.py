"""A file of results to which each run adds a row, so that what is there need not be run again."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayrec.common.machine import Machine
from rayrec.store.files import write_json


@dataclass(frozen=True)
class ResultRows:
    """Rows that `keys` tell apart."""

    path: Path
    keys: tuple[str, ...]
    printed: tuple[str, ...]
    """What is printed of a row that is added."""
    machine: Machine = field(default_factory=Machine)
    """Described in each row, as rows may be of different days."""

    def read(self) -> list[dict[str, Any]]:
        """Return all rows, those added last at the end."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def has(self, **wanted: Any) -> bool:
        """Return whether there is a row with these values."""
        return any(all(row.get(key) == value for key, value in wanted.items()) for row in self.read())

    def add(self, row: dict[str, Any]) -> None:
        """Write and print a row, in place of one with the same keys."""
        others = [other for other in self.read() if any(other.get(key) != row.get(key) for key in self.keys)]
        write_json(self.path, [*others, {**row, "machine": self.machine.described()}])
        print({key: row[key] for key in self.printed}, flush=True)


def parser_by_rows(description: str, rows: Sequence[int], interval: float) -> argparse.ArgumentParser:
    """Return the arguments of a benchmark that measures a growing number of rows, with defaults for two of them."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=rows)
    parser.add_argument("--interval", type=float, default=interval)
    parser.add_argument("--folder", type=Path, help="for all files; a temporary one by default")
    parser.add_argument("--output", type=Path, required=True)
    return parser


def add_by_rows(
    arguments: argparse.Namespace, printed: str, measure: Callable[[Path, int, float], dict[str, Any]]
) -> None:
    """Add a result for each number of rows that has none: `measure(empty folder, rows, interval)`."""
    results = ResultRows(arguments.output, keys=("rows",), printed=("rows", printed))
    for rows in arguments.rows:
        if not results.has(rows=rows):
            # Spark's processes may still be removing files of their own.
            with tempfile.TemporaryDirectory(dir=arguments.folder, ignore_cleanup_errors=True) as name:
                results.add(measure(Path(name), rows, arguments.interval))
