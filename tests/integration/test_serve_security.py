"""A server with tokens, one with HTTPS; time limits; and an end that answers what was begun."""

import datetime
import gzip
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote

import grpc
import pytest
import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc

from jobs.serve import ServeRequest, serving
from rayrec.common.machine import free_port
from rayrec.common.progress import SilentProgress
from rayrec.recipes import dump_recipe, load_recipe
from tests.environments import environment_of_a_user
from tests.model_folders import make_model_folder

TOKEN = "0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ADMIN = "fedcba9876543210"
SHOPS = "Läden 点"


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "rayrec test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "key.pem").write_bytes(private)
    return folder / "certificate.pem", folder / "key.pem"


class Server:
    grpc_address: str

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url, self.stack = url, stack

    def post(self, rows: int, headers: dict[str, str] | None = None) -> requests.Response:
        address = f"{self.url}/v1/models/dlrm:predict"
        body = {"instances": [{}] * rows}
        return requests.post(address, json=body, headers=headers or HEADERS, timeout=60)


def make_server(base: Path, stack: ExitStack, **settings: float) -> Server:
    make_model_folder(base / "dlrm")
    make_model_folder(base / SHOPS)
    recipe = load_recipe(base / "dlrm/config.yaml", [f"serve.{name}={value}" for name, value in settings.items()])
    (base / "dlrm/config.yaml").write_text(dump_recipe(recipe))
    (base / "tokens").write_text(f"{TOKEN}\n{ADMIN} admin\n")
    ports = {"host": "0.0.0.0", "port": free_port(), "grpc_port": free_port()}
    request = ServeRequest(model=(base / "dlrm", base / SHOPS), token_file=base / "tokens", **ports)
    server = Server(stack.enter_context(serving(request, SilentProgress())), stack)
    server.grpc_address = f"127.0.0.1:{request.grpc_port}"
    return server


@pytest.fixture(scope="module")
def server(ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    base = tmp_path_factory.mktemp("secure")
    with ExitStack() as stack:
        yield make_server(base, stack, request_timeout_seconds=2)


def test_tokens(server: Server) -> None:
    assert server.post(1).status_code == 200
    refused = server.post(1, {"Authorization": "Bearer wrong"})
    assert (refused.status_code, list(refused.json())) == (401, ["error"])
    assert requests.get(f"{server.url}/healthz", timeout=60).json() == {"status": "ok"}


def test_administrators_unload_and_load(server: Server) -> None:
    """Of a model whose name is not ASCII, while another one answers; behind HAProxy, over HTTP and gRPC."""
    shops, repository = quote(SHOPS), f"{server.url}/v2/repository"
    packed = {**HEADERS, "Content-Encoding": "gzip"}

    def ask(name: str = shops, body: bytes = gzip.compress(b'{"instances": [{}, {}]}')) -> requests.Response:
        return requests.post(f"{server.url}/v1/models/{name}:predict", body, headers=packed, timeout=60)

    def change(what: str, token: str = ADMIN) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return requests.post(f"{repository}/models/{shops}/{what}", headers=headers, timeout=60).status_code

    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def health(name: str) -> int:
            return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status

        serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        assert ask().json()["model"] == SHOPS
        assert ask(body=gzip.compress(bytes(2**27))).status_code == 413
        assert health("") == health(SHOPS) == serving
        assert change("unload", TOKEN) == 403
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SHOPS), timeout=60)
        assert next(watch).status == serving
        assert change("unload") == 200
        assert (ask().status_code, ask("dlrm").status_code) == (404, 200)
        assert next(watch).status == health(SHOPS) == not_serving
        assert (health(""), health("dlrm")) == (serving, serving)
        assert change("load") == 200
        assert (ask().status_code, health(SHOPS)) == (200, serving)
    # Ray collects metrics every ten seconds.
    deadline = time.monotonic() + 60
    wanted = re.compile(r'^ray_rayrec_version_switches_total{.*model="Läden 点".*} 2', re.MULTILINE)
    while not wanted.search(requests.get(f"{server.url}/metrics", headers=HEADERS, timeout=60).content.decode()):
        assert time.monotonic() < deadline
        time.sleep(1)


@pytest.mark.minutes
def test_https(tmp_path: Path) -> None:
    """A process of its own: a Ray session is started for HTTPS, or for HAProxy, which has none."""
    make_model_folder(tmp_path / "dlrm")
    certificate, key = make_certificate(tmp_path)
    port = free_port()
    command = [sys.executable, "-m", "jobs.serve", str(tmp_path / "dlrm"), "--port", str(port)]
    command += ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment_of_a_user(), text=True)
    try:
        assert process.stderr is not None
        told = ""
        while f"https://127.0.0.1:{port}" not in told:
            told = process.stderr.readline()
            assert told, "the server ended"
        answer = requests.get(f"https://127.0.0.1:{port}/healthz", verify=str(certificate), timeout=60)
        assert answer.json() == {"status": "ok"}
        with pytest.raises(requests.ConnectionError):
            requests.get(f"http://127.0.0.1:{port}/healthz", timeout=10)
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def begin(server: Server, body: bytes) -> socket.socket:
    """Send the head of a request, and wait until the replica that reads its body says to continue."""
    address = server.url.removeprefix("http://")
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = [
        "POST /v1/models/dlrm:predict HTTP/1.1",
        f"Host: {address}",
        f"Authorization: Bearer {TOKEN}",
        f"Content-Length: {len(body)}",
        "Expect: 100-continue",
        "Connection: close",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")
    return connection


def finish(connection: socket.socket, body: bytes) -> bytes:
    """Send the body of a request that was begun; the whole answer."""
    with connection:
        connection.sendall(body)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_limits(server: Server) -> None:
    assert server.post(6_000_000).status_code == 413
    with begin(server, b"{}") as connection:
        connection.sendall(b"{")
        late = b""
        while not late.endswith(b"}"):
            late += (piece := connection.recv(4096))
            assert piece
    assert late.startswith(b"HTTP/1.1 504 ")
    assert late.endswith(b'{"error":"the request timed out after 2 s; send fewer rows, or try again"}')
    assert server.post(1).status_code == 200


@pytest.mark.minutes
def test_what_was_begun_is_answered_at_the_end(server: Server, tmp_path: Path) -> None:
    """The last test of the server, which ends: another one takes its place."""
    server.stack.close()
    body = b'{"instances": [{}]}'
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        ending = make_server(tmp_path, stack, request_timeout_seconds=50)
        begun = [begin(ending, body) for _ in range(4)]
        end = pool.submit(stack.close)
        with pytest.raises((requests.ConnectionError, AssertionError)):
            while True:
                assert ending.post(1).status_code == 200
        assert not end.done()
        for connection in begun:
            assert finish(connection, body).startswith(b"HTTP/1.1 200 ")
        end.result()
