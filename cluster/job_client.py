"""Sends and follows jobs through Ray's job submission API, which is HTTP."""

import asyncio
import logging
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cluster.ray_session import ASKS_FOR_TOKEN
from rayrec.common.errors import UserError
from rayrec.common.machine import proxy_variables
from rayrec.common.process import environment

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

PACKAGES = ("rayrec", "jobs", "tune", "serve", "cluster", "cuda_ops")
"""The code that a job is sent."""
FILES_FOLDER = "files"
"""Folder of the small files that a job is sent."""
_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_STOP_SECONDS = 60
"""How long Ray lets a stopped job tidy up before it kills it; its own default of 3 s is too short for Spark."""
LOST_SECONDS, RESTART_SECONDS = 120, 900
"""How long a cluster that does not answer is asked again: for a lost connection, and for a head that starts anew."""
_NO_AGENT_YET = "No available agent to submit job"
"""Ray's answer, and its advice to try again, while the agents of a cluster's nodes are starting."""
_AGENT_SECONDS = 60
_PATIENCE_SECONDS, _REPEAT_SECONDS = 10.0, 30.0
"""How long a job may take to begin until that is said, and said again."""
_CHATTY = (
    "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging",
)  # fmt: skip


class JobClient:
    """The jobs of one cluster. Every method raises UserError if the cluster does not answer or refuses."""

    def __init__(self, address: str | None = None) -> None:
        """Connect to the cluster at `address`, a dashboard's URL or HOST:PORT; by default the environment's, or here.

        If RAY_AUTH_MODE is `token`, the token is read from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token.
        """
        given = address or next((os.environ[name] for name in _ADDRESS_VARIABLES if os.environ.get(name)), None)
        self.address = given or _DEFAULT_ADDRESS
        from ray.job_submission import JobSubmissionClient

        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        # Ray prefers the variables to the address that it is given.
        with self._user_errors(), environment(dict.fromkeys(_ADDRESS_VARIABLES)):
            self._client = JobSubmissionClient(self.address)
            self.address = self._client.get_address()

    def submit(self, job: str, words: list[str], folder: Path) -> None:
        """Run `words` as the job with the id `job`, in a copy of `folder`, which `job_folder` makes.

        Waits for a cluster whose nodes have only begun to start.
        """
        given_up_at = time.monotonic() + _AGENT_SECONDS
        with self._user_errors():
            variables = {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS)}
            runtime_env = {"working_dir": str(folder), "env_vars": variables}
            while True:
                try:
                    self._client.submit_job(submission_id=job, entrypoint=_entrypoint(words), runtime_env=runtime_env)
                    return
                except RuntimeError as error:
                    if _NO_AGENT_YET not in str(error) or time.monotonic() > given_up_at:
                        raise
                    time.sleep(1.0)

    def follow(self, job: str, show: Callable[[str], None], lost_seconds: float = LOST_SECONDS) -> "JobDetails | None":
        """Pass each line of the job's log to `show`, from the first one on, until the job is over.

        A lost connection is made again for `lost_seconds`, because the job does not depend on it. Ctrl-C leaves the job
        running. None if the cluster does not know the job any more, as after its head was started anew.
        """
        self._wait_for_begin(job, show)
        log = _Log(show)
        lost_at: float | None = None
        while True:
            seen = log.characters
            # The log may end before the job, or be lost with the node that it lies on.
            with suppress(UserError), self._user_errors():
                asyncio.run(log.read(self._client.tail_job_logs(job)))
            try:
                found = self.details(job)
            except UserError:
                now = time.monotonic()
                lost_at = now if lost_at is None or log.characters > seen else lost_at
                if now - lost_at > lost_seconds:
                    raise
            else:
                lost_at = None
                if found is None or found.status.is_terminal():
                    log.finish()
                    return found
            time.sleep(1.0)

    def _wait_for_begin(self, job: str, show: Callable[[str], None]) -> None:
        """Return when a job has begun, or the cluster does not answer; say in time that it has not begun."""
        say_at = time.monotonic() + _PATIENCE_SECONDS
        with suppress(UserError):
            while (found := self.details(job)) is not None and found.status == "PENDING":
                if time.monotonic() > say_at:
                    show(f"job {job} has not started yet: its node is unpacking the code, or has no resources for it")
                    say_at = time.monotonic() + _REPEAT_SECONDS
                time.sleep(1.0)

    def details(self, job: str) -> "JobDetails | None":
        """Return the job as Ray describes it; None if the cluster does not know it any more."""
        with self._user_errors():
            try:
                details: JobDetails = self._client.get_job_info(job)
            except RuntimeError as error:
                if f"Job {job} does not exist" in str(error):
                    return None
                raise
            return details

    def logs(self, job: str) -> str:
        """Return the log so far."""
        with self._user_errors():
            text: str = self._client.get_job_logs(job)
            return text

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Turn what Ray's client raises into one line."""
        import aiohttp
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError:
            raise UserError(f"{self.address}: {ASKS_FOR_TOKEN}") from None
        except (ConnectionError, requests.RequestException, aiohttp.ClientError):
            raise UserError(
                f"{self.address}: no Ray dashboard answers{_through_proxy(self.address)}; give --address "
                "http://HEAD:8265 of a running cluster"
            ) from None
        except RuntimeError as error:
            raise UserError(f"{self.address}{_through_proxy(self.address)}: {' '.join(str(error).split())}") from None


class _Log:
    """The log of a job, shown in whole lines. A new connection begins at its first line; what was shown is skipped."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._rest = ""
        self.characters = 0
        """Characters read so far."""

    async def read(self, pieces: AsyncIterator[str]) -> None:
        skipped = self.characters
        async for piece in pieces:
            text = piece[skipped:]
            skipped = max(0, skipped - len(piece))
            self.characters += len(text)
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._show(line)

    def finish(self) -> None:
        if self._rest:
            self._show(self._rest)


@contextmanager
def job_folder(files: Mapping[str, str]) -> Iterator[Path]:
    """Make a folder that a job can run in: the code of this process, and in files/ the `files` (name -> path here)."""
    not_code = shutil.ignore_patterns("__pycache__")
    with tempfile.TemporaryDirectory(prefix="rayrec-job-") as temporary:
        folder = Path(temporary)
        for package in PACKAGES:
            spec = find_spec(package)
            assert spec is not None and spec.submodule_search_locations, f"{package} is installed with rayrec"
            shutil.copytree(spec.submodule_search_locations[0], folder / package, ignore=not_code)
        for name, source in files.items():
            target = folder / FILES_FOLDER / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        yield folder


def _entrypoint(words: list[str]) -> str:
    """Return the command in a shell whose `python` is that of this process's virtual environment, if the head has it
    too.

    A head that was started by the path of its `ray` has no `python` with Ray in it on its own PATH.
    """
    command = shlex.join(words)
    if sys.prefix == sys.base_prefix:
        return command
    return f'PATH={shlex.quote(str(Path(sys.prefix) / "bin"))}:"$PATH" {command}'


def _through_proxy(address: str) -> str:
    """Say which proxy HTTP to the address goes through, and how it would not; empty if it goes through none."""
    from requests.utils import get_environ_proxies, select_proxy

    url = urlsplit(address if "://" in address else f"http://{address}")
    if url.scheme not in {"http", "https"} or not select_proxy(url.geturl(), get_environ_proxies(url.geturl())):
        return ""
    used = next(name for name in proxy_variables() if name.lower() in {f"{url.scheme}_proxy", "all_proxy"})
    return f" through the proxy of {used}; add {url.hostname} to no_proxy to ask it directly"
