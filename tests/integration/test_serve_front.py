"""What stands before the replicas: addresses, a path prefix, names in URLs and shells, and a life without a 404."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import ray
import requests

from benchmarks.serving_switch import LARGE_CLIENTS, measure_life
from cluster.ray_serve import proxies
from jobs.serve import ServeRequest, example, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from tests.model_folders import make_model_folder

NAMES = ("ctr", "30% off?", "a;rm $HOME", "it's {höher}", "x(1)~*")
PREFIX = "/team-a/rank"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("front")
    make_model_folder(base / "model")
    return base / "model"


@pytest.fixture(scope="module")
def url(ray_cluster: str, folder: Path) -> Iterator[str]:
    models = tuple(f"{name}={folder}" for name in NAMES)
    request = ServeRequest(model=models, host="::1", port=free_port(), root_path=PREFIX)
    with serving(request, SilentProgress()) as address:
        yield address


@contextmanager
def proxy_of(url: str, *, strips: bool) -> Iterator[str]:
    """A reverse proxy that shows a server below a prefix, which it takes away from paths or not."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.pass_on()

        def do_POST(self) -> None:
            self.pass_on()

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.removeprefix(PREFIX) if strips else self.path
            headers = {"X-Forwarded-Prefix": PREFIX} if strips else {}
            told = requests.request(self.command, url + path, data=body, headers=headers, timeout=60)
            self.send_response(told.status_code)
            self.send_header("Content-Type", told.headers["Content-Type"])
            self.send_header("Content-Length", str(len(told.content)))
            self.end_headers()
            self.wfile.write(told.content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
        server.shutdown()


@pytest.mark.parametrize("name", NAMES)
def test_the_printed_line_works_in_a_shell(url: str, folder: Path, name: str) -> None:
    assert url.startswith("http://[::1]:")
    told = subprocess.run(["bash", "-c", example(url, name, folder)], capture_output=True, check=True, timeout=60)
    answer = json.loads(told.stdout)
    assert answer["model"] == name and len(answer["predictions"]) == 1


@pytest.mark.parametrize("strips", [True, False])
def test_behind_a_prefix(url: str, strips: bool) -> None:
    with proxy_of(url, strips=strips) as shown:
        assert requests.get(f"{shown}/healthz", timeout=60).json() == {"status": "ok"}
        page = requests.get(f"{shown}/", timeout=60)
        assert page.headers["Content-Type"].startswith("text/html") and '"/v1/models' in page.text
        document = requests.get(f"{shown}/openapi.json", timeout=60).json()
        (server,) = document["servers"]
        assert server["url"] == PREFIX
        root = shown.removesuffix(PREFIX)
        for name in NAMES:
            path = f"/v1/models/{quote(name, safe='')}:predict"
            assert path in document["paths"]
            answer = requests.post(root + server["url"] + path, json={"instances": [{}]}, timeout=60)
            assert answer.status_code == 200, answer.text
        # None leads out of the prefix.
        lost = requests.get(f"{shown}/healthz/", timeout=60, allow_redirects=False)
        assert (lost.status_code, list(lost.json())) == (404, ["error"])


def test_without_the_prefix_the_server_answers_too(url: str) -> None:
    assert requests.get(f"{url}/v1/models", timeout=60).json() == {"models": sorted(NAMES)}
    assert "servers" in requests.get(f"{url}/openapi.json", timeout=60).json()


def test_haproxy_is_where_it_is_closed(url: str) -> None:
    """`close_haproxy` finds its process by private names of Ray Serve, which an upgrade may change."""

    def pid_of(self: Any) -> int | None:
        return self._haproxy._proc.pid if hasattr(self, "_haproxy") else None

    found = ray.get([proxy.__ray_call__.remote(pid_of) for proxy in proxies()])
    assert any(found)


@pytest.mark.minutes
def test_from_start_to_end(tmp_path: Path) -> None:
    found = measure_life(tmp_path, seconds=6)
    # The connections of large requests may break off when their replica is killed.
    assert found["spans"]["death of a replica"]["answers"].pop("broken", 0) <= LARGE_CLIENTS, found
    for span in found["spans"].values():
        assert set(span["answers"]) <= {"200", "503", "refused"}, found
    assert found["exit_code"] == 0 and set(found["spans"]["gone"]["answers"]) <= {"refused"}
    for span in ("work", "version switch", "SIGTERM, drain"):
        assert set(found["spans"][span]["answers"]) <= {"200"}, found
    assert found["spans"]["version switch"]["answers"]["200"] > 0, found
