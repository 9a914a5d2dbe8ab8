"""`rayrec submit COMMAND ...`: any command as a job of a Ray cluster, by Ray's job submission API."""

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from jobs.command import Command, Metavar, Positional, Request, Result, as_arguments, main, parse_command
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.program import INTERRUPTED, WRONG_USAGE
from rayrec.common.progress import Progress
from rayrec.config.validation import is_yaml_file

if TYPE_CHECKING:
    from ray.job_submission import JobDetails


class SubmitRequest(Request):
    """Run a command as a job of a Ray cluster, follow its log and exit with its code.

    Its paths are on storage that the nodes of the cluster share; a recipe file travels along.
    """

    forwards: ClassVar[str | None] = "command"

    command: Annotated[tuple[str, ...], Positional("COMMAND"), Field(min_length=1)]
    """Any other command with its arguments and options."""
    address: Annotated[str, Metavar("URL")] | None = None
    """URL of the cluster's dashboard, by default RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265."""
    no_wait: bool = False
    """Return as soon as the job is sent."""


def run(request: SubmitRequest, progress: Progress) -> Result:
    """Send the job once its request is known to be valid; with --json `details.result` is the job's own result.

    If the job fails, raises the error with its exit code: ConfigError for 2, UserError for 1, KeyboardInterrupt for
    130.
    """
    if request.command[0] == "submit":
        raise ConfigError("'submit' talks to a cluster itself; it cannot be submitted")
    command, inner, flags = parse_command(request.command)
    inner.check()
    sent = inner.with_absolute_paths()
    job = f"rayrec-{command.name}-{secrets.token_hex(4)}"
    from cluster.job_client import FILES_FOLDER, JobClient

    values = {name: getattr(sent, name) for name in sent.small_files}
    files = {f"{name}/{Path(value).name}": value for name, value in values.items() if value and is_yaml_file(value)}
    sent = sent.model_copy(update={name.partition("/")[0]: f"{FILES_FOLDER}/{name}" for name in files})
    client = JobClient(request.address)
    progress.stage(f"send the job to {client.address}")
    words = ["python", "-m", f"jobs.{command.name}", *as_arguments(sent), *flags]
    client.submit(job, words, files)
    progress.finish()
    progress.message(f"job {job} at {client.address}; `{_ray_job('status', job, client.address)}` shows its state")
    details: dict[str, Any] = {"job": job, "address": client.address}
    if request.no_wait:
        return Result(command="submit", details=details)
    try:
        end = client.follow(job, progress.message)
    except KeyboardInterrupt:
        progress.message(f"job {job} goes on; `{_ray_job('stop', job, client.address)}` stops it")
        raise
    _require_success(end, job, client.address)
    details["exit_code"] = end.driver_exit_code
    own = _result_in(client.logs(job)) if "--json" in flags else None
    if own is None:
        return Result(command="submit", details=details)
    details["result"] = json.loads(own.to_json())
    return Result(command="submit", rows=own.rows, metrics=own.metrics, details=details)


def describe(result: Result) -> str:
    """The job's id, and how to read its log if it was not waited for."""
    job, address = result.details["job"], result.details["address"]
    if "exit_code" not in result.details:
        return f"submit: {job} sent to {address}\n  {_ray_job('logs', job, address)} --follow"
    return f"submit: {job} {result.status} in {result.seconds:.1f} s"


def _require_success(end: "JobDetails", job: str, address: str) -> None:
    """Raise the error that stands for the exit code of a job that did not succeed."""
    if end.status == "SUCCEEDED":
        return
    if end.status == "STOPPED" or end.driver_exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    message = end.message or ""
    own_error = next((line for line in reversed(message.splitlines()) if line.startswith("error: ")), None)
    log = f"; `{_ray_job('logs', job, address)}` shows its log"
    if own_error is not None:
        reason = own_error.removeprefix("error: ")
    elif end.driver_exit_code is None:
        reason = f"did not start: {' '.join(message.split())[:500]}"
    elif end.driver_exit_code < 0:
        reason = f"was killed by signal {-end.driver_exit_code}{log}"
    else:
        reason = f"failed with exit code {end.driver_exit_code}{log}"
    raise (ConfigError if end.driver_exit_code == WRONG_USAGE else UserError)(f"job {job}: {reason}")


def _ray_job(action: str, job: str, address: str) -> str:
    return f"ray job {action} {job} --address {address}"


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


COMMAND = Command("submit", SubmitRequest, run, describe)

if __name__ == "__main__":
    raise SystemExit(main(COMMAND))
