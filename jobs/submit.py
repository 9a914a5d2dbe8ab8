"""`rayrec submit COMMAND ...`: any command as a job of a Ray cluster, by Ray's job submission API."""

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, NonNegativeInt

from jobs.command import Command, Metavar, Positional, Request, Result, as_arguments, main, parse_command
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.program import INTERRUPTED, WRONG_USAGE
from rayrec.common.progress import Progress
from rayrec.common.text import shell_line
from rayrec.config.validation import is_yaml_file

if TYPE_CHECKING:
    from ray.job_submission import JobDetails


class SubmitRequest(Request):
    forwards: ClassVar[str | None] = "command"

    command: Annotated[tuple[str, ...], Positional("COMMAND"), Field(min_length=1)]
    """Command with its arguments and options."""
    address: Annotated[str, Metavar("URL")] | None = None
    """URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS, RAY_ADDRESS, else http://127.0.0.1:8265."""
    no_wait: bool = False
    """Return as soon as the job is sent."""
    retry: NonNegativeInt = 0
    """Number of times to restart a job that was lost with its node or process; it continues its work."""

    def check(self) -> None:
        if self.retry and self.no_wait:
            raise ConfigError("--retry: needs to follow the job; leave out --no-wait")


def run(request: SubmitRequest, progress: Progress) -> Result:
    """Send the job once its request is known to be valid; with --json `details.result` is the job's own result.

    `details.lost` has the jobs that were lost before. If the job fails, raises the error with its exit code:
    ConfigError for 2, UserError for 1, KeyboardInterrupt for 130.
    """
    if request.command[0] == "submit":
        raise ConfigError("'submit' cannot be submitted; give the command to run")
    # The job's command is read and checked here: a mistake must not first travel to the cluster.
    command, inner, flags = parse_command(request.command)
    inner.check()
    sent = inner.with_absolute_paths()
    from cluster.job_client import FILES_FOLDER, LOST_SECONDS, RESTART_SECONDS, JobClient, job_folder

    # Small files travel with the code; all other paths are on storage that the nodes share.
    values = {name: getattr(sent, name) for name in sent.small_files}
    files = {f"{name}/{Path(value).name}": value for name, value in values.items() if value and is_yaml_file(value)}
    sent = sent.model_copy(update={name.partition("/")[0]: f"{FILES_FOLDER}/{name}" for name in files})
    client = JobClient(request.address)
    lost: list[str] = []
    # One folder for all attempts: each has the same code and files.
    with job_folder(files) as folder:
        while True:
            job = f"rayrec-{command.name.replace(' ', '-')}-{secrets.token_hex(4)}"
            progress.stage(f"send the job to {client.address}")
            client.submit(job, ["python", "-m", command.module, *as_arguments(sent), *flags], folder)
            progress.finish()
            state = _ray_job("status", job, client.address)
            progress.message(f"job {job} at {client.address}; `{state}` shows its state")
            details: dict[str, Any] = {"job": job, "address": client.address, **({"lost": lost} if lost else {})}
            if request.no_wait:
                return Result(command="submit", details=details)
            tries_left = request.retry - len(lost)
            try:
                end = client.follow(job, progress.message, RESTART_SECONDS if tries_left else LOST_SECONDS)
            except KeyboardInterrupt:
                progress.message(f"job {job} keeps running; `{_ray_job('stop', job, client.address)}` stops it")
                raise
            # A job that ended by itself has a result. One that was lost with its node or process begins again.
            loss = _loss(end)
            if loss is None or tries_left == 0:
                break
            lost.append(job)
            progress.message(f"job {job} {loss}; it is started again ({len(lost)} of {request.retry})")
            if "resume" in type(sent).model_fields:
                sent = sent.model_copy(update={"resume": True})
    if end is None:
        raise UserError(f"job {job}: {loss}")
    _require_success(end, job, client.address)
    details["exit_code"] = end.driver_exit_code
    own = _result_in(client.logs(job)) if "--json" in flags else None
    if own is None:
        return Result(command="submit", details=details)
    details["result"] = json.loads(own.to_json())
    return Result(command="submit", rows=own.rows, metrics=own.metrics, details=details)


def describe(result: Result) -> str:
    """Return the job's id, and how to read its log if it was not waited for."""
    job, address = result.details["job"], result.details["address"]
    if "exit_code" not in result.details:
        return f"submit: {job} sent to {address}\n  {_ray_job('logs', job, address)} --follow"
    return f"submit: {job} {result.status} in {result.seconds:.1f} s"


def _loss(end: "JobDetails | None") -> str | None:
    """Return what took a job away that neither ended by itself nor was stopped; None if it did or was."""
    if end is None:
        return "is unknown to the cluster, whose head was restarted"
    if end.status != "FAILED":
        return None
    code = end.driver_exit_code
    if code is None:
        # Ray's actor that watches over the job; the rest says that the job could not begin.
        return f"was lost: {_short(end.message)}" if (end.error_type or "").startswith("JOB_SUPERVISOR") else None
    if code < 0:
        return f"was killed by signal {-code}"
    # As a shell says it, which runs the command. A command that was told to end says so itself.
    return f"was killed by signal {code - 128}" if code > 128 and code != INTERRUPTED else None


def _require_success(end: "JobDetails", job: str, address: str) -> None:
    """Raise the error that stands for the exit code of a job that did not succeed."""
    if end.status == "SUCCEEDED":
        return
    code = end.driver_exit_code
    if end.status == "STOPPED" or code == INTERRUPTED:
        raise KeyboardInterrupt
    lines = (end.message or "").splitlines()
    own_error = next((line for line in reversed(lines) if line.startswith("error: ")), None)
    log = f"; `{_ray_job('logs', job, address)}` shows its log"
    if own_error is not None:
        reason = own_error.removeprefix("error: ")
    elif (loss := _loss(end)) is not None:
        reason = loss if code is None else f"{loss}{log}"
    elif code is None:
        reason = f"did not start: {_short(end.message)}"
    else:
        reason = f"failed with exit code {code}{log}"
    raise (ConfigError if code == WRONG_USAGE else UserError)(f"job {job}: {reason}")


def _short(message: str | None) -> str:
    return " ".join((message or "").split())[:500]


def _ray_job(action: str, job: str, address: str) -> str:
    return shell_line(["ray", "job", action, job, "--address", address])


def _result_in(log: str) -> Result | None:
    """Return the result that the job printed last as JSON."""
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
