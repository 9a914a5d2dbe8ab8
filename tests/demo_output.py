"""The README's excerpt of what `rayrec demo` prints.

`python -m tests.demo_output` runs the demo, which takes half a minute, and writes the excerpt.
tests/end_to_end/test_wheel.py runs the demo too and compares the excerpt with what it prints.
"""

import re
import subprocess
import sys
import tempfile

from rayrec.common.text import format_number
from tests.environments import environment_of_a_user
from tests.pages import REPOSITORY

DOCUMENT = REPOSITORY / "README.md"
_BEGIN, _END = "<!-- demo: written by tests/demo_output.py -->", "<!-- end of demo -->"
_SHOWN = ("rayrec preprocess", "rayrec train", "curl")
"""Steps that the excerpt has, by the beginning of their commands."""
COLUMNS = 80
"""Width of the terminal for which the demo prints."""
_LONGEST = 90
"""Characters of a line that the README shows."""
_LONG_NUMBER = re.compile(r"\b\d+\.\d{7,}\b")
_VARYING = re.compile(r"[\d.,]+(?= s\b| rows/s\b)|(?<=127\.0\.0\.1:)\d+")
"""Times, speeds and ports: what differs from run to run."""


def excerpt(printed: str) -> str:
    """Return a few steps of the demo, each as its command and its outcome, and the demo's last lines."""
    _, *steps = printed.strip().split("\n$ ")
    *steps, last = *steps[:-1], *steps[-1].split("\n\n", 1)
    shown: list[str] = []
    found = 0
    for step in steps:
        command, *lines = step.rstrip().splitlines()
        if command.startswith(_SHOWN):
            # Lines on progress come before the outcome, which says "done"; curl prints its answer alone.
            done = next((place for place, line in enumerate(lines) if ": done in " in line), 0)
            shown += [f"$ {command}", *lines[done:]]
            found += 1
    assert found == len(_SHOWN), f"the demo no longer prints all of the commands {_SHOWN}"
    return "\n".join(map(_short, [*shown, "", *last.splitlines()]))


def _short(line: str) -> str:
    line = _LONG_NUMBER.sub(lambda number: format_number(float(number[0])), line)
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


def comparable(text: str) -> str:
    """Return an excerpt without times, speeds and ports. All else, metrics too, is equal from run to run."""
    return _VARYING.sub("#", text)


def shown_in_readme() -> str:
    """Return the excerpt that the README has."""
    return DOCUMENT.read_text().split(_BEGIN)[1].split(_END)[0].strip().removeprefix("```text\n").removesuffix("\n```")


def document(printed: str) -> str:
    """Return the README with the excerpt of what a demo printed."""
    before, rest = DOCUMENT.read_text().split(_BEGIN)
    return f"{before}{_BEGIN}\n\n```text\n{excerpt(printed)}\n```\n\n{_END}{rest.split(_END)[1]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        variables = {**environment_of_a_user(), "PYTHONPATH": str(REPOSITORY), "COLUMNS": str(COLUMNS)}
        done = subprocess.run(
            [sys.executable, "-m", "rayrec.cli", "demo"],
            cwd=folder, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr)
    DOCUMENT.write_text(document(done.stderr + done.stdout))
