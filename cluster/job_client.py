"""Ray's job submission API: jobs are sent, followed, asked after and stopped over HTTP."""

import asyncio
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rayrec.common.errors import UserError

if TYPE_CHECKING:
    from ray.job_submission import JobDetails

_ADDRESS_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_DEFAULT_ADDRESS = "http://127.0.0.1:8265"
_STOP_SECONDS = 60
"""How long Ray lets a stopped job tidy up before it kills it; its own default of 3 s is too short for Spark."""
_CHATTY = (
    "ray.dashboard.modules.job.sdk", "ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging",
)  # fmt: skip
_LOST_SECONDS = 120
"""How long a cluster that does not answer is asked again while a job is followed."""

_NO_AGENT_YET = "No available agent to submit job"
"""Ray's answer, and its advice to try again, while the agents of a cluster's nodes are starting."""
_AGENT_SECONDS = 60


@dataclass(frozen=True)
class EntrypointResources:
    """What Ray reserves for the command itself, beyond what it asks for in its tasks; None: nothing."""

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    """Bytes."""
    custom: Mapping[str, float] | None = None


@dataclass(frozen=True)
class JobState:
    """A job as the cluster knows it."""

    job: str
    """The submission id."""
    status: str
    """PENDING, RUNNING, STOPPED, SUCCEEDED or FAILED."""
    entrypoint: str
    message: str
    metadata: dict[str, str]
    exit_code: int | None
    """Of the command, negative where a signal ended it; None while it runs, and where it never began or was stopped."""
    started: float | None
    """Seconds since the epoch."""
    ended: float | None

    @property
    def is_over(self) -> bool:
        return self.status in {"STOPPED", "SUCCEEDED", "FAILED"}

    @property
    def seconds(self) -> float | None:
        """How long it has been there."""
        return None if self.started is None else (self.ended or time.time()) - self.started


class JobClient:
    """The jobs of one cluster. Every method raises UserError where the cluster does not answer or refuses."""

    def __init__(self, address: str | None = None) -> None:
        """`address`: URL of the dashboard, or HOST:PORT of the cluster; by default that of the environment, or here.

        A token is taken from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token where RAY_AUTH_MODE is `token`.
        """
        given = address or next((os.environ[name] for name in _ADDRESS_VARIABLES if os.environ.get(name)), None)
        self.address = given or _DEFAULT_ADDRESS
        from ray.job_submission import JobSubmissionClient

        for name in _CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        with self._user_errors(), _without(_ADDRESS_VARIABLES):
            self._client = JobSubmissionClient(self.address)
            self.address = self._client.get_address()

    def submit(
        self, job: str, entrypoint: str, folder: Path, metadata: Mapping[str, str], resources: EntrypointResources
    ) -> None:
        """Send `folder` and run `entrypoint` in it as the job of the id `job`.

        A cluster whose nodes have only begun to start is waited for.
        """
        submit = partial(
            self._client.submit_job,
            submission_id=job,
            entrypoint=_with_interpreter(entrypoint),
            runtime_env={
                "working_dir": str(folder),
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS)},
            },
            metadata=dict(metadata),
            entrypoint_num_cpus=resources.num_cpus,
            entrypoint_num_gpus=resources.num_gpus,
            entrypoint_memory=resources.memory,
            entrypoint_resources=dict(resources.custom) if resources.custom else None,
        )
        given_up_at = time.monotonic() + _AGENT_SECONDS
        with self._user_errors():
            while True:
                try:
                    submit()
                    return
                except RuntimeError as error:
                    if _NO_AGENT_YET not in str(error) or time.monotonic() > given_up_at:
                        raise
                    time.sleep(1.0)

    def follow(self, job: str, show: Callable[[str], None]) -> JobState:
        """Pass each line of the job's log to `show`, from the first one on, until the job is over.

        A lost connection is made again: the job does not depend on it. Ctrl-C leaves the job as it is.
        """
        lines = _Lines(show)
        lost_at: float | None = None
        while True:
            try:
                seen = lines.characters
                with self._user_errors():
                    asyncio.run(self._tail(job, lines))
                    state = self.state(job)
            except UserError:
                now = time.monotonic()
                lost_at = now if lost_at is None or lines.characters > seen else lost_at
                if now - lost_at > _LOST_SECONDS:
                    raise
            else:
                lost_at = None
                if state.is_over:
                    lines.finish()
                    return state
            time.sleep(1.0)

    async def _tail(self, job: str, lines: "_Lines") -> None:
        """Read the log that there is and what is added to it; the server ends it when the job is over, or before."""
        skipped = lines.characters
        async for text in self._client.tail_job_logs(job):
            lines.add(text[skipped:])
            skipped = max(0, skipped - len(text))

    def logs(self, job: str) -> str:
        """The log so far."""
        with self._user_errors():
            text: str = self._client.get_job_logs(job)
            return text

    def state(self, job: str) -> JobState:
        with self._user_errors():
            return _state(self._client.get_job_info(job))

    def jobs(self) -> list[JobState]:
        """All submitted jobs that the cluster remembers, the newest first."""
        with self._user_errors():
            found = [_state(details) for details in self._client.list_jobs() if details.submission_id]
        return sorted(found, key=lambda state: state.started or 0.0, reverse=True)

    def stop(self, job: str) -> JobState:
        """Ask the job to stop as Ctrl-C would, and wait until it is over; one that is over stays as it is."""
        with self._user_errors():
            self._client.stop_job(job)
            while not (state := self.state(job)).is_over:
                time.sleep(0.5)
        return state

    @contextmanager
    def _user_errors(self) -> Iterator[None]:
        """Turn what Ray's client raises into one line."""
        import aiohttp
        import requests
        from ray.exceptions import AuthenticationError

        try:
            yield
        except UserError:
            raise
        except AuthenticationError:
            raise UserError(
                f"{self.address}: the cluster asks for a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or "
                "RAY_AUTH_TOKEN_PATH) to those of the cluster"
            ) from None
        except (ConnectionError, requests.RequestException, aiohttp.ClientError):
            raise UserError(
                f"{self.address}: no Ray dashboard answers; give --address http://HEAD:8265 of a running cluster"
            ) from None
        except RuntimeError as error:
            self._refused(error)

    def _refused(self, error: RuntimeError) -> NoReturn:
        text = " ".join(str(error).split())
        if "status code 404" in text and "job" in text.lower():
            raise UserError(f"{self.address}: no such job; `rayrec jobs list` shows those that there are") from None
        raise UserError(f"{self.address}: {text}") from None


class _Lines:
    """Whole lines out of pieces of text."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._rest = ""
        self.characters = 0
        """Of all pieces so far."""

    def add(self, text: str) -> None:
        self.characters += len(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._show(line)

    def finish(self) -> None:
        if self._rest:
            self._show(self._rest)
            self._rest = ""


def _state(details: "JobDetails") -> JobState:
    def seconds(milliseconds: int | None) -> float | None:
        return milliseconds / 1000 if milliseconds else None

    return JobState(
        job=details.submission_id,
        status=details.status.value,
        entrypoint=details.entrypoint,
        message=details.message or "",
        metadata=dict(details.metadata or {}),
        exit_code=details.driver_exit_code,
        started=seconds(details.start_time),
        ended=seconds(details.end_time),
    )


def _with_interpreter(entrypoint: str) -> str:
    """Let `python` be that of this process's virtual environment where the head has it at the same path.

    A head that was started by the path of its `ray` has no `python` with Ray in it on its own PATH.
    """
    if sys.prefix == sys.base_prefix:
        return entrypoint
    return f'PATH={shlex.quote(str(Path(sys.prefix) / "bin"))}:"$PATH" {entrypoint}'


@contextmanager
def _without(variables: tuple[str, ...]) -> Iterator[None]:
    """Hide environment variables for the block: Ray prefers them to the address that it is given."""
    hidden = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
