"""A Ray cluster of its own, as `ray start --head` makes it in another shell."""

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from rayrec.common.ports import free_ports

T = TypeVar("T")
RAY = Path(sys.executable).with_name("ray")
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
_NODES = itertools.cycle(range(_PROCESS, 18, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))
"""Numbers of nodes, so that no two have the same address, by which Spark's driver finds its node, or the same ports;
no two of other processes of tests either."""
_WORKER_PORTS = 61_000
"""Above the ports that Linux gives to connections, and so above those that `free_ports` finds."""


@dataclass(frozen=True)
class RayHead:
    """Where a head node is found."""

    address: str
    """What RAY_ADDRESS is set to."""
    dashboard: str
    """URL, at which nothing answers unless the head was started with a dashboard."""
    agent: str
    """URL of the agent of the head's node."""
    pid: int
    """Of `ray start`, whose children Ray's own processes are."""


@contextmanager
def ray_head(
    environment: Mapping[str, str], num_cpus: int = 1, program: Path = RAY, *, dashboard: bool = False
) -> Iterator[RayHead]:
    """A head node that runs for the time of the block; `program` is the `ray` of the environment that it runs in.

    `dashboard`: start what takes jobs and configurations of Serve.
    """
    # Short: names of sockets in it may have a hundred characters.
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    # A node is dead when it has not answered five times. Ray asks every three seconds, unless it is told otherwise.
    environment = {"RAY_health_check_period_ms": "500", **environment}
    head, address, url, agent = _start_head(environment, num_cpus, program, folder, has_dashboard=dashboard)
    try:
        yield RayHead(address, url, agent, head.pid)
    finally:
        _stop(head)
        shutil.rmtree(folder, ignore_errors=True)


def _start_head(
    environment: Mapping[str, str], num_cpus: int, program: Path, folder: Path, *, has_dashboard: bool, tries: int = 2
) -> tuple["subprocess.Popen[bytes]", str, str, str]:
    """The process, its address, dashboard and agent; tried twice if a busy machine is slower than Ray waits for."""
    gcs, dashboard, agent = free_ports(3)
    command = [
        str(program), "start", "--head", "--block", "--disable-usage-stats",
        f"--num-cpus={num_cpus}", f"--temp-dir={folder}", "--object-store-memory=80000000", f"--port={gcs}",
        f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
        f"--include-dashboard={str(has_dashboard).lower()}",
    ]  # fmt: skip
    log = folder / f"head-{tries}.log"
    with log.open("w") as out:
        head = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=dict(environment))
    url = f"http://127.0.0.1:{dashboard}"
    try:
        # Not 127.0.0.1: nodes go by the address that the head has found for itself.
        address = _wait_for(lambda: re.search(rf"--address='([\d.]+:{gcs})'", log.read_text()), head, log)
        if has_dashboard:
            _wait_for(lambda: _answers(f"{url}/api/gcs_healthz"), head, log)
    except AssertionError:
        _stop(head)
        if tries == 1 or not re.search("timed out during startup|Failed to start the dashboard", log.read_text()):
            raise
        return _start_head(environment, num_cpus, program, folder, has_dashboard=has_dashboard, tries=tries - 1)
    return head, address[1], url, f"http://127.0.0.1:{agent}"


@contextmanager
def ray_nodes(
    head: RayHead, environment: Mapping[str, str], count: int, hidden: Path | None = None
) -> Iterator[list[int]]:
    """More nodes of one CPU on this machine for the time of the block; the process ids of their `ray start`.

    `hidden`: a folder that is empty for these nodes, as on other machines; Linux lets root do that, and most others.
    """
    folder = Path(tempfile.mkdtemp(prefix="nodes-"))
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for index, agent in enumerate(free_ports(count)):
            number = next(_NODES)
            ports = _WORKER_PORTS + 250 * number
            command = [
                str(RAY), "start", f"--address={head.address}", f"--node-ip-address=127.0.0.{number + 2}", "--block",
                "--disable-usage-stats", "--num-cpus=1", "--object-store-memory=80000000",
                f"--dashboard-agent-listen-port={agent}", f"--min-worker-port={ports}",
                f"--max-worker-port={ports + 249}",
                "--include-log-monitor=false",  # that of the head reads the logs of all nodes of a machine
            ]  # fmt: skip
            if hidden is not None:
                as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
                mounted = 'mount -t tmpfs none "$0" && exec "$@"'
                command = ["unshare", *as_root, "--mount", "sh", "-c", mounted, str(hidden), *command]
            # One after the other: two at once would choose the same names for their sockets.
            nodes.append(_start_node(command, environment, folder / f"{index}.log"))
        yield [node.pid for node in nodes]
    finally:
        for node in nodes:
            _stop(node)
        shutil.rmtree(folder, ignore_errors=True)


def _start_node(
    command: list[str], environment: Mapping[str, str], log: Path, tries: int = 2
) -> "subprocess.Popen[bytes]":
    """Start a node; a second time where a busy machine is slower than Ray's fixed half minute."""
    with log.open("w") as out:
        node = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=dict(environment))
    try:
        _wait_for(lambda: "Ray runtime started" in log.read_text() or None, node, log)
    except AssertionError:
        _stop(node)
        if tries == 1 or "timed out during startup" not in log.read_text():
            raise
        return _start_node(command, environment, log, tries - 1)
    return node


def runs_on(node: int, title: str) -> bool:
    """Whether a process on the node has `title` in its command line."""
    for process in _processes_of(node):
        with suppress(psutil.NoSuchProcess):
            if title in " ".join(process.cmdline()):
                return True
    return False


def node_of(process: int, nodes: Sequence[int]) -> int:
    """The node on which a process runs."""
    return next(node for node in nodes if process in {member.pid for member in _processes_of(node)})


def drain(head: RayHead, node: int, environment: Mapping[str, str], seconds: int = 3600) -> None:
    """Tell the cluster that a node will be taken away after `seconds`; the node itself goes on."""
    # A raylet's command line has its node's id.
    raylet = next(p for p in _processes_of(node) if p.name() == "raylet")
    (id_,) = [word.partition("=")[2] for word in raylet.cmdline() if word.startswith("--node_id=")]
    command = [
        str(RAY), "drain-node", f"--address={head.address}", f"--node-id={id_}",
        "--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a test", f"--deadline-remaining-seconds={seconds}",
    ]  # fmt: skip
    subprocess.run(command, env=dict(environment), check=True)


def kill_node(node: int) -> None:
    """SIGKILL for a node and all that runs on it, as if its machine were gone."""
    # The node first: it must not tell the cluster of the deaths of its processes.
    for process in _processes_of(node):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _stop(node: "subprocess.Popen[bytes]") -> None:
    """End a node by force: while actors of its own live, Ray takes half a minute to end one as Ctrl-C does."""
    if node.poll() is None:
        kill_node(node.pid)
    node.wait()


def _processes_of(node: int) -> list[psutil.Process]:
    """A node's `ray start`, its raylet and all that runs on the node."""
    return [psutil.Process(node), *psutil.Process(node).children(recursive=True)]


def _wait_for(condition: Callable[[], T | None], head: "subprocess.Popen[bytes]", log: Path) -> T:
    """What `condition` gives once it gives something."""
    deadline = time.monotonic() + 300
    while (found := condition()) is None:
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.5)
    return found


def _answers(url: str) -> bool | None:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except OSError:
        return None
    return True
