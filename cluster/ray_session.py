"""Provides a Ray session: on a running cluster if its address is known, otherwise on this machine."""

import logging
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster.java import provide_java
from cluster.ray_serve import serve_behind_haproxy
from rayrec.common.errors import UserError


@contextmanager
def ray_session(address: str | None = None, num_cpus: int | None = None) -> Iterator[None]:
    """Hold a Ray session during the block; one that this process already has is used and left running.

    `address` (or RAY_ADDRESS, which Ray sets inside a job) attaches to a cluster. Without one a session is started on
    this machine with `num_cpus` logical CPUs. The default is more than the machine has cores, because the steps of a
    pipeline mostly wait for each other, and a step without a CPU would wait forever.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    missing = _prepare_environment(local=address is None)
    import ray

    if ray.is_initialized():
        yield
        return
    with ExitStack() as stack:
        if address:
            _attach(address, missing)
        else:
            stack.enter_context(serve_behind_haproxy())
            _start(num_cpus or max(8, 4 * (os.cpu_count() or 1)))
        stack.callback(ray.shutdown)
        yield


def _attach(address: str, missing: dict[str, str]) -> None:
    import ray

    # Processes of a cluster have the environment of `ray start`, not that of this process.
    runtime_env = {"env_vars": missing} if missing else None
    try:
        ray.init(address=address, runtime_env=runtime_env, logging_level=logging.WARNING, log_to_driver=False)
    except ConnectionError:
        raise UserError(f"no Ray cluster answers at {address}; check --address or RAY_ADDRESS") from None


def _start(num_cpus: int) -> None:
    """Start Ray on this machine; try again if the machine is so busy that Ray's fixed half minute is too short."""
    import ray

    def start() -> None:
        ray.init(num_cpus=num_cpus, include_dashboard=True, logging_level=logging.WARNING, log_to_driver=False)

    try:
        start()
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        ray.shutdown()
        start()


_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Reader V2 of Ray Data was several times slower than V1 (benchmarks/ingest.py).
    "RAY_DATA_USE_DATASOURCE_V2": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "PYTHONWARNINGS": "ignore",
}


def _prepare_environment(local: bool) -> dict[str, str]:
    """Set the environment that Ray's processes inherit; returns the new variables. Must run before Ray is imported.

    Ray reads the authentication mode when it is imported.
    """
    before = dict(os.environ)
    # Workers must find the driver's Python interpreter.
    interpreter = str(Path(sys.executable).parent)
    if interpreter not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = f"{interpreter}{os.pathsep}{os.environ.get('PATH', '')}"
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    provide_java()
    if local and "RAY_AUTH_MODE" not in os.environ and "ray" not in sys.modules:
        # Only this session knows the token, so other users of the machine cannot control its Ray.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    missing = {name: value for name, value in os.environ.items() if before.get(name) != value}
    if "PATH" in missing:
        # Only the new part: the rest belongs to each node.
        missing["PATH"] = f"{missing['PATH'].removesuffix(before.get('PATH', ''))}${{PATH}}"
    return missing
