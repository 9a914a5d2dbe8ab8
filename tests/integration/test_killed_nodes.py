"""Clusters of Ray nodes on this machine, one of which is killed with all that runs on it: preprocessing, a sweep and
serving end as if nothing had happened. Training: test_training_survives.py."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

import rayrec
from benchmarks.http_load import at_rate, json_post, summary
from cluster.java import provide_java
from cluster.local_cluster import kill_node, ray_head, ray_nodes
from jobs.benchmark_serve import TimedAnswer
from rayrec.common.machine import free_port
from rayrec.inference.predictor import load_model
from rayrec.preprocessing.engine import EmbeddedEngine
from rayrec.recipes import dump_recipe, load_recipe
from rayrec.sources.registry import preprocessing
from rayrec.store.artifact import MANIFEST_FILE, id_of
from rayrec.training.run.folder import RunFolder, checkpoint_name
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.environments import environment_of_open_cluster
from tests.holding import Hold
from tests.model_folders import make_model_folder, make_raw_rows
from tests.ray_nodes import node_of, runs_on
from tests.training_runs import Case, recipe, run_cases

RATE, SECONDS = 20, 40
"""Of the requests: how many a second, and for how long."""
# The heads have no CPUs: the commands belong to them, what they start runs on the nodes.


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    """Of a Ray that is not that of other tests."""
    provide_java()
    return environment_of_open_cluster()


def _until(condition: Callable[[], Any], process: "subprocess.Popen[bytes]", log: Path, seconds: float = 600) -> Any:
    """What `condition` gives once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found


def _kill_one_with(title: str, nodes: Sequence[int]) -> int:
    """Kill a node that runs such a process; returns its place in `nodes`."""
    place = next(i for i, node in enumerate(nodes) if runs_on(node, title))
    kill_node(nodes[place])
    return place


@pytest.mark.minutes
def test_preprocessing(environment: dict[str, str], tmp_path: Path) -> None:
    """A node with a Spark executor is killed while rows are parsed; in another run, when a shuffle is half read."""
    rayrec.generate("criteo", 60_000, tmp_path / "raw")
    name, memory, raw = "dlrm-criteo-debug", "preprocess.spark.executor_memory=1g", str(tmp_path / "raw" / "criteo.tsv")

    def arguments(output: str) -> list[str]:
        return [name, "--input", raw, "--output", str(tmp_path / output), "--set", memory]

    # By threads, whose files are those of Spark.
    preprocessing(load_recipe(name, [memory]), {None: [raw]}, tmp_path / "undisturbed").run(EmbeddedEngine(2))
    with ExitStack() as stack:
        head = stack.enter_context(ray_head(environment, num_cpus=0))
        attached = {**environment, "RAY_ADDRESS": head.address}
        nodes = stack.enter_context(ray_nodes(head, environment, 2))
        for output, sign in {"parsing": ".scratch/parse/rows/*.parquet", "writing": "train/*.parquet"}.items():
            nodes += stack.enter_context(ray_nodes(head, environment, 2 - len(nodes)))
            # The command cannot end before the kill.
            hold = Hold(tmp_path / f"hold-{output}", rf"\.{output}\.unfinished-[^/]+/\.manifest\.json\.")
            with hold.held("jobs.preprocess", *arguments(output), environment=attached, count=0) as held:
                held.until(lambda: any(tmp_path.glob(f".{output}.unfinished-*/{sign}")))  # noqa: B023
                # A worker of Ray in Java is an executor.
                nodes.pop(_kill_one_with("DefaultWorker", nodes))
                assert not (tmp_path / output).exists()
                hold.end()
                held.wait()
            assert _contents(tmp_path / output) == _contents(tmp_path / "undisturbed")


def _contents(dataset: Path) -> dict[str, bytes | str | None]:
    """Every file of a dataset, by its path, and its id in place of the manifest, which says where it was made."""
    files = [path for path in dataset.rglob("*") if path.is_file() and path.name not in {"result.json", MANIFEST_FILE}]
    return {MANIFEST_FILE: id_of(dataset), **{str(path.relative_to(dataset)): path.read_bytes() for path in files}}


def test_sweep(environment: dict[str, str], tmp_path: Path) -> None:
    """A grid of three trials, two at once; while one writes a checkpoint, its node is killed."""
    rows, batch, epochs, values = 6_400, 64, 2, [0.1, 0.01, 0.001]
    data = make_dataset(tmp_path / "data", {"train": rows, "validation": 800, "test": 100}, numeric=3, categorical=4)
    space, config, sweep = tmp_path / "space.yaml", tmp_path / "own.yaml", tmp_path / "sweep"
    space.write_text(f"train.dense_optimizer.lr: {{choice: {values}}}\n")
    made = recipe(
        global_batch_size=batch,
        epochs=epochs,
        dense_optimizer={"kind": "adam", "lr": 0.01},
        evaluations_per_epoch=1,
        checkpoint={"every_steps": 20, "every_minutes": None},
        log_every_steps=5,
    )
    config.write_text(dump_recipe(made))
    arguments = [
        *(str(config), "--data", str(data.folder), "--output", str(sweep)),
        *("--search", "grid", "--trials", str(len(values)), "--space", str(space)),
    ]
    hold = Hold(tmp_path / "hold", rf"sweep/trials/.*{checkpoint_name(60)}")
    with ray_head(environment, num_cpus=0) as head, ray_nodes(head, environment, 2) as nodes:
        attached = {**environment, "RAY_ADDRESS": head.address}
        with hold.held("jobs.tune", *arguments, environment=attached) as held:
            kill_node(node_of(next(iter(hold.waiting())), nodes))
            hold.end()
            held.wait()
    trials = _runs(sweep)
    assert trials.keys() == set(values)
    # Each trial's recipe, trained without Ray and with nothing in its way.
    undisturbed = {value: tmp_path / f"{value}" for value in values}
    run_cases(1, data.folder, [Case(undisturbed[value], run.recipe) for value, run in trials.items()])
    histories = {value: list(read_history(run.history)) for value, run in trials.items()}
    begun = [sum(r["event"] == "epoch" for r in records) for records in histories.values()]
    assert max(begun) > epochs, "nothing was lost"
    for value, records in histories.items():
        assert _learned(records) == _learned(list(read_history(RunFolder.open(undisturbed[value]).history)))
        assert _learned(records)[-1][0] == epochs * rows // batch


def _runs(sweep: Path) -> dict[float, RunFolder]:
    """The run of each trial, all of which are finished, by the value that it tried."""
    found = {}
    for path in sweep.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        assert record["state"] == "finished", record
        found[record["assignment"]["train.dense_optimizer.lr"]] = RunFolder.open(path.parent / record["run"])
    return found


def _learned(history: list[dict[str, Any]]) -> list[tuple[int, float | None, float | None]]:
    """Step, loss and AUC of every record but those of attempts and their phases."""
    return [(r["step"], r.get("loss"), r.get("auc")) for r in history if r["event"] not in ("epoch", "phase")]


def test_serving(environment: dict[str, str], tmp_path: Path) -> None:
    """Two replicas on three nodes, one of which is killed with its replica while requests come."""
    folder, log, port = tmp_path / "dlrm", tmp_path / "log", free_port()
    make_model_folder(folder)
    (folder / "config.yaml").write_text(dump_recipe(load_recipe(folder / "config.yaml", ["serve.replicas=2"])))
    command = [sys.executable, "-m", "jobs.serve", str(folder), "--port", str(port)]
    predictor = load_model(folder)
    rows = make_raw_rows(predictor.schema, 50)
    url = f"http://127.0.0.1:{port}/v1/models/dlrm:predict"
    samples: list[TimedAnswer] = []
    with ray_head(environment, num_cpus=0) as head, ray_nodes(head, environment, 3) as nodes, log.open("wb") as out:
        attached = {**environment, "RAY_ADDRESS": head.address}
        process = subprocess.Popen(command, env=attached, stdout=out, stderr=out)
        _until(lambda: b"serving dlrm at " in log.read_bytes(), process, log)
        _until(lambda: _places(nodes) == 2, process, log)
        load = threading.Thread(target=lambda: samples.extend(at_rate(json_post(url, b"{}"), RATE, SECONDS)))
        load.start()
        time.sleep(5)
        nodes.pop(_kill_one_with("ServeReplica", nodes))
        killed_at = time.monotonic()
        _until(lambda: _places(nodes) == 2, process, log)
        back_after = time.monotonic() - killed_at
        load.join(SECONDS + 60)
        assert not load.is_alive(), "requests hang"
        answers = [requests.post(url, json={"instances": rows}, timeout=60) for _ in range(20)]
        process.terminate()
        assert process.wait(120) == 0, log.read_text()
    print(f"back after {back_after:.1f} s: {summary(samples)}")
    assert {sample.status for sample in samples} <= {200, 500, 503}
    # Serve asks another replica where one does not take a request; one that it was scoring may be lost.
    assert sum(sample.status != 200 for sample in samples) <= 0.01 * len(samples)
    assert max(sample.seconds for sample in samples) < 30
    for answer in answers:
        np.testing.assert_allclose(answer.json()["predictions"], predictor.predict(rows), rtol=0, atol=1e-6)


def _places(nodes: Sequence[int]) -> int:
    """How many of the nodes have a replica."""
    return sum(runs_on(node, "ServeReplica") for node in nodes)
