"""Latency and throughput of `rayrec serve` beside a server written by hand and the bare forward pass.

    python -m benchmarks.serving --output benchmarks/results/serving.json

Needs `wrk` (https://github.com/wg/wrk, in Debian's and Ubuntu's packages) on this machine. One model of Criteo's shape
(13 numbers, 26 categories) with random weights; each server gets one replica and one thread; both answer the same body
in turns, with 1 to 64 clients that each wait for an answer before the next request.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load import wrk
from jobs.serve import ServeRequest, serving
from rayrec.common.files import write_json
from rayrec.common.ports import free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import Predictor, load_model
from rayrec.models.dlrm.config import DLRMConfig
from serve.protocols.v1 import parse_instances, predictions
from tests.model_folders import make_model_folder, make_raw_rows

_WARM_UP_SECONDS = 2
_CONFIG = DLRMConfig(embedding_dim=64, bottom_mlp=(512, 256, 64), top_mlp=(512, 256))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 256, 4096])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--seconds", type=int, default=10, help="of each measurement")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is not installed")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "dlrm"
        make_model_folder(folder, config=_CONFIG, numeric=13, categorical=26)
        predictor = load_model(folder)
        bodies = {rows: _body(predictor, rows, Path(temporary)) for rows in arguments.rows}
        request = ServeRequest(model=(folder,), port=free_port())
        with serving(request, SilentProgress()) as url, _plain_server(folder) as plain:
            servers = {"rayrec serve": f"{url}/v1/models/dlrm:predict", "FastAPI by hand": f"{plain}/predict"}
            _require_equal_scores(servers, bodies[arguments.rows[0]])
            table = [
                {
                    "rows": rows,
                    "clients": clients,
                    "server": name,
                    **_measure(address, body, clients, arguments.seconds),
                }
                for rows, body in bodies.items()
                for clients in arguments.clients
                for name, address in servers.items()
            ]
        result = {
            "machine": {"cores": os.cpu_count(), "load_average_at_the_end": os.getloadavg()[0]},
            "seconds": arguments.seconds,
            "servers": table,
            "parts_ms": [{"rows": rows, **_parts(predictor, body.read_bytes())} for rows, body in bodies.items()],
        }
    write_json(arguments.output, result)
    print(arguments.output.read_text())


def _body(predictor: Predictor, rows: int, folder: Path) -> Path:
    path = folder / f"body-{rows}.json"
    path.write_text(json.dumps({"instances": make_raw_rows(predictor.schema, rows)}))
    return path


def _measure(address: str, body: Path, clients: int, seconds: int) -> dict[str, Any]:
    """One measurement after a warm-up; latencies in milliseconds."""
    wrk(address, body, clients, _WARM_UP_SECONDS)
    found = wrk(address, body, clients, seconds)
    rows = len(json.loads(body.read_text())["instances"])
    return {**found, "rows_per_second": round(found["requests_per_second"] * rows)}


def _parts(predictor: Predictor, body: bytes) -> dict[str, float]:
    """Milliseconds of each part of an answer, alone in this process, and of the bare forward pass."""
    rows = parse_instances(body, predictor.raw_rows, 10**9)
    encoded = predictor.encode(rows)
    scores = predictor.predict_encoded(encoded)
    return {
        "parse and check": _milliseconds(lambda: parse_instances(body, predictor.raw_rows, 10**9)),
        "encode": _milliseconds(lambda: predictor.encode(rows)),
        "forward": _milliseconds(lambda: predictor.predict_encoded(encoded)),
        "answer": _milliseconds(lambda: predictions("dlrm", "1", scores)),
    }


def _milliseconds(what: Callable[[], object]) -> float:
    """The median of as many calls as a second holds, at least three."""
    times: list[float] = []
    deadline = time.perf_counter() + 1.0
    while len(times) < 3 or time.perf_counter() < deadline:
        began = time.perf_counter()
        what()
        times.append(time.perf_counter() - began)
    return round(1e3 * float(np.median(times)), 4)


def _require_equal_scores(servers: dict[str, str], body: Path) -> None:
    """Both must be servers of the same model, or the comparison says nothing."""
    answers = []
    for address in servers.values():
        request = urllib.request.Request(address, body.read_bytes(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answers.append(json.loads(response.read())["predictions"])
    np.testing.assert_allclose(answers[0], answers[1], rtol=0, atol=1e-5)


@contextmanager
def _plain_server(folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "benchmarks.plain_server:app", "--port", str(port)]
    environment = {**os.environ, "MODEL_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environment)
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit("the server written by hand does not start")


if __name__ == "__main__":
    main()
