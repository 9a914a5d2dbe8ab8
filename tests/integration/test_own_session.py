"""The Ray session that a command starts for itself: what training in it does without, and how it ends."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import ray
import requests

from rayrec.common.machine import available_cpus
from rayrec.training.run.history import read_history
from tests.builders import make_dataset
from tests.environments import environment_without_cluster
from tests.training_runs import recipe, train_on_ray

SESSION = """
import signal
interrupted = []
signal.signal(signal.SIGTERM, lambda number, frame: interrupted.append(number))
from cluster.ray_session import ray_session
from rayrec.internals.ray_core import JAVA_LIBRARY
with ray_session():
    import os, ray
    session = ray._private.worker._global_node.get_session_dir_path()
    open(f"{session}/{JAVA_LIBRARY}", "w").close()
    print(session, ray.get(ray.remote(lambda: os.getpid()).remote()))
os.kill(os.getpid(), signal.SIGTERM)
assert interrupted == [signal.SIGTERM], "the handler of before the session has it"
"""


def test_training_starts_only_what_it_needs(ray_cluster: str, tmp_path: Path) -> None:
    """An upgrade may have changed a private part of Ray Train if this fails: adapt rayrec/internals/ray_train.py."""
    dataset = make_dataset(tmp_path / "data", {"train": 200, "test": 20})
    before = set(ray._private.state.actors())
    metrics = train_on_ray(recipe(workers=2, max_steps=2), dataset, tmp_path / "run")
    assert metrics.keys() == {"test"}
    started = [actor["ActorClassName"] for name, actor in ray._private.state.actors().items() if name not in before]
    assert started.count("RayTrainWorker") == 2 and "TrainController" in started
    assert not {"PlacementGroupCleaner", "DatasetManager", "PreemptionWatcher"} & set(started)


def test_workers_may_use_the_cpus_of_the_command(ray_cluster: str) -> None:
    """Ray gives each of them an OMP_NUM_THREADS for the CPUs that it asks for, one by default."""

    @ray.remote
    def look() -> tuple[str | None, int]:
        return os.environ.get("OMP_NUM_THREADS"), available_cpus()

    assert ray.get(look.remote()) == (os.environ.get("OMP_NUM_THREADS", "1"), available_cpus())


def test_training_publishes_its_newest_figures(ray_cluster: str, tmp_path: Path) -> None:
    """Ray collects them every ten seconds, and keeps them for twenty."""
    dataset = make_dataset(tmp_path / "data", {"train": 200, "test": 100})
    train_on_ray(recipe(max_steps=3, evaluations_per_epoch=1), dataset, tmp_path / "watched")
    records = {record["event"]: record for record in read_history(tmp_path / "watched/history.jsonl")}
    names = ("step", "loss", "samples_per_second", "data_wait_share", "peak_memory_bytes")
    expected = {(name, ""): records["train"][name] for name in names}
    expected |= {("evaluation", f"test {name}"): records["evaluate"][name] for name in ("auc", "log_loss")}
    (node,) = ray.nodes()
    deadline = time.monotonic() + 60
    found: dict[tuple[str, str], float] = {}
    while found != expected:
        assert time.monotonic() < deadline, (found, expected)
        time.sleep(0.5)
        text = requests.get(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics", timeout=60).text
        found = {}
        for name, labels, value in re.findall(r"^ray_rayrec_training_(\w+){(.*)} (\S+)$", text, re.MULTILINE):
            tags = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if tags["run"] == f"{tmp_path.name}/watched":
                assert tags["recipe"] == "test"
                found[name, f"{tags.get('split', '')} {tags.get('metric', '')}".strip()] = float(value)


def test_a_run_may_have_any_name(ray_cluster: str, tmp_path: Path) -> None:
    """Ray Train tags its metrics with the run's name, and names a folder by it."""
    dataset = make_dataset(tmp_path / "δεδομένα", {"train": 200, "test": 20})
    run = tmp_path / "τρέξιμο 😀 %20'\"#?;" / ("λ" * 100 + "\x01")
    assert train_on_ray(recipe(workers=2, max_steps=2), dataset, run).keys() == {"test"}


def test_nothing_of_a_session_is_left() -> None:
    environment = environment_without_cluster()
    command = [sys.executable, "-c", SESSION]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    session, worker = done.stdout.split()[-2:]
    psutil.wait_procs([psutil.Process(int(worker))] if psutil.pid_exists(int(worker)) else [], timeout=10)
    assert not psutil.pid_exists(int(worker))
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert [command for command in commands if session in command] == []
    assert [path.name for path in Path(session).glob("**/*.so")] == []
