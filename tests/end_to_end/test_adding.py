"""The data set and the model of docs/adding.md, built as the page says and taken the whole way by its commands."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.end_to_end.conftest import REPOSITORY

RAYREC = (sys.executable, "-m", "rayrec.cli")
PAGE = (REPOSITORY / "docs" / "adding.md").read_text()
BLOCK = re.compile(r"^(?:`(?P<name>[^`\n]+)`|The commands):\n\n```\w*\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {match["name"]: match["content"] for match in BLOCK.finditer(PAGE)}
pytestmark = pytest.mark.minutes


def install(folder: Path) -> None:
    """Write the files of the page, and what `pip install` would add of their entry points."""
    for name, content in BLOCKS.items():
        if name is not None:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
    project = tomllib.loads(BLOCKS["pyproject.toml"])
    for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        (folder / package / "__init__.py").touch()
    about = project["project"]
    info = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
    groups = about["entry-points"].items()
    lines = (line for group, points in groups for line in (f"[{group}]", *(f"{k} = {v}" for k, v in points.items())))
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the page's files."""
    folder = tmp_path_factory.mktemp("plugins")
    install(folder)
    return folder


@pytest.fixture(scope="module")
def environment(plugins: Path, ray_cluster: str) -> dict[str, str]:
    """The environment of commands that know the plug-ins; Ray's workers import from the folder that they run in."""
    path = os.pathsep.join([str(REPOSITORY), str(plugins)])
    return {**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": ray_cluster}


@pytest.fixture(scope="module")
def results(plugins: Path, environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What each command of the page printed: those of the cluster's and, from `evaluate` on, of this machine alone."""
    printed, own = {}, environment
    for line in BLOCKS[None].splitlines():
        program, *arguments = line.split()
        if arguments[0] == "evaluate":
            own = {**environment, "RAY_ADDRESS": "local"}
        command = [sys.executable, *arguments] if program == "python" else [*RAYREC, *arguments, "--json"]
        done = subprocess.run(command, cwd=plugins, env=own, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, f"{line}:\n{done.stderr}"
        if program == "rayrec":
            printed[arguments[0]] = json.loads(done.stdout)
    return printed


def test_raw_file_to_scores(plugins: Path, results: dict[str, dict[str, Any]]) -> None:
    assert list(results) == ["preprocess", "train", "evaluate", "export", "predict"]
    assert results["preprocess"]["rows"] == results["predict"]["rows"] == 5_000
    # The best ranking of the made-up visits has an AUC of about 0.81.
    assert 0.77 < results["evaluate"]["metrics"]["test"]["auc"] < 0.9
    scores = pq.read_table(plugins / "scores" / "scores")["score"].to_numpy()
    assert len(scores) == 5_000 and ((scores > 0) & (scores < 1)).all()


def test_score_in_python(plugins: Path, environment: dict[str, str], results: dict[str, dict[str, Any]]) -> None:
    done = subprocess.run(
        [sys.executable, "score.py"], cwd=plugins, env=environment, capture_output=True, text=True, check=True
    )
    laptop, phone = (float(line.split()[1]) for line in done.stdout.splitlines())
    assert laptop > 1.5 * phone


def test_kinds_are_known_where_recipes_are_checked(plugins: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [*RAYREC, "recipes", "fm-shop"], cwd=plugins, env=environment, capture_output=True, text=True, check=True
    )
    assert "kind: shop" in done.stdout and "kind: fm" in done.stdout
    assert "kind: rows" in done.stdout, "the preprocessing of a source of examples"
