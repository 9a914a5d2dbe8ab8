"""Shows the progress of a command by stage, and logs, on stderr."""

import logging
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta

from rich.columns import Columns
from rich.console import Console, RenderableType
from rich.logging import RichHandler
from rich.panel import Panel
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from rayrec.common.progress import NO_FACTS, Progress
from rayrec.common.text import format_number, printable

_CONSOLE = Console(stderr=True)
"""Shared, so that a log line moves the live display on instead of tearing it."""
_PLAIN_SECONDS, _PLAIN_FACTS = 10.0, 4
"""Least time between two lines about one stage if stderr is not a terminal, and the most facts in each."""
_PANEL_COLUMNS, _FACT_COLUMNS = 118, 36
"""Widest panel, in characters, and the width of a fact: two lie side by side in 80 columns, three in 120."""
_ECHO_COLUMNS = len("^C")
"""Columns right of a panel in which a terminal shows the keys of Ctrl-C; on a line of their own they would shift it."""


def log_to_stderr(debug: bool = False) -> None:
    """Send the logs of this process to stderr: warnings, and with `debug` also rayrec's own debug messages."""
    handler: logging.Handler
    if _CONSOLE.is_terminal:
        handler = RichHandler(console=_CONSOLE, show_path=debug, show_time=False)
        handler.setFormatter(_Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("rayrec", "jobs", "tune", "cluster", "serve"):
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.INFO)


class _Formatter(logging.Formatter):
    """Escapes what would control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


@contextmanager
def console_progress() -> Iterator[Progress]:
    """Show progress on stderr: live bars, and a panel of facts on the current stage, in a terminal; otherwise lines."""
    if not _CONSOLE.is_terminal:
        plain = _PlainProgress()
        try:
            yield plain
        finally:
            plain.finish()
        return
    with _Bars(_CONSOLE) as bars:
        live = _LiveProgress(bars)
        try:
            yield live
            live.finish()
        finally:
            bars.beneath = None


class _Bars(RichProgress):
    """A bar for each stage, and beneath them what is noted on the current one."""

    beneath: RenderableType | None = None

    def __init__(self, console: Console) -> None:
        super().__init__(
            SpinnerColumn(finished_text="[green]ok[/]"),
            TextColumn("{task.description}", markup=False),
            # Becomes narrower where the line is too long. Rich's own colours are red until a stage is done.
            BarColumn(bar_width=24, complete_style="cyan", finished_style="green", pulse_style="cyan"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[count]}", markup=False),
            console=console,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.beneath is not None:
            yield self.beneath


class _LiveProgress(Progress):
    """Shows a bar for each stage; finished stages stay on the screen, notes do not."""

    def __init__(self, bars: _Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        # For rich a task is done as soon as it has reached its total; a stage still saves or evaluates then.
        self._task = self._bars.add_task(printable(name), total=None if total is None else total + 0.25, count="")

    def advance(self, rows: int) -> None:
        if self._task is not None:
            task = self._bars.tasks[self._task]
            done, seconds = int(task.completed) + rows, task.elapsed or 0.0
            # A panel has the speed of the moment; a second one would only confuse.
            count = _count(done, task.total, seconds, has_rate=not isinstance(self._bars.beneath, Panel))
            self._bars.update(self._task, advance=rows, count=count)

    def note(self, text: str, facts: Mapping[str, str] = NO_FACTS) -> None:
        self._bars.beneath = _panel(text, facts, self._bars.console.width) if facts else _one_line(text)

    def message(self, text: str) -> None:
        self._bars.console.print(printable(text, keep="\n"), markup=False, highlight=False)

    def finish(self) -> None:
        self._bars.beneath = None
        if self._task is not None:
            task = self._bars.tasks[self._task]
            count = _count(int(task.completed), None, task.elapsed or 0.0) if task.completed else ""
            # A stage without counts or a known total ends as a full bar.
            done = task.completed or 1
            self._bars.update(self._task, total=done, completed=done, count=count)
            self._bars.stop_task(self._task)
            self._task = None


class _PlainProgress(Progress):
    """Prints lines for logs and pipes: one at the end of each stage, and its state every ten seconds until then."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._total: int | None = None
        self._done = 0
        self._note, self._facts = "", NO_FACTS
        self._started = self._printed = 0.0
        self._reminder: threading.Timer | None = None

    def stage(self, name: str, total: int | None = None) -> None:
        self.finish()
        self._name, self._total, self._done, self._note, self._facts = name, total, 0, "", NO_FACTS
        self._started = self._printed = time.perf_counter()
        # Says what a log waits for, if the stage is long and counts nothing.
        self._reminder = threading.Timer(_PLAIN_SECONDS, self._say)
        self._reminder.daemon = True
        self._reminder.start()

    def advance(self, rows: int) -> None:
        self._done += rows
        if time.perf_counter() - self._printed >= _PLAIN_SECONDS:
            self._say()

    def _say(self) -> None:
        """Print the state of the stage."""
        self._printed = time.perf_counter()
        seconds = self._printed - self._started
        if self._facts:
            doing = [self._note] if self._note != self._name else []
            facts = [f"{name} {value}" for name, value in self._facts.items()][: 1 if doing else _PLAIN_FACTS]
            shown = [*doing, *facts, *_time_left(self._done, self._total, seconds)]
        else:
            count = [_count(self._done, self._total, seconds)] if self._done else []
            shown = [*count, *([self._note] if self._note else [])]
        self.message(f"{self._name}: {', '.join(shown)}" if shown else f"{self._name} ...")

    def note(self, text: str, facts: Mapping[str, str] = NO_FACTS) -> None:
        self._note, self._facts = text, facts

    def message(self, text: str) -> None:
        with suppress(OSError):  # the work goes on where nobody can read of it
            print(printable(text, keep="\n"), file=sys.stderr, flush=True)

    def finish(self) -> None:
        if self._name is not None and self._reminder is not None:
            self._reminder.cancel()
            seconds = time.perf_counter() - self._started
            count = f", {_count(self._done, self._total, seconds)}" if self._done else ""
            self.message(f"{self._name}: {seconds:.1f} s{count}")
            self._name = None


def _count(done: int, total: float | None, seconds: float, *, has_rate: bool = True) -> str:
    """Return what is done, of how much, how fast, and the time left."""
    rate = done / seconds if seconds > 0 else 0.0
    count = f"{done:,}{f' of {total:,.0f}' if total and done < int(total) else ''}"
    speed = f" at {format_number(rate)}/s" if has_rate else ""
    return ", ".join([f"{count}{speed}", *_time_left(done, total, seconds)])


def _time_left(done: int, total: float | None, seconds: float) -> list[str]:
    """Return the time left at the speed so far, such as `0:03:20 left`; nothing if it is not known, or all is done."""
    if not total or not done or not seconds or done + 1 > total:
        return []
    return [f"{timedelta(seconds=round((total - done) * seconds / done))} left"]


def _panel(title: str, facts: Mapping[str, str], width: int) -> Panel:
    """Return the facts side by side, as many as there is room for, under what is done at the moment."""
    names = max(map(len, facts)) + 1
    cells = [
        Text.assemble((f"{name:<{names}}", "dim"), value, no_wrap=True, overflow="ellipsis")
        for name, value in facts.items()
    ]
    columns = Columns(cells, width=_FACT_COLUMNS, padding=(0, 1))
    return Panel(columns, title=_one_line(title), title_align="left", width=min(width - _ECHO_COLUMNS, _PANEL_COLUMNS))


def _one_line(text: str) -> Text:
    return Text(printable(text), style="dim", no_wrap=True, overflow="ellipsis")
