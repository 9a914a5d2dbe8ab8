"""The wheel in an environment of its own has all that the packages of the checkout have, and runs the demo."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import demo_output
from tests.end_to_end.conftest import REPOSITORY
from tests.environments import environment_of_a_user

pytestmark = pytest.mark.minutes
UNREACHABLE = re.compile(r"Failed to fetch|error sending request|Could not connect|dns error|timed out", re.IGNORECASE)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield an environment of the wheel and what it needs, as `make installed-wheel` makes it."""
    folder = tmp_path_factory.mktemp("wheel")
    variables = {"VENV": sys.prefix, "DIST": folder / "dist", "INTO": folder / "environment"}
    command = ["make", "installed-wheel", *(f"{name}={value}" for name, value in variables.items())]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode and UNREACHABLE.search(done.stderr):
        pytest.skip(f"packages cannot be reached: {done.stderr.splitlines()[-2]}")
    assert done.returncode == 0, done.stderr
    yield folder / "environment"
    shutil.rmtree(folder)  # gigabytes


def test_nothing_is_missing(installed: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (packages,) = installed.glob("lib/python*/site-packages")
    wanted = {
        file.relative_to(REPOSITORY)
        for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        for file in (REPOSITORY / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert {Path("rayrec/models/dlrm/README.md"), Path("serve/playground.html")} <= wanted
    assert {path for path in wanted if not (packages / path).is_file()} == set()


def test_the_demo_runs_anywhere(installed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [installed / "bin" / "rayrec", "demo"],
        cwd=tmp_path,
        env={**environment_of_a_user(), "COLUMNS": str(demo_output.COLUMNS)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (score,) = json.loads((tmp_path / "demo/result.json").read_text())["details"]["answer"]["predictions"]
    assert 0 < score < 1
    assert str(REPOSITORY) not in done.stderr
    # `python -m tests.demo_output` writes what the README shows.
    printed = demo_output.excerpt(done.stderr + done.stdout)
    assert demo_output.comparable(demo_output.shown_in_readme()) == demo_output.comparable(printed)
