"""Shows the progress of a command by stage, and logs, on stderr."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from rayrec.common.progress import Progress

_PLAIN_SECONDS = 10.0
"""Least time between two lines about one stage if stderr is not a terminal."""


def log_to_stderr(debug: bool = False) -> None:
    """Send the logs of this process to stderr: warnings, and with `debug` also rayrec's own debug messages."""
    console = Console(stderr=True)
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=debug, show_time=False)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("rayrec", "jobs", "tune", "cluster", "serve"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


@contextmanager
def console_progress() -> Iterator[Progress]:
    """Progress on stderr: a live bar in a terminal, otherwise lines."""
    console = Console(stderr=True)
    if not console.is_terminal:
        plain = _PlainProgress()
        try:
            yield plain
        finally:
            plain.finish()
        return
    columns = (
        SpinnerColumn(finished_text="[green]ok[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[count]}"),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with RichProgress(*columns, console=console) as bars:
        live = _LiveProgress(bars)
        yield live
        live.finish()


class _LiveProgress(Progress):
    """Shows a bar for each stage; finished stages stay on the screen."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        self._task = self._bars.add_task(name, total=total, count="", note="")

    def advance(self, rows: int) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            count = _count(int(task.completed) + rows, task.total, task.elapsed or 0.0)
            self._bars.update(self._task, advance=rows, count=count)

    def note(self, text: str) -> None:
        if self._task is not None:
            self._bars.update(self._task, note=text)

    def message(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def finish(self) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            count = _count(int(task.completed), None, task.elapsed or 0.0) if task.completed else ""
            # A stage without counts or a known total ends as a full bar.
            done = task.completed or 1
            self._bars.update(self._task, total=done, completed=done, count=count)
            self._bars.stop_task(self._task)
            self._task = None


class _PlainProgress(Progress):
    """Prints lines for logs and pipes: the start of each stage, its state every few seconds, and its end."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._total: int | None = None
        self._done = 0
        self._note = ""
        self._started = self._printed = 0.0

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        self._name, self._total, self._done, self._note = name, total, 0, ""
        self._started = self._printed = time.perf_counter()
        self.message(f"{name} ...")

    def advance(self, rows: int) -> None:
        self._done += rows
        now = time.perf_counter()
        if now - self._printed >= _PLAIN_SECONDS:
            self._printed = now
            note = f", {self._note}" if self._note else ""
            self.message(f"{self._name}: {_count(self._done, self._total, now - self._started)}{note}")

    def note(self, text: str) -> None:
        self._note = text

    def message(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def finish(self) -> None:
        if self._name is not None:
            seconds = time.perf_counter() - self._started
            count = f", {_count(self._done, self._total, seconds)}" if self._done else ""
            self.message(f"{self._name}: {seconds:.1f} s{count}")
            self._name = None


def _count(done: int, total: float | None, seconds: float) -> str:
    """What is done, of how much, how fast, and the time left."""
    rate = done / seconds if seconds > 0 else 0.0
    text = f"{done:,}{f' of {total:,.0f}' if total else ''}, {rate:,.0f}/s"
    if total and rate > 0 and done < total:
        text += f", {(total - done) / rate:.0f} s left"
    return text
