"""`rayrec` commands as forks of a process that has imported what they import.

Each command is a process of its own, as a user's is, without the seconds that its imports take.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = (
    "pyarrow.dataset", "pyspark.sql", "ray.data", "ray.job_submission", "ray.serve", "ray.train.torch", "raydp",
    "rayrec.cli.main", "torchrec",
)  # fmt: skip


class Forks:
    """The process that forks; it answers each line of JSON with the exit code of a command."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, output: tuple[Path, Path]
    ) -> int:
        """Run `rayrec ARGUMENTS` in a folder, with stdout and stderr in two files; returns the exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        call = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "folder": str(folder),
            "output": [str(path) for path in output],
        }
        print(json.dumps(call), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def main() -> None:
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    for module in MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(call: dict[str, Any]) -> None:
    """Make this process the command; does not return."""
    from rayrec.cli.main import main as rayrec

    signal.alarm(600)  # no command takes as long
    os.chdir(call["folder"])
    os.environ.clear()
    os.environ.update(call["environment"])
    streams = [os.open(os.devnull, os.O_RDONLY), *(os.open(path, os.O_WRONLY) for path in call["output"])]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = ["rayrec", *call["arguments"]]
    rayrec()


if __name__ == "__main__":
    main()
