"""Commands that wait at a certain moment, so that a test can kill them there.

`python tests/holding.py FOLDER MODULE ARGUMENTS...` runs a module as `python -m MODULE` does. Its process and the Ray
workers of its job wait as soon as they open, make or rename a path that matches a pattern. They go on only if
the test lets them, so that a kill cannot come too late.
"""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
VARIABLE = "RAYREC_TEST_HOLD"
EVENTS = {"open", "os.mkdir", "os.rename"}
"""What Python tells its audit hooks (https://docs.python.org/3/library/audit_events.html) and a hold listens to."""


@dataclass(frozen=True)
class Hold:
    """A moment at which commands wait: `folder` is made for what they and the test tell each other."""

    folder: Path
    pattern: str
    """Regular expression that is searched in paths. A process waits once for each text that matches."""

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "pattern").write_text(self.pattern)

    @contextmanager
    def held(
        self, module: str, *arguments: str | Path, environment: Mapping[str, str], count: int = 1
    ) -> Iterator["Held"]:
        """`python -m MODULE ARGUMENTS`, in a process group of its own, once `count` processes wait.

        The group is killed at the end of the block.
        """
        command = [sys.executable, __file__, str(self.folder), module, *map(str, arguments)]
        log = self.folder.with_suffix(".log")
        with log.open("w") as out:
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
        held = Held(process, log)
        try:
            held.until(lambda: len(self.waiting()) >= count)
            yield held
        finally:
            held.kill()

    def waiting(self) -> dict[int, str]:
        """Return what has matched, by the id of the process that waits; who came first stands first."""
        files = sorted(self.folder.glob("*.waits"), key=lambda path: path.stat().st_mtime_ns)
        found = {int(file.stem): file.read_text() for file in files}
        return {process: text for process, text in found.items() if text and psutil.pid_exists(process)}

    def release(self, process: int) -> None:
        """Let a process go on to the next match."""
        (self.folder / f"{process}.waits").unlink()

    def end(self) -> None:
        """Let all processes go on, also those that come later."""
        (self.folder / "pattern").unlink()
        self.folder.rename(self.folder.with_name(f"{self.folder.name}-ended"))


@dataclass(frozen=True)
class Held:
    """A command of which processes wait."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def until(self, condition: Callable[[], Any], seconds: float = 600) -> None:
        """Wait for a condition while the command runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def wait(self, seconds: float = 600) -> None:
        """Wait for the end of the command, which must succeed."""
        assert self.process.wait(seconds) == 0, self.log.read_text()

    def kill(self) -> None:
        """SIGKILL for the command's process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_module(module: str, *arguments: str | Path, environment: Mapping[str, str]) -> str:
    """`python -m MODULE ARGUMENTS`, which must succeed; what it printed."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def install() -> None:
    """Make this process wait at the hold that its environment names."""
    folder = Path(os.environ[VARIABLE])
    try:
        pattern = re.compile((folder / "pattern").read_text())
    except FileNotFoundError:
        return
    file = folder / f"{os.getpid()}.waits"
    passed: set[str] = set()
    inside = threading.local()

    def wait(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in EVENTS or getattr(inside, "is_set", False):
            return
        match = next(filter(None, (pattern.search(str(path)) for path in arguments[:2])), None)
        if match is None or match.group() in passed:
            return
        passed.add(match.group())
        inside.is_set = True
        try:
            with suppress(FileNotFoundError):  # the hold has ended
                file.write_text(match.group())
            while file.exists():
                time.sleep(0.05)
        finally:
            inside.is_set = False

    sys.addaudithook(wait)


def main() -> None:
    folder, module, *arguments = sys.argv[1:]
    os.environ[VARIABLE] = folder
    # Ray's way of telling a driver the runtime environment of its job, which the driver's own is added to.
    variables = {VARIABLE: folder, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])}
    environment = {"env_vars": variables, "worker_process_setup_hook": "tests.holding.install"}
    os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = json.dumps({"runtime_env": environment})
    install()
    sys.path[0] = str(REPOSITORY)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
