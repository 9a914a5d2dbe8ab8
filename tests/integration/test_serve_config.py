"""The application on a Ray cluster by Ray's own tool: `serve deploy` of a file, and `serve run` of the builder."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import tritonclient.grpc
import yaml
from tritonclient.utils import InferenceServerException

import serve
from rayrec.common.ports import free_ports
from rayrec.inference.predictor import load_model
from tests.conftest import REPOSITORY
from tests.model_folders import make_model_folder, make_raw_rows
from tests.ray_head import ray_head

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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}

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
    with ray_head(environment, num_cpus=4) as head:
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
