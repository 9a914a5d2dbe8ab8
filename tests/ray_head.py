"""A Ray cluster of its own, as `ray start --head` makes it in another shell."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RayHead:
    """Where a head node answers."""

    url: str
    """Of its dashboard, for jobs and Serve's declarative interface."""
    address: str
    """For drivers (RAY_ADDRESS)."""


@contextmanager
def ray_head(environment: Mapping[str, str], num_cpus: int = 1) -> Iterator[RayHead]:
    """A head node that runs for the time of the block."""
    # Short: names of sockets in it may have a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    gcs, dashboard, agent = free_ports(3)
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats",
        f"--num-cpus={num_cpus}", f"--temp-dir={folder}", "--object-store-memory=80000000", f"--port={gcs}",
        f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
    ]  # fmt: skip
    log = folder / "head.log"
    with log.open("w") as out:
        head = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=dict(environment))
    try:
        url = f"http://127.0.0.1:{dashboard}"
        _wait_for_answer(url, head, log)
        yield RayHead(url, f"127.0.0.1:{gcs}")
    finally:
        head.terminate()
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_answer(url: str, head: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{url}/api/gcs_healthz", timeout=5).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            assert head.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
