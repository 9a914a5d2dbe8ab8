"""Commands in process groups of their own, which SIGKILL ends whole: a command and all that it started."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.environments import environment_without_cluster

_LOOK_SECONDS = 0.01


@contextmanager
def started(words: list[object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m` with these words, writing what it says to `log`; what still runs after the block is killed.

    The command starts a Ray of its own where it needs one.
    """
    environment = environment_without_cluster()
    command = [sys.executable, "-m", *map(str, words)]
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):  # it ended, and nothing that it started is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def attempt(words: list[object], log: Path, limit: float | None, after: str = "") -> str | None:
    """Run a command for at most `limit` seconds after it said `after`: what it had said then, None if it finished.

    Raises RuntimeError, with what it said, if it failed.
    """
    with started(words, log) as process:
        while after not in log.read_text() and process.poll() is None:
            time.sleep(_LOOK_SECONDS)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
    said = log.read_text()
    if code:
        raise RuntimeError(f"exit code {code}:\n{said}")
    return said if code is None else None


def moments(words: list[object], log: Path, phrases: Collection[str]) -> dict[str, float]:
    """Run a command to its end; the seconds from its start until it said each phrase, and under "" until its end.

    Raises RuntimeError, with what it said, if it failed.
    """
    seen: dict[str, float] = {}
    began = time.perf_counter()
    with started(words, log) as process:
        while process.poll() is None:
            said = log.read_text()
            seen |= {phrase: time.perf_counter() - began for phrase in phrases if phrase in said and phrase not in seen}
            time.sleep(_LOOK_SECONDS)
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}:\n{log.read_text()}")
    return {**seen, "": time.perf_counter() - began}
