"""Commands in process groups of their own, which SIGKILL ends whole: a command and all that it started."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def started(words: list[object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m` with these words, writing what it says to `log`; what still runs after the block is killed.

    The command starts a Ray of its own where it needs one.
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", *map(str, words)]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it ended, and nothing that it started is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def attempt(words: list[object], log: Path, limit: float | None) -> str | None:
    """Run a command for at most `limit` seconds: what it had said if it was killed, None if it finished.

    Raises RuntimeError, with what it said, if it failed.
    """
    with started(words, log) as process:
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
    said = log.read_text()
    if code:
        raise RuntimeError(f"exit code {code}:\n{said}")
    return said if code is None else None
