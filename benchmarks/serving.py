"""Latency and throughput of `rayrec serve` beside servers written by hand, Ray Serve alone and the bare forward pass.

    python -m benchmarks.serving --output benchmarks/results/serving.json [--before CHECKOUT]

One model of Criteo's shape (13 numbers, 26 categories) with random weights; each server gets `--replicas` processes of
one thread. Clients that each wait for an answer before the next request ask for the scores of the same rows: of `rayrec
serve` as JSON, as binary tensors of the Open Inference Protocol and as Arrow streams, of the server written by hand as
JSON: FastAPI, and a bare ASGI function with orjson and NumPy in an environment of its own. So is, of the same model,
`rayrec serve` of another checkout, which needs an environment in `.venv`, as `make setup` makes it. A deployment that
returns a constant, through the same HAProxy and past it, shows what of a lone row's time is Ray Serve's. The servers
take turns, round after round; the file has every round, and the medians.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve as ray_serve

from benchmarks.constant_deployment import Constant
from benchmarks.http_load import json_post
from benchmarks.peers.environments import python_of
from jobs.benchmark_serve import Post, ServeBenchmarkRequest, measured, post_of
from jobs.serve import ServeRequest, serving
from rayrec.common.machine import Machine, free_port
from rayrec.common.progress import SilentProgress
from rayrec.inference.predictor import Predictor, load_model
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.store.files import write_json
from serve.v1 import Predictions, parse_instances
from tests.environments import environment_of_a_user
from tests.model_folders import make_model_folder, make_raw_rows

CONFIG = DLRMConfig(embedding_dim=64, bottom_mlp=(512, 256, 64), top_mlp=(512, 256))
BY_HAND, BARE, BEFORE = "FastAPI by hand", "bare ASGI", "rayrec before, json"
CONSTANT, PAST_PROXY = "Ray Serve, a constant", ", past HAProxy"
_PROTOCOLS = ServeBenchmarkRequest.model_fields["protocol"].default
_SERVER_BEFORE = """
import pathlib, sys
from jobs.serve import ServeRequest, serving
from rayrec.common.progress import SilentProgress
from rayrec.models.dlrm.config import DLRMConfig
from tests.model_folders import make_model_folder
folder, port = pathlib.Path(sys.argv[1], "dlrm"), int(sys.argv[2])
config = DLRMConfig.model_validate_json(sys.argv[3])
make_model_folder(folder, config=config, numeric=13, categorical=26)
with serving(ServeRequest(model=(folder,), port=port), SilentProgress()) as url:
    print(url, flush=True)
    sys.stdin.read()
"""
"""Run in the other checkout: it serves a model folder of its own, with the same weights, until its input ends."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout, whose server takes part, with one replica")
    parser.add_argument("--environments", type=Path, default=Path("build/peers"), help="folder of the peers' packages")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "dlrm"
        make_model_folder(folder, config=CONFIG, numeric=13, categorical=26, replicas=arguments.replicas)
        predictor = load_model(folder)
        with (
            serving(ServeRequest(model=(folder,), port=free_port()), SilentProgress()) as url,
            servers_by_hand(folder, arguments.environments.resolve(), arguments.replicas) as by_hand,
            server_before(arguments.before, Path(temporary) / "before") as before,
        ):
            posts = {rows: posts_of(predictor, rows, url, by_hand, before) for rows in arguments.rows}
            require_equal_scores(posts[arguments.rows[0]])
            if 1 in posts:
                posts[1] |= floor_of(posts[1]["rayrec, json"], url)
            rounds = [
                {
                    "round": number,
                    "rows": rows,
                    "clients": clients,
                    "server": name,
                    **measured(post, clients, arguments.seconds),
                }
                for number in range(arguments.rounds)
                for rows, of_rows in posts.items()
                for clients in arguments.clients
                for name, post in of_rows.items()
            ]
        result = {
            "machine": machine.described(),
            "seconds": arguments.seconds,
            "replicas": arguments.replicas,
            "medians": _medians(rounds),
            "parts_ms": [{"rows": rows, **_parts(predictor, of[BY_HAND].body)} for rows, of in posts.items()],
            "rounds": rounds,
        }
    write_json(arguments.output, result)
    for row in result["medians"]:
        print(row)


def posts_of(
    predictor: Predictor, rows: int, url: str, by_hand: Mapping[str, str], before: str | None = None
) -> dict[str, Post]:
    """Return the same rows as requests, by server."""
    instances = make_raw_rows(predictor.schema, rows)
    body = json.dumps({"instances": instances}).encode()
    posts = {f"rayrec, {p}": post_of(url, "dlrm", p, predictor.raw_rows, instances) for p in _PROTOCOLS}
    if before is not None:
        posts[BEFORE] = json_post(f"{before}/v1/models/dlrm:predict", body)
    return posts | {name: json_post(f"{address}/predict", body) for name, address in by_hand.items()}


def floor_of(post: Post, url: str) -> dict[str, Post]:
    """Return the same request to a deployment that returns a constant, and to the replicas' own ports, past HAProxy."""
    ray_serve.run(Constant.bind(), name="constant", route_prefix="/constant")  # type: ignore[attr-defined]
    folder = Path(os.environ["RAY_SERVE_HAPROXY_CONFIG_FILE_LOC"]).parent
    ports: dict[str, str] = {}
    while len(ports) < 2:  # HAProxy hears of the new replica a moment later
        time.sleep(0.5)
        config = "".join(file.read_text() for file in folder.rglob("*.cfg"))
        ports = dict(re.findall(r"server SERVE_REPLICA_(\w+)-\S+ (\S+)", config))
    time.sleep(2.0)
    return {
        f"rayrec, json{PAST_PROXY}": replace(post, url=post.url.replace(url, f"http://{ports['rayrec']}")),
        CONSTANT: replace(post, url=f"{url}/constant/"),
        f"{CONSTANT}{PAST_PROXY}": replace(post, url=f"http://{ports['constant']}/constant/"),
    }


def _medians(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return medians over the rounds, by rows, clients and server; and beside FastAPI and the bare server.

    A ratio is that of one round, so that what else the machine does in a round is on both sides.
    """
    table = []
    keys = list(dict.fromkeys((found["rows"], found["clients"], found["server"]) for found in rounds))
    by_key = {key: [f for f in rounds if (f["rows"], f["clients"], f["server"]) == key] for key in keys}
    for (rows, clients, server), found in by_key.items():
        by_hand, bare = by_key[rows, clients, BY_HAND], by_key[rows, clients, BARE]
        names = ("requests_per_second", "p50_ms", "p95_ms", "p99_ms")
        middle = {name: statistics.median(one[name] for one in found) for name in names}
        ratios = [one["p50_ms"] / other["p50_ms"] for one, other in zip(found, by_hand, strict=True)]
        rates = [
            one["requests_per_second"] / other["requests_per_second"] for one, other in zip(found, by_hand, strict=True)
        ]
        to_bare = [one["p50_ms"] / other["p50_ms"] for one, other in zip(found, bare, strict=True)]
        table.append({
            "rows": rows,
            "clients": clients,
            "server": server,
            **middle,
            "rows_per_second": round(rows * middle["requests_per_second"]),
            "errors": sum(one["errors"] for one in found),
            "p50_to_by_hand": [round(x, 2) for x in (min(ratios), statistics.median(ratios), max(ratios))],
            "rate_to_by_hand": [round(x, 2) for x in (min(rates), statistics.median(rates), max(rates))],
            "p50_to_bare": [round(x, 2) for x in (min(to_bare), statistics.median(to_bare), max(to_bare))],
        })  # fmt: skip
    return table


def _parts(predictor: Predictor, body: bytes) -> dict[str, float]:
    """Milliseconds of each part of an answer, alone in this process, and of the bare forward pass."""
    rows = parse_instances(body, predictor.raw_rows, 10**9).columns
    encoded = predictor.encode_stacked(rows)
    scores = predictor.predict_encoded(encoded)

    def answer() -> str:
        return Predictions(model="dlrm", version="1", predictions=scores.tolist()).model_dump_json()

    return {
        "parse and check": _milliseconds(lambda: parse_instances(body, predictor.raw_rows, 10**9)),
        "encode": _milliseconds(lambda: predictor.encode_stacked(rows)),
        "forward": _milliseconds(lambda: predictor.predict_encoded(encoded)),
        "answer": _milliseconds(answer),
    }


def _milliseconds(what: Callable[[], object]) -> float:
    """Return the median of as many calls as a second holds, at least three."""
    times: list[float] = []
    deadline = time.perf_counter() + 1.0
    while len(times) < 3 or time.perf_counter() < deadline:
        began = time.perf_counter()
        what()
        times.append(time.perf_counter() - began)
    return round(1e3 * float(np.median(times)), 4)


def require_equal_scores(posts: dict[str, Post]) -> None:
    """Check that all servers give the same scores: those of other models would say nothing."""
    scores = []
    for name in (BY_HAND, BARE, f"rayrec, {_PROTOCOLS[0]}", BEFORE):
        if name not in posts:
            continue
        request = urllib.request.Request(posts[name].url, posts[name].body, dict(posts[name].headers))
        with urllib.request.urlopen(request, timeout=60) as response:
            scores.append(json.loads(response.read())["predictions"])
        np.testing.assert_allclose(scores[0], scores[-1], rtol=0, atol=1e-5)


@contextmanager
def servers_by_hand(folder: Path, environments: Path, processes: int = 1) -> Iterator[dict[str, str]]:
    """Yield the addresses of servers of the model in `folder`, by name; `environments`: see `python_of`."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(_server_by_hand(python, module, folder, processes))
            for name, python, module in (
                (BY_HAND, Path(sys.executable), "benchmarks.plain_server"),
                (BARE, python_of("bare_server", environments), "benchmarks.bare_server"),
            )
        }


@contextmanager
def _server_by_hand(python: Path, module: str, folder: Path, processes: int) -> Iterator[str]:
    port = free_port()
    command = [str(python), "-m", "uvicorn", f"{module}:app", "--port", str(port)]
    environment = {**os.environ, "MODEL_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, "--workers", str(processes), "--log-level", "warning"], env=environment)
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def server_before(checkout: Path | None, folder: Path) -> Iterator[str | None]:
    """Yield the address of the other checkout's server, whose model it writes to `folder`; None without a checkout."""
    if checkout is None:
        yield None
        return
    folder.mkdir()
    arguments = (str(folder), str(free_port()), CONFIG.model_dump_json(exclude_unset=True))
    command = [str(checkout.resolve() / ".venv/bin/python"), "-c", _SERVER_BEFORE, *arguments]
    pipe = subprocess.PIPE
    own = environment_of_a_user()
    with subprocess.Popen(command, cwd=checkout, env=own, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()


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
