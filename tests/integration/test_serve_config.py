"""The application on a Ray cluster by Ray's own tool: `serve deploy` of a file, and `serve run` of the builder."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import requests
import tritonclient.grpc
import yaml
from tritonclient.utils import InferenceServerException

import serve
from cluster.local_cluster import ray_head
from rayrec.common.machine import free_ports
from rayrec.inference.predictor import load_model
from tests.conftest import REPOSITORY
from tests.environments import environment_of_a_user
from tests.model_folders import make_model_folder, make_raw_rows

TOKEN = "0123456789abcdef" * 4
PROGRAM = Path(sys.executable).with_name("serve")
CONFIG = Path(serve.__file__).parent / "config.yaml"


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def answers(url: str, name: str, body: Any) -> bool:
    try:
        return requests.post(f"{url}/v1/models/{name}:predict", json=body, timeout=30).status_code == 200
    except requests.RequestException:
        return False


def grpc_score(port: int) -> float:
    """Of a row with I1 = 3, through Serve's own proxy, which sends the message on to a replica."""
    with tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}") as client:
        value = tritonclient.grpc.InferInput("I1", [1], "FP64").set_data_from_numpy(np.array([3.0]))
        score = client.infer("ctr", [value], client_timeout=60).as_numpy("score")
        with pytest.raises(InferenceServerException, match=r"INVALID_ARGUMENT\] outputs: the model has one, 'score'"):
            other = [tritonclient.grpc.InferRequestedOutput("other")]
            client.infer("ctr", [value], outputs=other, client_timeout=60)
        return float(score[0])


@pytest.mark.minutes
def test_serve_deploy_and_serve_run(tmp_path: Path) -> None:
    for name in ("ctr", "other"):
        make_model_folder(tmp_path / "models" / name, seed=len(name))
    rows = make_raw_rows(load_model(tmp_path / "models/ctr").schema, 3)
    port, grpc_port = free_ports(2)
    # With the part on gRPC that stands in the file as a comment.
    text = CONFIG.read_text()
    about, commented, rest = text.partition("# grpc_options:\n")
    indented = [line.removeprefix("# ") if line.startswith("#   ") else line for line in rest.splitlines()]
    config = yaml.safe_load("\n".join([about, "grpc_options:", *indented]))
    assert commented and config["grpc_options"]["grpc_servicer_functions"]
    config["http_options"]["port"], config["grpc_options"]["port"] = port, grpc_port
    (application,) = config["applications"]
    application["args"]["model"] = str(tmp_path / "models")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    environment = environment_of_a_user()
    environment |= {"PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}

    def ray_serve(*arguments: str, **variables: str) -> None:
        done = subprocess.run(
            [PROGRAM, *arguments],
            env={**environment, **variables},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    url = f"http://127.0.0.1:{port}"
    with ray_head(environment, num_cpus=4, dashboard=True) as head:
        ray_serve("deploy", str(tmp_path / "config.yaml"), "--address", head.dashboard)
        wait_for(lambda: answers(url, "other", {}))
        for name in ("ctr", "other"):
            told = requests.post(f"{url}/v1/models/{name}:predict", json={"instances": rows}, timeout=60).json()
            expected = load_model(tmp_path / "models" / name).predict(rows)
            assert told["predictions"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert grpc_score(grpc_port) == pytest.approx(
            load_model(tmp_path / "models/ctr").predict([{"I1": 3}])[0], abs=1e-6
        )
        # The same application, of one model, with a setting beside it.
        ray_serve(
            "run", "serve.app:build", f"model=only={tmp_path}/models/ctr", "max_rows_per_request=2",
            "--name", "rayrec", "--non-blocking", RAY_ADDRESS=head.address,
        )  # fmt: skip
        wait_for(lambda: answers(url, "only", {}))
        many = requests.post(f"{url}/v1/models/only:predict", json={"instances": rows}, timeout=60)
        assert (many.status_code, many.json()) == (
            413, {"error": "instances: 3 rows, at most 2 a request; send several requests"}
        )  # fmt: skip
        assert requests.get(f"{url}/v1/models", timeout=60).json() == {"models": ["only"]}


@pytest.mark.minutes
def test_what_kuberay_serves(tmp_path: Path) -> None:
    """The application of `cluster/kuberay/rayservice.yaml` on a node with its environment; the probes of its pods."""
    make_model_folder(tmp_path / "ctr")
    spec = yaml.safe_load((REPOSITORY / "cluster" / "kuberay" / "rayservice.yaml").read_text())["spec"]
    groups = [spec["rayClusterConfig"]["headGroupSpec"], *spec["rayClusterConfig"]["workerGroupSpecs"]]
    head_pod, worker_pod = (group["template"]["spec"]["containers"][0] for group in groups)
    port, metrics, statistics = free_ports(3)
    config = yaml.safe_load(spec["serveConfigV2"])
    config["http_options"]["port"] = port
    (application,) = config["applications"]
    application["args"] |= {"model": f"ctr={tmp_path}/ctr", "replicas": 2, "threads_per_replica": 1}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    environment = environment_of_a_user()
    environment |= {"PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    environment |= {variable["name"]: variable.get("value", TOKEN) for variable in worker_pod["env"]}
    with tempfile.TemporaryDirectory(prefix="hap-") as folder, ExitStack() as stack:
        # A pod has these to itself.
        environment |= {
            "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
            "RAY_SERVE_HAPROXY_BINARY_PATH": str(REPOSITORY / "cluster" / "haproxy.py"),
            "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
            "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
            "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
            "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
            "RAY_SERVE_HAPROXY_STATS_PORT": str(statistics),
        }
        head = stack.enter_context(ray_head(environment, num_cpus=3, dashboard=True))

        def is_well(probe: dict[str, Any]) -> bool:
            urls = {8000: f"http://127.0.0.1:{port}", 52365: head.agent}
            try:
                return requests.get(urls[probe["port"]] + probe["path"], timeout=5).status_code == 200
            except requests.RequestException:
                return False

        wait_for(lambda: is_well(head_pod["livenessProbe"]["httpGet"]))
        assert not is_well(worker_pod["readinessProbe"]["httpGet"])
        deploy = [PROGRAM, "deploy", str(tmp_path / "config.yaml"), "--address", head.dashboard]
        done = subprocess.run(deploy, env=environment, cwd=REPOSITORY, capture_output=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: is_well(worker_pod["readinessProbe"]["httpGet"]))
        url = f"http://127.0.0.1:{port}/v1/models/ctr:predict"
        rows = {"instances": make_raw_rows(load_model(tmp_path / "ctr").schema, 3)}
        assert requests.post(url, json=rows, timeout=60).status_code == 401
        told = requests.post(url, json=rows, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60).json()
        expected = load_model(tmp_path / "ctr").predict(rows["instances"])
        assert told["predictions"] == pytest.approx(expected.tolist(), abs=1e-6)
        programs = [process.name() for process in psutil.Process(head.pid).children(recursive=True)]
        assert any("haproxy" in name for name in programs), programs
