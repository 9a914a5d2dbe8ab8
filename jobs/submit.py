"""`rayrec submit COMMAND ...`: any command as a job of a Ray cluster, by Ray's job submission API."""

import importlib
import json
import secrets
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeFloat

from jobs.entry_point import INTERRUPTED, WRONG_USAGE, Job, as_arguments, build_request
from jobs.request import Request
from jobs.result import Result
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.common.units import parse_bytes
from rayrec.config.yaml_file import is_yaml_file

if TYPE_CHECKING:
    from cluster.job_client import EntrypointResources, JobClient, JobState

_STAY_HERE = {"submit", "jobs"}


class SubmitRequest(Request):
    """Run a command as a job of a Ray cluster."""

    command: str
    """The command's name, such as `train`."""
    arguments: dict[str, Any] = {}
    """Fields of the command's request."""
    flags: tuple[Literal["--json", "--debug"], ...] = ()
    """Of the command's own output: with `--json` its result is read from its log."""
    address: str | None = None
    """URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265."""
    wait: bool = True
    """Follow the job's log and take over its exit code."""
    metadata: tuple[str, ...] = ()
    """Kept with the job, each NAME=VALUE."""
    entrypoint_num_cpus: NonNegativeFloat | None = None
    """CPUs that Ray reserves for the command's own process, beyond its tasks and workers."""
    entrypoint_num_gpus: NonNegativeFloat | None = None
    """GPUs, likewise."""
    entrypoint_memory: str | None = None
    """Memory, likewise, such as 8GB."""
    entrypoint_resources: tuple[str, ...] = ()
    """Custom resources, likewise, each NAME=AMOUNT."""


def run(request: SubmitRequest, progress: Progress) -> Result:
    """Send the job once its request is known to be valid; with --json `details.result` is the job's own result.

    Raises what stands for the job's exit code: ConfigError for 2, UserError for 1, KeyboardInterrupt for 130.
    """
    inner = _checked(request)
    metadata = {"rayrec_command": request.command, **_pairs("--metadata", request.metadata)}
    resources = _resources(request)
    job = f"rayrec-{request.command}-{secrets.token_hex(4)}"
    from cluster.job_client import JobClient
    from cluster.job_package import FILES_FOLDER, job_package

    files = {name: Path(getattr(inner, name)) for name in inner.small_files if _is_file(getattr(inner, name))}
    sent = inner.model_copy(update={name: f"{FILES_FOLDER}/{path.name}" for name, path in files.items()})
    entrypoint = shlex.join(["python", "-m", f"jobs.{request.command}", *as_arguments(sent), *request.flags])
    client = JobClient(request.address)
    progress.stage(f"send the job to {client.address}")
    with job_package({path.name: path for path in files.values()}) as folder:
        client.submit(job, entrypoint, folder, metadata, resources)
    progress.finish()
    progress.message(f"job {job} at {client.address}; `{_command('show', job, client.address)}` says how it is")
    details: dict[str, Any] = {"job": job, "address": client.address}
    if not request.wait:
        return Result(command="submit", details=details)
    try:
        state = client.follow(job, progress.message)
    except KeyboardInterrupt:
        _stop_or_leave(client, job, progress)
        raise
    _require_success(state, client.address)
    details["exit_code"] = state.exit_code
    own = _result_in(client.logs(job)) if "--json" in request.flags else None
    if own is None:
        return Result(command="submit", details=details)
    details["result"] = json.loads(own.to_json())
    return Result(command="submit", rows=own.rows, metrics=own.metrics, details=details)


def describe(result: Result) -> str:
    """The job, and how to ask after it where it was not waited for."""
    job, address = result.details["job"], result.details["address"]
    if "exit_code" not in result.details:
        return f"submit: {job} sent to {address}\n  rayrec jobs logs {job} --follow --address {address}"
    return f"submit: {job} {result.status} in {result.seconds:.1f} s"


def _checked(request: SubmitRequest) -> Request:
    """The command's request, checked as the command itself would. Raises ConfigError."""
    if request.command in _STAY_HERE:
        raise ConfigError(f"'{request.command}' talks to a cluster itself; it cannot be submitted")
    job: Job[Request] = importlib.import_module(f"jobs.{request.command}").JOB
    inner = build_request(job.request, request.arguments)
    inner.check()
    return inner.with_absolute_paths()


def _resources(request: SubmitRequest) -> "EntrypointResources":
    from cluster.job_client import EntrypointResources

    custom = {}
    for name, amount in _pairs("--entrypoint-resources", request.entrypoint_resources).items():
        try:
            custom[name] = float(amount)
        except ValueError:
            raise ConfigError(f"--entrypoint-resources {name}={amount}: '{amount}' is no number") from None
    memory = request.entrypoint_memory
    return EntrypointResources(
        num_cpus=request.entrypoint_num_cpus,
        num_gpus=request.entrypoint_num_gpus,
        memory=None if memory is None else parse_bytes(memory),
        custom=custom or None,
    )


def _pairs(option: str, texts: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"{option} {text}: write it as NAME=VALUE")
        pairs[name] = value
    return pairs


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and is_yaml_file(value)


def _require_success(state: "JobState", address: str) -> None:
    """Raise what stands for the exit code of a job that did not succeed."""
    if state.status == "SUCCEEDED":
        return
    if state.status == "STOPPED" or state.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    own_error = next((line for line in reversed(state.message.splitlines()) if line.startswith("error: ")), None)
    if own_error is not None:
        reason = own_error.removeprefix("error: ")
    elif state.exit_code is None:
        reason = f"did not start: {' '.join(state.message.split())[:500]}"
    elif state.exit_code < 0:
        reason = f"was killed by signal {-state.exit_code}; `{_command('logs', state.job, address)}` shows its log"
    else:
        reason = f"failed with exit code {state.exit_code}; `{_command('logs', state.job, address)}` shows its log"
    raise (ConfigError if state.exit_code == WRONG_USAGE else UserError)(f"job {state.job}: {reason}")


def _stop_or_leave(client: "JobClient", job: str, progress: Progress) -> None:
    """Ask whether the job shall be stopped; without a terminal to ask, or on a second Ctrl-C, leave it."""
    if sys.stdin.isatty():
        try:
            answer = input(f"\nstop job {job}? It goes on without this command otherwise. [y/N] ")
            if answer.strip().lower() in {"y", "yes"}:
                progress.message(f"job {job}: {client.stop(job).status.lower()}")
                return
        except (KeyboardInterrupt, EOFError):
            pass
    progress.message(f"job {job} goes on; `{_command('stop', job, client.address)}` stops it")


def _command(action: str, job: str, address: str) -> str:
    return f"rayrec jobs {action} {job} --address {address}"


def _result_in(log: str) -> Result | None:
    """The result that the job printed last as JSON."""
    start = log.rfind("\n{\n")
    if start < 0:
        return None
    try:
        content, _ = json.JSONDecoder().raw_decode(log, start + 1)
        return Result.model_validate(content)
    except ValueError:
        return None


JOB = Job("submit", SubmitRequest, run, describe)
