"""A real MLflow server: metrics of training, and model folders that its registry knows."""

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests
from mlflow import MlflowClient

import rayrec
from jobs.serve import ServeRequest, serving
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.examples import Examples
from rayrec.inference.predictor import load_model
from rayrec.store.paths import CACHE_VARIABLE, to_path
from rayrec.training.run.history import mlflow_run_of, read_history
from tests.builders import make_dataset
from tests.training_runs import Case, recipe, run_cases


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow server, which alone reads and writes its artifacts."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/store.db",
               "--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", str(port),
               "--workers", "1"]  # fmt: skip
    address = f"http://127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=2).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                    time.sleep(0.2)
            yield address
        finally:
            os.killpg(process.pid, 9)
            process.wait()


@pytest.fixture(scope="module")
def run(server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was logged to the server, in two parts: the second one continues the first."""
    base = tmp_path_factory.mktemp("run")
    dataset = make_dataset(base / "data", {"train": 4_000, "validation": 1_000, "test": 500}, numeric=2, categorical=3)
    mlflow = {"tracking_uri": server}
    for epochs in (1, 2):
        case = Case(base / "run", recipe(epochs=epochs, log_every_steps=10, evaluations_per_epoch=1,
                                         tracking={"tensorboard": False, "mlflow": mlflow}))  # fmt: skip
        run_cases(1, dataset.folder, [case])
    return base / "run"


@pytest.fixture
def client(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MlflowClient:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "staging"))
    return MlflowClient(server, server)


def test_the_server_has_the_numbers_of_history(run: Path, client: MlflowClient) -> None:
    experiment = client.get_experiment_by_name("rayrec")
    assert experiment is not None
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.run_id == mlflow_run_of(run) and logged.info.status == "FINISHED"
    assert logged.info.run_name == "run" and logged.data.params["model.kind"] == "dlrm"
    losses = {record["step"]: record["loss"] for record in read_history(run / "history.jsonl") if "loss" in record}
    found = {metric.step: metric.value for metric in client.get_metric_history(logged.info.run_id, "train/loss")}
    assert len(losses) > 5 and found == pytest.approx(losses)
    assert "validation/auc" in logged.data.metrics


def test_a_registered_model_is_read_as_a_folder(run: Path, client: MlflowClient, tmp_path: Path) -> None:
    for version in ("1", "2"):
        result = rayrec.export(run, tmp_path / version, register_as="ctr", progress=False)
        assert result.details["registered_version"] == version
    assert client.get_model_version("ctr", "1").run_id == mlflow_run_of(run)
    client.set_registered_model_alias("ctr", "champion", "1")
    expected = load_model(tmp_path / "1")
    rows = Examples.load(tmp_path / "1").instances
    for uri in ("models:/ctr@champion", "models:/ctr/2"):
        np.testing.assert_array_equal(rayrec.load_model(uri).predict(rows), expected.predict(rows))


def test_a_registered_model_answers_http(run: Path, client: MlflowClient, tmp_path: Path, ray_cluster: str) -> None:
    rayrec.export(run, tmp_path / "model", register_as="served", progress=False)
    client.set_registered_model_alias("served", "champion", "1")
    expected = load_model(tmp_path / "model")
    rows = Examples.load(tmp_path / "model").instances
    request = ServeRequest(model=("models:/served@champion",), port=free_port())
    with serving(request, SilentProgress()) as url:
        answer = requests.post(f"{url}/v1/models/served:predict", json={"instances": rows}, timeout=60)
        assert answer.ok, answer.text
    np.testing.assert_array_equal(np.array(answer.json()["predictions"], np.float32), expected.predict(rows))


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("models:/ctr", "models:/ctr: write models:/NAME@ALIAS or models:/NAME/VERSION"),
        ("models:/unknown/3", "MLflow at http.*: RESOURCE_DOES_NOT_EXIST: .*unknown.*"),
        ("models:/unknown@champion", "MLflow at http.*: RESOURCE_DOES_NOT_EXIST: .*unknown.*"),
    ],
)
def test_mistakes(client: MlflowClient, uri: str, message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}$"):
        to_path(uri)


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(
        ConfigError, match=r"^MLFLOW_TRACKING_URI: is not set; give it the address of the MLflow server$"
    ):
        to_path("models:/ctr@champion")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(UserError, match=r"^MLflow at http.*Connection refused") as error:
        to_path("models:/ctr@champion")
    assert "\n" not in str(error.value)
