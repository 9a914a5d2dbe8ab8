"""Provides a Ray session: on a running cluster if its address is known, otherwise on this machine."""

import logging
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from cluster.java import provide_java
from cluster.machine_limits import require_room, temporary_folder
from cluster.ray_serve import NICENESS, serve_behind_haproxy
from rayrec.common.errors import UserError
from rayrec.common.machine import CPUS_OF_COMMAND, ENVIRONMENT_OF_WORKERS, available_cpus
from rayrec.common.process import environment, interrupts_kept
from rayrec.common.progress import Progress, SilentProgress
from rayrec.common.ray import session_size, waits_shown
from rayrec.internals.ray_core import asks_for_another_token, head_address, hold_messages, shut_down, write_messages
from rayrec.internals.ray_train import POLL_INTERVAL, PREEMPTION_WATCHER, WARN_OF_WAITS

ASKS_FOR_TOKEN = (
    "the Ray cluster asks for a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) to those "
    "of the cluster"
)
logger = logging.getLogger(__name__)

_ANSWER_SECONDS = 5.0
"""How long a cluster's head may take to accept a connection."""
_OF_TRAINING = {POLL_INTERVAL: "0.5", WARN_OF_WAITS: "0", **ENVIRONMENT_OF_WORKERS}
"""Variables of the processes of a session that trains, unless they are set otherwise."""
_OF_THIS_MACHINE = {PREEMPTION_WATCHER: "0"}
"""And where it is on this machine alone: a node that takes the whole run with it needs nobody who waits for its end."""

AnswerT = TypeVar("AnswerT")


@contextmanager
def ray_session(
    meanwhile: Callable[[], object] = lambda: None,
    *,
    serves: Collection[int] | None = None,
    progress: Progress = SilentProgress(),  # noqa: B008 -- it has no state
) -> Iterator[None]:
    """Hold a Ray session during the block; one that this process already has is used and left running.

    RAY_ADDRESS, which Ray sets inside a job, attaches to a cluster. Without it a session is started on this machine,
    with what training in it needs, or a server on the ports `serves`. `meanwhile` is called while the session starts,
    in another thread, with Ray's environment variables set; the block begins when it has returned. `progress` shows
    that a session starts, and what Ray has no room for. Raises what `meanwhile` raises, and UserError if no cluster
    answers at the address or this machine's limits are too low.

    What Ray says of its processes goes to a file among its logs, whose place is said when the block fails by no mistake
    of the user's.
    """
    # Ray and its processes read the environment when they start, so it comes first.
    address = _cluster_address()
    missing = _prepare_environment(local=address is None)
    import ray

    # A command that another one calls works in the other one's session.
    if ray.is_initialized():
        meanwhile()
        yield
        return
    # What Ray says while it starts is held until there is a session, whose logs get it.
    progress.stage("start Ray")
    held = hold_messages()
    with interrupts_kept(), ExitStack() as stack:
        if not address:
            require_room(serves=serves is not None)
            stack.enter_context(serve_behind_haproxy(serves or ()))
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(meanwhile)
            if address:
                attach(address, {**_unset(_OF_TRAINING if serves is None else {}), **missing})
            else:
                _start({**_OF_TRAINING, **_OF_THIS_MACHINE} if serves is None else {})
            stack.callback(shut_down)
            logs = write_messages(held)
            done.result()
        # The block's work; while it waits for room on the cluster, people are told.
        stack.enter_context(waits_shown(progress))
        try:
            yield
        except UserError:
            raise
        except Exception:
            logger.error("Ray's logs are in %s", logs)
            raise


def ask_nodes(question: Callable[[], AnswerT]) -> dict[str, AnswerT]:
    """Return what `question` answers on each node of the Ray session, by the node's id; lost nodes are left out."""
    import ray
    from ray.exceptions import NodeDiedError, TaskUnschedulableError, WorkerCrashedError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote(num_cpus=0)
    def ask() -> AnswerT:
        return question()

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    asked = {
        node: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in nodes
    }
    answers: dict[str, AnswerT] = {}
    for node, answer in asked.items():
        try:
            answers[node] = ray.get(answer)
        except (NodeDiedError, TaskUnschedulableError, WorkerCrashedError):
            continue
    return answers


def all_nodes_see(folder: Path) -> bool:
    """Return whether what this process writes into a folder is there on every node, at the same path."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as file:
        path = Path(file.name)

        def sees() -> bool:
            return path.exists()

        return all(ask_nodes(sees).values())


def has_cluster() -> bool:
    """Return whether work can be given to more than this machine: RAY_ADDRESS names a cluster, or the session has
    nodes.
    """
    return _cluster_address() is not None or session_size()[0] > 1


def _cluster_address() -> str | None:
    address = os.environ.get("RAY_ADDRESS")
    return None if address == "local" else address  # Ray's own word for a new session on this machine


def attach(address: str, missing: dict[str, str]) -> None:
    """Attach to the cluster at `address`, whose processes get the environment variables `missing`.

    Raises UserError if none answers there, or if it asks for a token that this process does not have.
    """
    import ray
    from ray.exceptions import AuthenticationError

    # Processes of a cluster have the environment of `ray start`, not that of this process.
    runtime_env = {"env_vars": missing} if missing else None
    try:
        # Ray itself would ask a head that is gone, or that refuses its token, again and again.
        host, port = head_address(address)
        socket.create_connection((host, port), timeout=_ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        raise _no_answer(address, error) from error
    try:
        if asks_for_another_token(host, port, _ANSWER_SECONDS):
            raise UserError(f"RAY_ADDRESS={address}: {ASKS_FOR_TOKEN}")
        ray.init(address=address, runtime_env=runtime_env, logging_level=logging.WARNING, log_to_driver=False)
    except AuthenticationError:
        raise UserError(f"RAY_ADDRESS={address}: {ASKS_FOR_TOKEN}") from None
    except ConnectionError as error:
        raise _no_answer(address, error) from error


def _no_answer(address: str, error: Exception) -> UserError:
    return UserError(
        f"RAY_ADDRESS={address}: no Ray cluster answers ({error}); start it with `RAY_AUTH_MODE=token ray start "
        "--head`, correct the address, or unset RAY_ADDRESS to use this machine alone"
    )


def _start(variables: Mapping[str, str]) -> None:
    """Start Ray on this machine; try again if the machine is so busy that Ray's fixed half minute is too short.

    Ray's processes have the `variables` that are not set otherwise; this process does not keep them.
    Somebody waits for their work, so they stand back behind no others.

    It declares more CPUs than it may use, because the steps of a pipeline mostly wait for each other, and a step
    without a CPU would wait forever.
    """
    import ray

    cpus = available_cpus()
    variables = {NICENESS: "0", CPUS_OF_COMMAND: str(cpus), **variables}
    with environment(_unset(variables)):
        for is_last in (False, True):
            try:
                ray.init(
                    num_cpus=max(8, 4 * cpus),
                    include_dashboard=False,
                    logging_level=logging.WARNING,
                    log_to_driver=False,
                )
                return
            except Exception as error:
                if is_last or "timed out during startup" not in str(error):
                    raise
                shut_down()


def _unset(variables: Mapping[str, str]) -> dict[str, str]:
    """Return those of the variables that this process's environment does not have: what the user has set stands."""
    return {name: value for name, value in variables.items() if name not in os.environ}


_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Reader V2 of Ray Data was several times slower than V1 (benchmarks/ingest.py).
    "RAY_DATA_USE_DATASOURCE_V2": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}
_NO_PROXY, _ALL_ADDRESSES = "no_grpc_proxy", "0.0.0.0/0,::/0,localhost"
"""Hosts that gRPC asks without the proxies of the environment: Ray's processes know each other by their addresses. Ray
itself passes by proxies, but not the library through which its processes hand in their metrics."""


def _prepare_environment(local: bool) -> dict[str, str]:
    """Set the environment that Ray's processes inherit; return the new variables. Must run before Ray is imported.

    Ray reads the authentication mode when it is imported.
    """
    before = dict(os.environ)
    # Workers must find the driver's Python interpreter.
    interpreter = str(Path(sys.executable).parent)
    if interpreter not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = f"{interpreter}{os.pathsep}{os.environ.get('PATH', '')}"
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    given = os.environ.get(_NO_PROXY, "")
    if not given.endswith(_ALL_ADDRESSES):
        os.environ[_NO_PROXY] = f"{given},{_ALL_ADDRESSES}".removeprefix(",")
    provide_java()
    if local:
        os.environ.setdefault("RAY_TMPDIR", str(temporary_folder()))
    if local and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        # Only this session knows the token, so other users of the machine cannot control its Ray.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    missing = {name: value for name, value in os.environ.items() if before.get(name) != value}
    if "PATH" in missing:
        # Only the new part: the rest belongs to each node.
        missing["PATH"] = f"{missing['PATH'].removesuffix(before.get('PATH', ''))}${{PATH}}"
    return missing
