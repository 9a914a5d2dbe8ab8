"""The command line as a user runs it, and one small pipeline that tests share."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.executable).with_name("rayrec")
RECIPE = "dlrm-criteo-debug"


@dataclass(frozen=True)
class Finished:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """What `--json` printed."""
        return json.loads(self.out)


def environment(ray: str) -> dict[str, str]:
    """The environment of a command that finds its Ray cluster at an address."""
    return {**os.environ, "PYTHONPATH": "", "RAY_ADDRESS": ray}


def run_rayrec(ray: str, *arguments: str | Path, folder: Path | None = None, timeout: float = 600) -> Finished:
    """Run `rayrec ARGUMENTS` in `folder`, on the Ray cluster at an address, and wait."""
    done = subprocess.run(
        [PROGRAM, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=environment(ray),
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def rayrec(ray_cluster: str) -> Callable[..., Finished]:
    """`rayrec(*arguments, folder=None)`."""
    return partial(run_rayrec, ray_cluster)


@dataclass(frozen=True)
class Pipeline:
    """Folders that the commands made, and the result that each printed."""

    folder: Path
    results: dict[str, dict[str, Any]]

    def __getattr__(self, name: str) -> Path:
        return self.folder / name


def run_pipeline(rayrec: Callable[..., Finished], folder: Path, commands: Sequence[Sequence[str]]) -> Pipeline:
    """Run the commands one after the other in `folder`; each must succeed."""
    results = {}
    for command in commands:
        done = rayrec(*command, "--json", folder=folder)
        assert done.code == 0, f"rayrec {' '.join(command)}:\n{done.err}"
        results[command[0]] = done.result
    return Pipeline(folder, results)


@pytest.fixture(scope="session")
def pipeline(rayrec: Callable[..., Finished], tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Generated data brought to a model folder: raw/, dataset/, run/, model/."""
    folder = tmp_path_factory.mktemp("pipeline")
    commands: list[list[str]] = [
        ["generate", "criteo", "--rows", "20000", "--output", "raw"],
        ["preprocess", RECIPE, "--input", "raw/criteo.tsv", "--output", "dataset"],
        ["train", RECIPE, "--data", "dataset", "--output", "run", "--workers", "2"],
        ["export", "run", "--output", "model"],
    ]
    return run_pipeline(rayrec, folder, commands)
