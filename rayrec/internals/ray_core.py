"""Private parts of Ray: its head and tokens, notes in a session, the session's end, its messages, and its free room."""

import logging
import os
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

JAVA_LIBRARY = "libcore_worker_library_java.so"
"""Java processes that use Ray unpack this file of 41 MB and leave it; those that Ray starts share a session's copy."""
JAVA_DRIVERS = Path("/tmp/ray")
"""Java processes that Ray did not start, as Spark's first one, put their copies into folders of this one."""
_MOST_HELD = 1_000
_TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")

Resources = tuple[tuple[str, float], ...]
"""Amounts by name, in the order of the names."""


def head_address(address: str) -> tuple[str, int]:
    """Return host and port of the head that `address` (HOST:PORT, or auto) stands for.

    With them a command asks once whether anybody is there; Ray would ask for minutes, and end in a traceback. Raises
    ConnectionError if `auto` finds no cluster, ValueError if it is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address_or_die

    host, _, port = canonicalize_bootstrap_address_or_die(address.removeprefix("ray://")).rpartition(":")
    return host.strip("[]"), int(port)


def asks_for_another_token(host: str, port: int, timeout: float) -> bool:
    """Return whether the head refuses the token of this process's environment, or asks for one where there is none.

    Ray itself would go on to ask a head that refuses it. False also if the head gives no answer within `timeout`
    seconds.
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

    Ray reads the variables once, when it is imported or first needs the token; without the private parts a process
    could not start a second cluster with a token of its own.
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


def note(key: str, value: bytes, *, overwrite: bool = False) -> None:
    """Write a value where all processes of the Ray session find it; if the key has one, only to `overwrite` it.

    Ray keeps the notes in its head. An actor that kept them would be one more process, which takes seconds to start.
    """
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

    node = ray._private.worker._global_node
    ray.shutdown()
    if node is not None and node.is_head():
        (Path(node.get_session_dir_path()) / JAVA_LIBRARY).unlink(missing_ok=True)


def remove_java_libraries() -> None:
    """Remove the copies of Ray's library that Java processes have left on this machine: 41 MB of each use of Spark.

    A process loads its copy as soon as it is there, and no longer needs the file then. Copies of the last minute stay,
    as they may not have been loaded yet.
    """
    for copy in JAVA_DRIVERS.glob(f"[0-9]*/{JAVA_LIBRARY}"):
        with suppress(OSError):  # it is another user's, or another process has removed it
            if time.time() - copy.stat().st_mtime > 60:
                shutil.rmtree(copy.parent)


def hold_messages() -> MemoryHandler:
    """Hold back what Ray would print in this process: warnings, and messages of tasks and actors that died.

    They would stand between the lines of the command's progress, also where Ray starts a process again and all is well;
    errors are raised all the same. What is still held when the process ends goes to stderr.
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
    """Write what is held, and what comes from now on, to a file among the Ray session's logs; return their folder."""
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


@dataclass(frozen=True)
class Room:
    """The state of a cluster."""

    nodes: Mapping[str, str]
    """Address by id, of the nodes that live."""
    free: Mapping[str, float]
    """What nobody has taken, over all nodes, by resource."""
    waiting: tuple[tuple[int, Resources], ...] = ()
    """Workers (actors, and bundles of placement groups) of this process's job that have no place: how many, and the
    resources of each."""


def look_for_room(timeout: float) -> Room:
    """Ask the head of the Ray session, which may take `timeout` seconds, for what it has no room for.

    Without this a command waits for CPUs without a word. Raises errors of Ray.
    """
    import ray
    from ray.core.generated.autoscaler_pb2 import GetClusterResourceStateReply, NodeStatus

    reply = GetClusterResourceStateReply()
    reply.ParseFromString(ray._private.worker.global_worker.gcs_client.get_cluster_resource_state(timeout_s=timeout))
    state = reply.cluster_resource_state
    alive = [node for node in state.node_states if node.status != NodeStatus.DEAD]
    job = ray.get_runtime_context().get_job_id()
    waiting: Counter[Resources] = Counter()
    for gang in state.pending_gang_resource_requests:
        # The id of the placement group, which ends with that of its job, its strategy and its state.
        if gang.details.partition(":")[0].endswith(job):
            waiting.update(_resources(request.resources_bundle) for request in gang.requests)
    # Ray does not say whose other requests are. Some fit a node: their processes are just being started.
    others: Counter[Resources] = Counter()
    for pending in state.pending_resource_requests:
        wanted = _resources(pending.request.resources_bundle)
        if not any(_fits(wanted, node.available_resources) for node in alive):
            others[wanted] += pending.count
    if others and _has_actors_without_a_place(job):
        waiting += others
    return Room(
        nodes={node.node_id.hex(): node.node_ip_address for node in alive},
        free=_sum(node.available_resources for node in alive),
        waiting=tuple((count, wanted) for wanted, count in waiting.items()),
    )


def _resources(bundle: Mapping[str, float]) -> Resources:
    return tuple(sorted((name, amount) for name, amount in bundle.items() if amount))


def _fits(wanted: Resources, available: Mapping[str, float]) -> bool:
    return all(available.get(name, 0.0) >= amount for name, amount in wanted)


def _sum(resources: Iterable[Mapping[str, float]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for of_node in resources:
        for name, amount in of_node.items():
            totals[name] = totals.get(name, 0.0) + amount
    return totals


def _has_actors_without_a_place(job: str) -> bool:
    from ray import JobID
    from ray._private.state import state

    return any(state.actor_table(None, JobID.from_hex(job), name) for name in ("PENDING_CREATION", "RESTARTING"))
