"""Ray on a machine whose environment names a proxy that answers nothing."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cluster.local_cluster import ray_head
from tests.environments import environment_of_open_cluster, environment_without_cluster

PUBLISH = """
import time
from cluster.ray_session import ray_session
with ray_session(serves=()):
    from ray.util.metrics import Gauge
    from serve.metrics import of_all_nodes
    gauge = Gauge("rayrec_behind_a_proxy", "Of a test.")
    deadline = time.monotonic() + 60
    while not (text := of_all_nodes()) and time.monotonic() < deadline:
        gauge.set(7)
        time.sleep(1)
    print(text.decode())
"""
pytestmark = pytest.mark.minutes
CLOUDS = (b"169.254.169.254", b"metadata.google.internal")
"""Where Ray looks whether it runs in a cloud."""


class Proxy:
    """A proxy that notes what it is asked for, and refuses it."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.asked: list[bytes] = []

    def refuse(self) -> None:
        """Answer until the socket is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection, suppress(OSError):
                    connection.settimeout(5)
                    line = connection.recv(4096).split(b"\r\n")[0]
                    if not any(cloud in line for cloud in CLOUDS):
                        self.asked.append(line)
                    connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = Proxy(listening)
        thread = threading.Thread(target=proxy.refuse)
        thread.start()
        yield proxy
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_metrics_of_a_session_are_published(proxy: Proxy) -> None:
    environment = environment_without_cluster() | dict.fromkeys(("https_proxy", "HTTP_PROXY", "ALL_PROXY"), proxy.url)
    done = subprocess.run([sys.executable, "-c", PUBLISH], env=environment, capture_output=True, text=True, check=True)
    assert "ray_rayrec_behind_a_proxy{" in done.stdout, done.stderr
    assert proxy.asked == []


def test_a_job_is_sent_and_followed(proxy: Proxy, tmp_path: Path) -> None:
    """To a cluster that was started behind the proxy, too."""
    environment = environment_of_open_cluster() | dict.fromkeys(("http_proxy", "all_proxy"), proxy.url)
    command = ["-m", "jobs.submit", "generate", "criteo", "--rows", "7", "--output", str(tmp_path / "rows")]
    with ray_head(environment, dashboard=True) as head:
        command += ["--address", head.dashboard]
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "rows").iterdir())) > 0
    assert [line for line in proxy.asked if b"/api/" in line] == []
