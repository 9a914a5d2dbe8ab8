"""What every command leaves behind: `result.json` in its output folder, the same object that `--json` prints."""

from pathlib import Path
from typing import Any, Literal

from rayrec.common.files import write_atomically
from rayrec.config import Config
from rayrec.storage.location import Folder

RESULT_FILE = "result.json"


class Result(Config):
    """The outcome of one command.

    A job's `run` fills `command`, `output`, `rows`, `metrics` and `details`; status, time and error are the runner's.
    """

    command: str
    status: Literal["done", "failed", "interrupted"] = "done"
    seconds: float = 0.0
    """Wall-clock time of the command, without the start of the interpreter."""
    output: Folder | None = None
    """The folder (or file) that the command wrote; `result.json` is written into it where it is a folder."""
    rows: int | None = None
    """Rows that the command read or wrote, as its documentation says."""
    metrics: dict[str, dict[str, float | None]] = {}
    """By split, then by metric (`auc`, `log_loss`, ...); None where a metric is undefined."""
    details: dict[str, Any] = {}
    """What only this command reports; JSON values."""
    error: str | None = None
    """One line, where the status is not `done`."""

    def to_json(self) -> str:
        """Indented JSON; fields that do not apply (null, empty) are left out."""
        empty = {name for name in ("rows", "output", "error") if getattr(self, name) is None}
        empty |= {name for name in ("metrics", "details") if not getattr(self, name)}
        return self.model_dump_json(indent=2, exclude=empty)

    def save(self, folder: Path) -> None:
        """Write `result.json` into `folder`, atomically."""
        write_atomically(folder / RESULT_FILE, self.to_json() + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Result":
        """Read `folder/result.json`."""
        return cls.model_validate_json((folder / RESULT_FILE).read_bytes())
