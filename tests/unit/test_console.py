"""Progress on stderr."""

import os
import pty
import subprocess
import sys

import pytest

from rayrec.common import console
from rayrec.common.console import console_progress

_STEPS = """
from rayrec.common.console import console_progress
with console_progress() as progress:
    progress.stage("parse")
    progress.advance(1000)
    progress.stage("train", 50)
    progress.advance(20)
    progress.note("loss 0.5")
    progress.message("one [line]")
"""


def test_lines_where_stderr_is_no_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 4.0, 4.0, 20.0, 24.0])
    monkeypatch.setattr(console.time, "perf_counter", lambda: next(clock))
    with console_progress() as progress:
        progress.stage("parse")
        progress.advance(1_000)
        progress.stage("train", 50)
        progress.note("loss 0.5")
        progress.advance(20)
        progress.message("one [line]")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "parse ...",
        "parse: 4.0 s, 1,000, 250/s",
        "train ...",
        "train: 20 of 50, 1/s, 24 s left, loss 0.5",
        "one [line]",
        "train: 20.0 s, 20 of 50, 1/s, 30 s left",
    ]


def test_bars_in_a_terminal() -> None:
    master, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", _STEPS], stderr=terminal, env=environment, check=True)
    os.close(terminal)
    shown = os.read(master, 65_536).decode()
    os.close(master)
    assert done.returncode == 0
    assert all(text in shown for text in ("parse", "1,000", "train", "loss 0.5", "one [line]"))
