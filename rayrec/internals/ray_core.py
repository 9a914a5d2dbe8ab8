"""Private parts of Ray: the head at an address, the session of this process, what is said in it, reserved resources."""

import logging
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

JAVA_LIBRARY = "libcore_worker_library_java.so"
"""Java processes that use Ray unpack this file of 41 MB and leave it; those that Ray starts share a session's copy."""
JAVA_DRIVERS = Path("/tmp/ray")
"""Java processes that Ray did not start, as Spark's first one, put their copies into folders of this one."""
_MOST_HELD = 1_000
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def head_address(address: str) -> tuple[str, int]:
    """Host and port of the head that `address` (HOST:PORT, or auto) stands for.

    Raises ConnectionError if `auto` finds no cluster, ValueError if it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    host, _, port = canonicalize_bootstrap_address_or_die(address.removeprefix("ray://")).rpartition(":")
    return host.strip("[]"), int(port)


def asks_for_another_token(host: str, port: int, timeout: float) -> bool:
    """Return whether the head refuses the token of this process's environment, or asks for one where there is none.

    False also if the head gives no answer within `timeout` seconds.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated.gcs_service_pb2 import GetClusterIdRequest
    from ray.core.generated.gcs_service_pb2_grpc import NodeInfoGcsServiceStub

    with init_grpc_channel(f"{host}:{port}") as channel:
        try:
            NodeInfoGcsServiceStub(channel).GetClusterId(GetClusterIdRequest(), timeout=timeout)
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


@contextmanager
def new_token() -> Iterator[None]:
    """Have this process, and those that it starts during the block, use and ask for a token that nobody else has.

    Ray reads the variables once, when it is imported or first needs the token.
    """
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    def read_variables() -> None:
        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()

    before = {name: os.environ.pop(name) for name in _TOKEN_VARIABLES if name in os.environ}
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    read_variables()
    try:
        yield
    finally:
        for name in _TOKEN_VARIABLES:
            os.environ.pop(name, None)
        os.environ |= before
        read_variables()


def own_session_environment() -> dict[str, str] | None:
    """Return the variables that the processes of the Ray session inherit; None if another process has started the
    session.
    """
    import psutil

    node = _own_head()
    return None if node is None else psutil.Process(node.all_processes["raylet"][0].process.pid).environ()


def note(key: str, value: bytes, *, overwrite: bool = False) -> None:
    """Write a value where all processes of the Ray session find it; if the key has one, only to `overwrite` it."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(key, value, overwrite=overwrite)


def read_note(key: str) -> bytes | None:
    """Return the value of a key of the Ray session."""
    from ray.experimental.internal_kv import _internal_kv_get

    value: bytes | None = _internal_kv_get(key)
    return value


def notes(prefix: str) -> Iterator[tuple[str, bytes]]:
    """Yield the keys of the Ray session that begin with `prefix`, with their values."""
    from ray.experimental.internal_kv import _internal_kv_list

    for key in _internal_kv_list(prefix):
        name = key.decode()
        if (value := read_note(name)) is not None:
            yield name, value


def remove_note(key: str) -> None:
    """Remove a key of the Ray session."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(key)


def shut_down() -> None:
    """Leave the Ray session, and end it if this process has started it; the library for Java goes with it."""
    import ray

    node = _own_head()
    if node is not None:
        # Of all processes the one that looks after a cluster's size does not heed a signal, and Ray waits for a second.
        node._kill_process_type("monitor", check_alive=False)
    ray.shutdown()
    if node is not None:
        (Path(node.get_session_dir_path()) / JAVA_LIBRARY).unlink(missing_ok=True)


def remove_java_libraries() -> None:
    """Remove the copies of Ray's library that Java processes have left on this machine.

    A process loads its copy as soon as it is there, and no longer needs the file then. Copies of the last minute stay,
    as they may not have been loaded yet.
    """
    for copy in JAVA_DRIVERS.glob(f"[0-9]*/{JAVA_LIBRARY}"):
        with suppress(OSError):  # it is another user's, or another process has removed it
            if time.time() - copy.stat().st_mtime > 60:
                shutil.rmtree(copy.parent)


def hold_messages() -> MemoryHandler:
    """Hold what Ray tells this process, as that many workers run or that one died, which it would print.

    Errors are raised all the same. What is still held when the process ends goes to stderr.
    """
    import ray

    logger = logging.getLogger("ray")
    for other in logger.handlers[:]:
        logger.removeHandler(other)
        other.close()
    held = MemoryHandler(_MOST_HELD, flushLevel=sys.maxsize, target=logging.StreamHandler())
    logger.addHandler(held)

    def hold(data: dict[str, Any], ignore_prefix: bool) -> None:
        logger.warning("%s: %s", data["pid"], "\n".join(data["lines"]))

    ray._private.worker.print_to_stdstream = hold
    return held


def write_messages(held: MemoryHandler) -> Path:
    """Write what is held, and what comes from now on, to a file among the logs of the Ray session; their folder."""
    import ray

    folder = Path(ray._private.worker._global_node.get_logs_dir_path())
    file = logging.FileHandler(folder / f"rayrec-{os.getpid()}.log", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    held.setTarget(file)
    held.close()
    logger = logging.getLogger("ray")
    logger.removeHandler(held)
    logger.addHandler(file)
    return folder


def _own_head() -> Any:
    """Return Ray's record of the processes that this process has started as the head of a session; None if there are
    none.
    """
    import ray

    node = ray._private.worker._global_node
    return node if node is not None and node.is_head() else None


class Reservations:
    """The placement groups of a run, as a detached actor, with which Ray removes them; it ends when the run does.

    It is here because the workers wait for its process, which need not import Ray Train.
    """

    def __init__(self, controller: str) -> None:
        """`controller`: the id of the run's controller, in hexadecimal."""
        threading.Thread(target=self._end_with, args=(controller,), daemon=True).start()

    def reserve(self, bundles: list[dict[str, float]], strategy: str) -> Any:
        """Return a new placement group of these resources."""
        from ray.util.placement_group import placement_group

        return placement_group(bundles, strategy)

    def _end_with(self, controller: str) -> None:
        import ray
        from ray._private.state import actors

        is_dead = False
        while not is_dead:
            time.sleep(1)
            with suppress(Exception):  # the cluster's head does not answer for a while
                is_dead = actors(controller).get("State") == "DEAD"
        ray.kill(ray.get_runtime_context().current_actor)
