"""HAProxy as `cluster.haproxy` starts it: what it answers while no replica does, and where it listens."""

import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from ray.serve._private import haproxy as of_serve
from ray.serve._private.common import RequestProtocol
from ray.serve.config import HTTPOptions, gRPCOptions

from cluster import haproxy
from rayrec.common.machine import free_ports

Ask = Callable[[bytes], tuple[int, dict[str, str], bytes]]


def serves_config(folder: Path, host: str, port: int, replica: int | None, grpc_port: int = 0) -> str:
    """What Ray Serve writes for a server with one replica, or with none."""
    folder.mkdir(exist_ok=True)
    metrics, statistics = free_ports(2)
    config = of_serve.HAProxyConfig(
        http_options=HTTPOptions(host=host, port=port),
        grpc_options=gRPCOptions(port=grpc_port, grpc_servicer_functions=["a.b"] if grpc_port else []),
        socket_path=str(folder / "admin.sock"),
        server_state_base=str(folder),
        server_state_file=str(folder / "server-state"),
        metrics_port=metrics,
        stats_port=statistics,
        is_head=True,
    )
    backends = {}
    if replica is not None:
        for protocol in (RequestProtocol.HTTP, RequestProtocol.GRPC) if grpc_port else (RequestProtocol.HTTP,):
            one = of_serve.ServerConfig(name="replica", host="127.0.0.1", port=replica)
            other = of_serve.ServerConfig(name="proxy", host="127.0.0.1", port=replica)
            name = f"{protocol.value.lower()}-rayrec"
            backends[name] = of_serve.BackendConfig(
                name=name, path_prefix="/", app_name="rayrec", servers=[one], fallback_server=other, protocol=protocol
            )
    api = of_serve.HAProxyApi(config, config_file_path=str(folder / "haproxy.cfg"))
    api.set_backend_configs(backends)
    api._generate_config_file_internal()
    return (folder / "haproxy.cfg").read_text()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="hap-", dir="/tmp") as folder:
        yield Path(folder)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """HAProxy, as Serve starts it, once it listens."""
    program = [sys.executable, haproxy.__file__, "-db", "-f", str(folder / "haproxy.cfg"), "-dR", *arguments]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: process.poll() is not None or running_in(folder) == process.pid)
            yield process
        finally:
            process.kill()


def running_in(folder: Path) -> int | None:
    """The process that answers at the control socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as control:
        control.connect(str(folder / "admin.sock"))
        control.sendall(b"show info\n")
        told = b"".join(iter(lambda: control.recv(65536), b"")).decode()
        return int(told.partition("\nPid: ")[2].split()[0])
    return None


@contextmanager
def running(folder: Path, replica: int | None) -> Iterator[Ask]:
    """HAProxy before a replica at a port; asks it with raw bytes."""
    (port,) = free_ports(1)
    serves_config(folder, "127.0.0.1", port, replica)

    def ask(request: bytes) -> tuple[int, dict[str, str], bytes]:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.sendall(request)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        return int(first.split()[1]), headers, body

    with started(folder):
        yield ask


def request_of(path: str = "/v1/models", headers: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{headers}\r\n".encode()


def test_who_stops_within_the_headers_is_sent_away(short_folder: Path) -> None:
    """Otherwise some thousand of them keep all others waiting."""
    with running(short_folder, None) as ask:
        began = time.monotonic()
        status, _, _ = ask(request_of().removesuffix(b"\r\n"))
    assert status == 408
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("path", ["/healthz", "/v1/models/ctr:predict"])
def test_without_a_route_it_says_when_to_come_back(short_folder: Path, path: str) -> None:
    with running(short_folder, None) as ask:
        status, headers, body = ask(request_of(path))
    assert (status, headers["retry-after"], headers["content-type"]) == (503, "1", "application/json")
    assert json.loads(body) == {"error": "no model is ready; try again"}


def test_a_replica_that_is_away_may_be_asked_again(short_folder: Path) -> None:
    (nobody,) = free_ports(1)
    with running(short_folder, nobody) as ask:
        for path in ("/v1/models", "/healthz"):
            status, _, _ = ask(request_of(path))
            assert status == 503
        status, _, _ = ask(b"hello?\r\n\r\n")
    assert status == 400


@pytest.mark.parametrize("lost", ["no answer", "half an answer"])
def test_what_a_replica_took_with_it_may_be_sent_again(short_folder: Path, lost: str) -> None:
    """Of a body that HAProxy itself cannot send again."""

    def die(replica: socket.socket) -> None:
        with suppress(OSError):  # the end of the test
            while True:
                with replica.accept()[0] as connection:
                    connection.recv(65536)
                    if lost == "half an answer":
                        connection.sendall(b"HTTP/1.1 200")

    large = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 40000\r\n\r\n" + b"x" * 40_000
    with socket.create_server(("127.0.0.1", 0)) as replica:
        Thread(target=die, args=[replica], daemon=True).start()
        with running(short_folder, replica.getsockname()[1]) as ask:
            status, headers, _ = ask(large)
    assert (status, headers["retry-after"]) == (503, "1")


def test_it_ends_with_the_process_that_started_it(short_folder: Path) -> None:
    """Serve leaves it running if it is killed itself."""
    (port,) = free_ports(1)
    serves_config(short_folder, "127.0.0.1", port, None)
    program = [sys.executable, haproxy.__file__, "-db", "-f", str(short_folder / "haproxy.cfg")]
    starts = f"import subprocess; subprocess.run({program!r}, stderr=subprocess.DEVNULL)"
    with subprocess.Popen([sys.executable, "-c", starts]) as parent:
        wait_until(lambda: running_in(short_folder) is not None)
        parent.kill()
    wait_until(lambda: running_in(short_folder) is None)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


LISTENS = {
    "127.0.0.1": ["127.0.0.1:PORT"],
    "0.0.0.0": ["*:PORT"],
    "::1": ["[::1]:PORT v6only"],
    haproxy.ALL_ADDRESSES: ["[::]:PORT v4v6"],
    "both.test": ["[::1]:PORT v6only", "127.0.0.1:PORT"],
    "six.test": ["[::1]:PORT v6only"],
}


@pytest.mark.parametrize("host", LISTENS)
def test_it_listens_where_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    names = {"both.test": ["::1", "127.0.0.1"], "six.test": ["::1"]}
    monkeypatch.setattr(haproxy, "addresses", lambda name: names.get(name, [name]))
    lines = haproxy.changed(serves_config(tmp_path, host, 8123, 4567, grpc_port=8124)).splitlines()
    found = [line.strip().removeprefix("bind ") for line in lines if re.search(r"bind .*:812[34]", line)]
    expected = [line.replace("PORT", "8123") for line in LISTENS[host]]
    expected += [line.replace("PORT", "8124") + " proto h2" for line in LISTENS[host]]
    assert found == expected
    # The HTTP servers of replicas listen at that address, those of gRPC at all.
    replicas = [line.split()[2] for line in lines if line.split()[:2] == ["server", "replica"]]
    assert replicas == ["[::1]:4567" if host in {"::1", "six.test"} else "127.0.0.1:4567", "127.0.0.1:4567"]


def test_grpc_is_unavailable_rather_than_unknown(tmp_path: Path) -> None:
    none = haproxy.changed(serves_config(tmp_path, "127.0.0.1", 8123, None, grpc_port=8124))
    answers = re.findall(r"grpc-status (\d+)", none.partition("backend default_grpc_backend")[2])
    assert answers == ["14", "14"]
    one = haproxy.changed(serves_config(tmp_path, "127.0.0.1", 8123, 4567, grpc_port=8124))
    assert one.count("check backup") == 1, "only HTTP has a proxy of Serve to fall back on"


def test_an_address_of_another_machine_is_none_of_this_one() -> None:
    assert haproxy.addresses("127.0.0.1") == ["127.0.0.1"]
    with pytest.raises(OSError, match=r"203.0.113.7 is not an address of this machine"):
        haproxy.addresses("203.0.113.7")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", haproxy.ALL_ADDRESSES])
def test_nobody_is_refused_while_it_is_replaced(short_folder: Path, host: str) -> None:
    (port,) = free_ports(1)
    ends, refused = Event(), []
    address = ("::1" if ":" in host else host, port)

    def ask() -> None:
        while not ends.is_set():
            try:
                socket.create_connection(address, timeout=30).close()
            except ConnectionRefusedError:
                refused.append(time.monotonic())

    serves_config(short_folder, host, port, None)
    with started(short_folder) as before:
        (short_folder / "server-state").touch()
        clients = Thread(target=ask)
        clients.start()
        serves_config(short_folder, host, port, None)
        with started(short_folder, "-sf", str(before.pid), "-x", str(short_folder / "admin.sock")):
            before.wait(30)
            ends.set()
            clients.join()
    assert refused == []
