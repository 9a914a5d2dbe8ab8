"""Preprocessing of every kind of data on nodes that share nothing but a bucket, killed and begun again: the files of
the same job on a disk."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from benchmarks.preprocess_kills import ROWS, write_raw
from cluster.java import provide_java
from cluster.local_cluster import ray_head, ray_nodes
from jobs.command import RESULT_FILE
from rayrec.ingest.dataset import REJECTED_FOLDER
from rayrec.store.artifact import MANIFEST_FILE
from rayrec.store.files import sha256_of
from tests.environments import environment_of_open_cluster
from tests.faulty_store import Faults, Store, faulty_store
from tests.holding import run_module
from tests.ray_nodes import hiding

pytestmark = pytest.mark.minutes
FAULTS = Faults(seed=9, fail=0.02, reset=0.02, slow=0.01, cut=0.02, short=0.02)
STAGES = {"criteo": "vocabularies", "table": "fit", "interactions": "ordered", "displays": "profiles"}
"""The stage of each kind at whose end the command is killed."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, dict[str, str]]]:
    """Yield a bucket, and the environment of a command on the first of two nodes, whose folders the other one lacks."""
    folder = tmp_path_factory.mktemp("at-uri")
    staging = folder / "staging"
    staging.mkdir()
    provide_java()
    own = {**environment_of_open_cluster(), "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    with ExitStack() as stack:
        store = stack.enter_context(faulty_store())
        endpoint = stack.enter_context(store.endpoint())
        own |= {"AWS_ENDPOINT_URL": endpoint.url}
        head = stack.enter_context(ray_head({**own, "RAYREC_CACHE": str(staging)}))
        of_other = {**own, "RAYREC_CACHE": str(folder / "other")}
        stack.enter_context(ray_nodes(head, of_other, 1, within=hiding(staging)))
        yield store, {**own, "RAYREC_CACHE": str(staging), "RAY_ADDRESS": head.address}


@pytest.mark.parametrize("kind", ROWS)
def test_the_same_files_as_on_a_disk(kind: str, cluster: tuple[Store, dict[str, str]], tmp_path: Path) -> None:
    store, environment = cluster
    arguments, memory = write_raw(tmp_path, kind, ROWS[kind] // 20), ["--set", "preprocess.spark.executor_memory=1g"]
    local = tmp_path / "dataset"
    if kind == "displays":
        arguments += ["--set", "preprocess.feature_set=full"]  # whose stages are all there are
    # Without a cluster, by threads, whose files are those of Spark.
    alone = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}
    run_module("jobs.preprocess", *arguments, "--output", local, environment=alone)

    prefix = uuid4().hex  # The tests of a process share the bucket.
    uri = f"s3://bucket/{prefix}"
    fs.copy_files(str(tmp_path / "raw"), f"{prefix}/raw", fs.LocalFileSystem(), store.filesystem)
    if kind == "table":
        recipe = Path(arguments[0])
        recipe.write_text(recipe.read_text().replace(str(tmp_path), uri))
    away = [argument.replace(f"{tmp_path}/raw", f"{uri}/raw") for argument in arguments]
    away += [*memory, "--output", f"{uri}/dataset"]
    log, store.faults = tmp_path / "log", FAULTS
    store.held = rf"/{prefix}/.*\.scratch/{STAGES[kind]}\.json"
    command = [sys.executable, "-m", "jobs.preprocess", *away]
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    while not any(prefix in path for path in store.waiting):
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    store.held = ""
    assert not any(name.startswith("dataset/train") for name in store.names(prefix))

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "continuing unfinished work of an earlier run" in done.stderr
    assert "parse: already done" in done.stderr or "tables: already done" in done.stderr
    store.faults = Faults()
    copied = tmp_path / "copied"
    fs.copy_files(f"{prefix}/dataset", str(copied), store.filesystem, fs.LocalFileSystem())
    assert _files(copied) == _files(local)
    assert _described(copied) == _described(local)
    assert _rejected(copied) == _rejected(local)
    staging = Path(environment["RAYREC_CACHE"])
    assert not [path for path in staging.rglob("*") if path.name.startswith("part-")]


def _files(dataset: Path) -> dict[str, str]:
    """Return the SHA-256 of every file but those that name the raw files, and the result, which tells the time."""
    files = [path.relative_to(dataset) for path in dataset.rglob("*") if path.is_file()]
    others = {MANIFEST_FILE, RESULT_FILE, REJECTED_FOLDER}
    return {path.as_posix(): sha256_of(dataset / path) for path in files if path.parts[0] not in others}


def _described(dataset: Path) -> Any:
    return json.loads((dataset / MANIFEST_FILE).read_text())["splits"]


def _rejected(dataset: Path) -> list[dict[str, Any]]:
    """Return the bad rows without the names of their files."""
    files = sorted(dataset.glob(f"{REJECTED_FOLDER}/*"))
    return [row for file in files for row in pq.read_table(file).drop_columns(["file"]).to_pylist()]
