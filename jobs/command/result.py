"""What every command leaves behind: `result.json` in its output folder, which `--json` prints too."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rayrec.common.files import write_atomically
from rayrec.config import Config
from rayrec.config.execution import Execution
from rayrec.storage.location import Folder, location

RESULT_FILE = "result.json"


class Result(Config):
    """The outcome of one command.

    A command's `run` fills `command`, `output`, `rows`, `metrics` and `details`; the runner adds the rest.
    """

    command: str
    status: Literal["done", "failed", "interrupted"] = "done"
    seconds: float = 0.0
    """Wall-clock time of the command, without the start of the interpreter."""
    output: Folder | None = None
    """The folder (or file) that the command wrote; `result.json` is written into it if it is a folder."""
    rows: int | None = None
    """Rows that the command read or wrote, as its documentation says."""
    metrics: dict[str, dict[str, float | None]] = {}
    """Metrics by split (or `progressive`: of rows trained on, each measured before), then by name (`auc`, `log_loss`,
    ...); None if a metric is undefined."""
    details: dict[str, Any] = {}
    """JSON values that only this command reports; texts under `warnings` and `notes` are shown whatever the command."""
    execution: Execution | None = None
    """How the work was done; of `run`, how the model was trained."""
    error: str | None = None
    """One line, unless the status is `done`."""

    def to_json(self) -> str:
        """Indented JSON; fields that do not apply (null, empty) are left out."""
        empty = {name for name in ("rows", "output", "execution", "error") if getattr(self, name) is None}
        empty |= {name for name in ("metrics", "details") if not getattr(self, name)}
        return self.model_dump_json(indent=2, exclude=empty)

    def save(self, folder: Path) -> None:
        """Write `result.json` into `folder`, atomically."""
        write_atomically(folder / RESULT_FILE, self.to_json() + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Result":
        """Read `folder/result.json`."""
        return cls.model_validate_json((folder / RESULT_FILE).read_bytes())


def describe_result(result: Result) -> str:
    """The outcome in a line, and a line for each evaluated split, warning and note."""
    rows = f", {result.rows:,} rows" if result.rows is not None else ""
    if (speed := result.details.get("rows_per_second")) is not None:
        rows += f" at {speed:,.0f} rows/s"
    output = f" -> {location(result.output)}" if result.output is not None else ""
    lines = [f"{result.command}: {result.status} in {result.seconds:.1f} s{rows}{output}"]
    for split, metrics in result.metrics.items():
        values = "  ".join(f"{name} {'-' if value is None else f'{value:.6g}'}" for name, value in metrics.items())
        lines.append(f"  {split}: {values}")
    for rule, dropped in result.details.get("dropped", {}).items():
        users = f"{dropped['users']:,} of {dropped['of_users']:,} users, " if dropped["users"] else ""
        items = f"{dropped['items']:,} items, " if dropped["items"] else ""
        lines.append(f"  dropped: {rule}: {users}{items}{dropped['rows']:,} rows")
    for kind in ("warning", "note"):
        lines += [f"  {kind}: {text}" for text in result.details.get(f"{kind}s", ())]
    return "\n".join(lines)


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header of the keys of the first row that has each, then a line a row; numbers to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns] + [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    numeric = [all(not isinstance(row.get(column), str) for row in rows) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in cells
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
