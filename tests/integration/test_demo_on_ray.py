"""`rayrec demo --on ray`: all steps on a cluster of two nodes, compared with the same without it.

Whatever ends the demo, nothing of the cluster is left.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from jobs.command import Result
from rayrec.store.artifact import id_of

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


def _files(folder: Path, *, without: Collection[str] = ()) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in without]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_cluster_computes_what_this_machine_computes(environment: dict[str, str], tmp_path: Path) -> None:
    there, alone = tmp_path / "demo", tmp_path / "alone"
    demo = _demo(there, environment, "--rows", "4000", "--json")
    out, err = demo.communicate(timeout=1200)
    assert demo.returncode == 0, err
    details = json.loads(out)["details"]
    assert {row["step"]: (row["engine"], row.get("reads"), row.get("nodes")) for row in details["steps"]} == {
        "preprocess": ("Spark on Ray", None, 2),
        "train": ("Ray Train", "Ray Data", 2),
        "evaluate": ("Ray Data", None, 2),
        "export": ("its process", None, None),
        "predict": ("Ray Data", None, 2),
        "tune": ("Ray Tune", None, 2),
        "serve": ("Ray Serve", None, None),
    }
    assert len(list(there.glob("sweep/trials/*/run/metrics.json"))) == 4
    (score,) = details["answer"]["predictions"]
    assert 0 < score < 1
    assert (there / "logs/head/raylet.out").exists() and (there / "logs/nodes/0/raylet.out").exists()
    # The same on this machine without the cluster.
    recipe, data, run, model = "dlrm-criteo-debug", alone / "dataset", alone / "run", alone / "model"
    rows = ["--set", "train.sharding.default=row_wise"]
    results = {}
    for command, *arguments in (
        ["preprocess", recipe, "--input", there / "raw/criteo.tsv", "--output", data],
        ["train", recipe, "--data", data, "--output", run, "--workers", 2, *rows],
        ["evaluate", run, "--data", data, "--split", "test"],
        ["export", run, "--output", model],
        ["predict", model, "--input", data, "--split", "test", "--output", alone / "scored"],
    ):
        words = [sys.executable, "-m", f"jobs.{command}", *map(str, arguments), "--json"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=600, check=True)
        results[command] = json.loads(done.stdout)
    # Datasets are equal but for the record of how they were made, weights to the bit.
    assert id_of(data) == id_of(there / "dataset")
    made = {"manifest.json", "result.json"}
    assert _files(data, without=made) == _files(there / "dataset", without=made)
    assert _files(model / "weights") == _files(there / "model/weights") != {}
    # Metrics are sums in another order, and a row may be scored in another batch.
    evaluated = Result.load(there)
    assert results["evaluate"]["metrics"]["test"] == pytest.approx(evaluated.metrics["test"], rel=1e-9)
    own, other = (pq.read_table(folder / "scored/scores", columns=["row", "score"]) for folder in (alone, there))
    assert own["row"].equals(other["row"])
    np.testing.assert_allclose(own["score"].to_numpy(), other["score"].to_numpy(), rtol=0, atol=1e-6)


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
