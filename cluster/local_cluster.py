"""A Ray cluster of nodes on this machine: each is `ray start`, with a folder, an address and ports of its own.

Nodes that share a folder disturb each other: the second node's agent unpacks the code of a job anew, while processes of
the first one import it.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.java import provide_java
from cluster.ray_serve import NICENESS
from rayrec.common.errors import UserError
from rayrec.common.machine import free_ports
from rayrec.internals.ray_core import new_token

RAY = Path(sys.executable).with_name("ray")
_ADDRESSES = itertools.cycle(f"127.0.0.{number}" for number in range(2, 255))
"""Address for nodes that join a head: Spark's driver finds its node by the address."""
_WORKER_PORTS = 200
"""Ports that a node gives to its workers: nodes that choose from the same ones take some of them twice."""
_STARTED = "To terminate the Ray runtime"
_TOO_BUSY = re.compile("timed out during startup|Failed to start the dashboard")
"""What `ray start` says where a busy machine is slower than its fixed half minute."""
_START_SECONDS = 300


@dataclass(frozen=True)
class RayHead:
    """Addresses of a head node."""

    address: str
    """The cluster's, to which RAY_ADDRESS is set."""
    dashboard: str
    """URL, at which nothing answers unless the head was started with a dashboard."""
    agent: str
    """URL of the agent of the head's node."""
    pid: int
    """Process of `ray start`, the parent of Ray's own processes."""


@contextmanager
def ray_head(
    environment: Mapping[str, str],
    num_cpus: int = 1,
    program: Path = RAY,
    *,
    dashboard: bool = False,
    logs: Path | None = None,
) -> Iterator[RayHead]:
    """Run a head node during the block; `program` is the `ray` of the environment that it runs in.

    `dashboard`: start what takes jobs and configurations of Serve. `logs`: a new folder for Ray's logs, which are
    removed otherwise. Raises UserError if the node does not start.
    """
    gcs, port, agent = free_ports(3)
    words = [
        str(program), "start", "--head", f"--num-cpus={num_cpus}", f"--port={gcs}", f"--dashboard-port={port}",
        f"--dashboard-agent-listen-port={agent}", f"--include-dashboard={str(dashboard).lower()}",
    ]  # fmt: skip
    # A node is dead when it has not answered five times. Ray asks every three seconds, unless it is told otherwise.
    with _running(words, {"RAY_health_check_period_ms": "500", **environment}, logs) as (node, log):
        # Not 127.0.0.1: nodes go by the address that the head has found for itself.
        address = re.search(rf"--address='([\d.]+:{gcs})'", log.read_text())
        assert address is not None, log.read_text()
        url = f"http://127.0.0.1:{port}"
        if dashboard:
            _wait_until(lambda: _answers(f"{url}/api/gcs_healthz"), node, log)
        yield RayHead(address[1], url, f"http://127.0.0.1:{agent}", node.pid)


@contextmanager
def ray_nodes(
    head: RayHead,
    environment: Mapping[str, str],
    count: int,
    *,
    within: Sequence[str] = (),
    logs: Path | None = None,
) -> Iterator[list[int]]:
    """Add nodes of one CPU to a head's cluster during the block; the process ids of their `ray start`.

    `within`: the words of a command that runs `ray start`, where a node has to see the machine otherwise. `logs`: a new
    folder for Ray's logs, by node, which are removed otherwise. Raises UserError if a node does not start.
    """
    with ExitStack() as stack:
        pids = []
        for number in range(count):
            agent, *ports = free_ports(1 + _WORKER_PORTS)
            words = [
                *within, str(RAY), "start", f"--address={head.address}", f"--node-ip-address={next(_ADDRESSES)}",
                "--num-cpus=1", f"--dashboard-agent-listen-port={agent}",
                f"--worker-port-list={','.join(map(str, ports))}",
            ]  # fmt: skip
            of_node = None if logs is None else logs / str(number)
            node, _ = stack.enter_context(_running(words, environment, of_node))
            pids.append(node.pid)
        yield pids


@contextmanager
def two_nodes(logs: Path) -> Iterator[RayHead]:
    """Run a cluster of two nodes of one CPU during the block, to which this process can send jobs.

    It has Java for Spark, and asks for a token that this process and its children alone have. `logs`: a new folder for
    Ray's logs.
    """
    provide_java()
    with new_token():
        # Somebody waits for the work, so it stands back behind no other process.
        environment = {NICENESS: "0", **os.environ}
        environment.pop("RAY_ADDRESS", None)
        with (
            ray_head(environment, dashboard=True, logs=logs / "head") as head,
            ray_nodes(head, environment, 1, logs=logs / "nodes"),
        ):
            yield head


def kill_node(node: int) -> None:
    """SIGKILL for a node's `ray start` and all that runs on the node, as if its machine were gone."""
    # The node first: it must not tell the cluster of the deaths of its processes.
    for process in processes_of(node):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def processes_of(node: int) -> list[psutil.Process]:
    """Return a node's `ray start`, its raylet and all that runs on the node."""
    return [psutil.Process(node), *psutil.Process(node).children(recursive=True)]


@contextmanager
def _running(
    words: Sequence[str], environment: Mapping[str, str], logs: Path | None
) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
    """Run `ray start` during the block, in a new folder; the process, and the file with what it says."""
    # In /tmp, since the path of a socket in it may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    log = folder / "ray-start.log"
    command = [
        *words, "--block", "--disable-usage-stats", "--include-log-monitor=false", f"--temp-dir={folder}",
        "--object-store-memory=80000000",  # little more than the least that Ray takes: nodes share this machine
    ]  # fmt: skip
    node: subprocess.Popen[bytes] | None = None
    try:
        # Start it, once more if the machine was only too busy; the node runs until the block ends.
        for may_try_again in (True, False):
            with log.open("w") as out:
                # A session of its own: Ctrl-C in a terminal is for this process, which then ends the node.
                node = subprocess.Popen(command, stdout=out, stderr=out, env=dict(environment), start_new_session=True)
            try:
                _wait_until(lambda: _STARTED in log.read_text(), node, log)
                break
            except UserError:
                if not may_try_again or not _TOO_BUSY.search(log.read_text()):
                    raise
                _end(node)
        assert node is not None
        yield node, log
    finally:
        if node is not None:
            _end(node)
        if logs is not None and (written := folder / "session_latest" / "logs").is_dir():
            shutil.copytree(written, logs, ignore_dangling_symlinks=True)
        shutil.rmtree(folder, ignore_errors=True)


def _end(node: "subprocess.Popen[bytes]") -> None:
    """End a node by force: while actors of its own live, Ray takes half a minute to end one as Ctrl-C does."""
    if node.poll() is None:
        kill_node(node.pid)
    node.wait()


def _wait_until(condition: Callable[[], bool], node: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for a condition. Raises UserError, with what `ray start` has said, if the node ends or minutes pass."""
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if node.poll() is not None or time.monotonic() > deadline:
            raise UserError(f"cannot start a Ray node on this machine: {' '.join(log.read_text().split())}")
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return False
    return True
