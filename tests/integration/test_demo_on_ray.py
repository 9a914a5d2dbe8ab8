"""`rayrec demo --on ray`: all steps on a cluster of two nodes, compared with the same without it.

Whatever ends the demo, nothing of the cluster is left.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from jobs.command import Result

pytestmark = pytest.mark.minutes
MARK = "RAYREC_TEST_DEMO"
# A shell that starts the tests in the background has them, and all that they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """The environment of a user without a cluster; in the end no process that inherited it may be there."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {MARK: uuid4().hex}
    yield own
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended, or is another user's
            if process.environ().get(MARK) == own[MARK]:
                left.append(" ".join(process.cmdline()))
    assert not left


def _demo(folder: Path, environment: dict[str, str], *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "jobs.demo", "--on", "ray", "--output", str(folder), *options]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_cluster_computes_what_this_machine_computes(environment: dict[str, str], tmp_path: Path) -> None:
    demo = _demo(tmp_path / "demo", environment, "--rows", "4000", "--json")
    out, err = demo.communicate(timeout=1200)
    assert demo.returncode == 0, err
    details = json.loads(out)["details"]
    ran = {
        row["step"]: (row["engine"], row["reads"], row["nodes"])
        for row in details["steps"]
        if row["where"] == "cluster"
    }
    assert ran == {
        "preprocess": ("Spark on Ray", None, 2),
        "train": ("Ray Train", "Ray Data", 2),
        "train, 1 worker": ("Ray Train", "Ray Data", 2),
        "evaluate": ("Ray Data", None, 2),
        "export": ("its process", None, None),
        "predict": ("Ray Data", None, 2),
        "tune, 4 trials": ("Ray Train", "Ray Data", 2),
        "serve": ("Ray Serve", None, 1),
    }
    assert len(details["compared"]) == 5 and not any(row["differs"] for row in details["compared"])
    (score,) = details["answer"]["predictions"]
    assert 0 < score < 1
    assert (tmp_path / "demo/logs/head/raylet.out").exists() and (tmp_path / "demo/logs/nodes/0/raylet.out").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_cluster(number: signal.Signals, environment: dict[str, str], tmp_path: Path) -> None:
    demo = _demo(tmp_path / "demo", environment, "--rows", "2000")
    assert demo.stderr is not None
    for line in demo.stderr:
        if line.startswith("preprocess on the cluster"):
            break
    started = psutil.Process(demo.pid).children(recursive=True)
    assert any(process.name() == "raylet" for process in started)
    demo.send_signal(number)
    _, err = demo.communicate(timeout=300)
    _, alive = psutil.wait_procs(started, timeout=20)
    assert not alive
    assert demo.returncode == 130, err
    assert Result.load(tmp_path / "demo").status == "interrupted"
