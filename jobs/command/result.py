"""Result of every command: `result.json` in its output folder, which `--json` prints too."""

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from rayrec.common.text import format_number, printable
from rayrec.config import Config
from rayrec.config.evaluate import shown_metrics
from rayrec.config.execution import Execution
from rayrec.store.files import write_atomically
from rayrec.store.paths import Folder

RESULT_FILE = "result.json"
_COUNTS = {"rows", "positives", "groups"}
_LEAST_TEXT, _LEAST_BESIDE, _LONGEST_WORD = 12, 40, 24
"""Columns that a text needs at least, a long one if it stands beside the others, not below them, and the longest word
that is not broken."""
_INDENT = "    "


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
    id: str | None = None
    """The id of the output, if it is an artifact (`rayrec.store.artifact`)."""
    rows: int | None = None
    """Rows that the command read or wrote, as its documentation says."""
    metrics: dict[str, dict[str, float | None]] = {}
    """Metrics by split (or `progressive`: of rows trained on, each measured before), then by name (`auc`, `log_loss`,
    ...); None if a metric is undefined."""
    baselines: dict[str, dict[str, dict[str, float]]] = {}
    """Metrics of simpler models by split, model (`base rate`, `popularity`, those of `evaluate.baselines`) and name."""
    details: dict[str, Any] = {}
    """JSON values that only this command reports. Texts under `warnings` and `notes` are shown whatever the command;
    `drawn_negatives`, of users and items, says that scores are no calibrated probabilities."""
    execution: Execution | None = None
    """How the work was done; of `run`, how the model was trained."""
    error: str | None = None
    """One line, unless the status is `done`."""

    def to_json(self) -> str:
        """Return indented JSON; fields that do not apply (null, empty) are left out."""
        empty = {name for name in ("rows", "output", "id", "execution", "error") if getattr(self, name) is None}
        empty |= {name for name in ("metrics", "baselines", "details") if not getattr(self, name)}
        return self.model_dump_json(indent=2, exclude=empty)

    def save(self, folder: Path) -> None:
        """Write `result.json` into `folder`, atomically."""
        write_atomically(folder / RESULT_FILE, self.to_json() + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Result":
        """Read `folder/result.json`."""
        return cls.model_validate_json((folder / RESULT_FILE).read_bytes())


def describe_outcome(result: Result) -> str:
    """Return what was done in a line, without metrics."""
    rows = f", {result.rows:,} rows" if result.rows is not None else ""
    if (speed := result.details.get("rows_per_second")) is not None:
        rows += f" at {format_number(speed)} rows/s"
    output = f" -> {printable(str(result.output))}" if result.output is not None else ""
    return f"{result.command}: {result.status} in {result.seconds:.1f} s{rows}{output}"


def describe_result(result: Result) -> str:
    """Return the outcome in a line, then each split with its metrics, and a line for each warning and note."""
    lines = [describe_outcome(result)]
    for split, metrics in result.metrics.items():
        shown = shown_metrics(metrics, drawn_negatives=result.details.get("drawn_negatives", False))
        text = ", ".join(describe_metrics(shown, result.baselines.get(split, {})))
        lines += textwrap.wrap(
            f"{split}: {text}", terminal_width(), initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )
    for rule, dropped in result.details.get("dropped", {}).items():
        users = f"{dropped['users']:,} of {dropped['of_users']:,} users, " if dropped["users"] else ""
        items = f"{dropped['items']:,} items, " if dropped["items"] else ""
        lines.append(f"  dropped: {rule}: {users}{items}{dropped['rows']:,} rows")
    for lookup, counts in result.details.get("found_keys", {}).items():
        share = counts["found"] / counts["rows"] if counts["rows"] else 0.0
        what = "earlier events" if counts.get("of_past") else "keys"
        lines.append(f"  {what} found in {lookup}: {share:.2%} of {counts['rows']:,} rows")
    for kind in ("warning", "note"):
        lines += [f"  {kind}: {printable(text)}" for text in result.details.get(f"{kind}s", ())]
    return "\n".join(lines)


def describe_metrics(
    metrics: Mapping[str, float | None], baselines: Mapping[str, Mapping[str, float]]
) -> Iterator[str]:
    """Yield each metric of a split, with those of simpler models in brackets: `auc 0.759 (base rate 0.5)`."""
    for name, value in metrics.items():
        if name in _COUNTS:
            text = "-" if value is None else f"{value:,.0f}"
        else:
            text = "-" if value is None else format_number(value)
        beside = [f"{model} {format_number(found[name])}" for model, found in baselines.items() if name in found]
        yield f"{name} {text}" + (f" ({', '.join(beside)})" if beside else "")


def terminal_width() -> int:
    """Return the columns for what is printed: $COLUMNS, else those of the terminal, else 80."""
    return shutil.get_terminal_size((80, 24)).columns


def text_table(rows: Sequence[Mapping[str, Any]], *, below: str | None = None, width: int | None = None) -> str:
    """Return a header of the keys of the first row that has each, then the rows; numbers to the right.

    Nothing is cut to fit `width`, by default the terminal's. Long texts are wrapped in their column, and those of the
    column `below` under their row, if there is little room for them beside it. If the numbers alone are too wide, the
    columns follow in a further table.
    """
    width = terminal_width() if width is None else width
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = {column: [printable(column), *(_cell(row.get(column)) for row in rows)] for column in columns}
    texts = {column for column in columns if any(isinstance(row.get(column), str) for row in rows)}
    left = {column for column in texts if not all(re.fullmatch(r"[-\d.,%]*", text) for text in cells[column][1:])}
    # No column becomes narrower than its numbers, the words of its header, and short words or a few words of a text.
    least = {}
    for column in columns:
        found = cells[column][1:]
        longest = _longest(found)
        if column in texts:
            longest = max(min(longest, _LEAST_TEXT), min(_longest(w for t in found for w in t.split()), _LONGEST_WORD))
        least[column] = max(longest, _longest(column.split()))
    least = {column: min(size, width) for column, size in least.items()}
    if below in columns and sum(least.values()) - least[below] + 2 * len(columns) + _LEAST_BESIDE > width:
        columns.remove(below)
    else:
        below = None
    parts: list[list[str]] = [[]]
    for column in columns:
        if parts[-1] and sum(least[c] + 2 for c in parts[-1]) + least[column] > width:
            parts.append([columns[0]] if columns[0] in texts and least[columns[0]] < width / 2 else [])
        parts[-1].append(column)
    return "\n\n".join(
        _part(cells, part, left, least, width, below if not number else None) for number, part in enumerate(parts)
    )


def _part(
    cells: Mapping[str, Sequence[str]],
    columns: Sequence[str],
    left: Collection[str],
    least: Mapping[str, int],
    width: int,
    below: str | None,
) -> str:
    """Return one table of some columns, whose least widths fit."""
    widths = {column: _longest(cells[column]) for column in columns}
    room = width - 2 * (len(columns) - 1)
    while sum(widths.values()) > room:
        # Headers give way first, as they wrap between words, then the widest text.
        narrower = [column for column in columns if widths[column] > least[column]]
        if not narrower:
            break
        widest = max(narrower, key=lambda column: (column not in left, widths[column]))
        widths[widest] -= 1
    lines = []
    for number in range(len(next(iter(cells.values()), ()))):
        wrapped = [
            textwrap.wrap(cells[column][number], widths[column], break_on_hyphens=False) or [""] for column in columns
        ]
        for row in zip_longest(*wrapped, fillvalue=""):
            aligned = [
                text.ljust(widths[column]) if column in left else text.rjust(widths[column])
                for column, text in zip(columns, row, strict=True)
            ]
            lines.append("  ".join(aligned).rstrip())
        if below is not None and number:
            lines += textwrap.wrap(cells[below][number], width, initial_indent=_INDENT, subsequent_indent=_INDENT)
    return "\n".join(lines)


def _longest(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return format_number(value)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else printable(str(value))
