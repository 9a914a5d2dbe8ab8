"""Runs a job the same way for the command line, `python -m jobs.<command>` and the Python API.

A job module ends in

    JOB = Job("train", TrainRequest, run)

    if __name__ == "__main__":
        raise SystemExit(main(JOB))

which makes `python -m jobs.train --recipe NAME --data FOLDER ...` take one option a field of its request.
"""

import argparse
import contextlib
import os
import signal
import sys
import time
import traceback
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from jobs.request import Request
from jobs.result import Result
from jobs.staging import staged
from rayrec.common.console import console_progress, log_to_stderr
from rayrec.common.errors import ConfigError, UserError
from rayrec.common.progress import Progress
from rayrec.config.validation import describe_validation_error
from rayrec.storage.location import location

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
_LONGEST_LINE = 300
"""Characters of an unexpected error that are shown without --debug."""

RequestT = TypeVar("RequestT", bound=Request)


def describe_result(result: Result) -> str:
    """The outcome in a line, and a line for each evaluated split."""
    rows = f", {result.rows:,} rows" if result.rows is not None else ""
    output = f" -> {location(result.output)}" if result.output is not None else ""
    lines = [f"{result.command}: {result.status} in {result.seconds:.1f} s{rows}{output}"]
    for split, metrics in result.metrics.items():
        values = "  ".join(f"{name} {'-' if value is None else f'{value:.6g}'}" for name, value in metrics.items())
        lines.append(f"  {split}: {values}")
    return "\n".join(lines)


@dataclass(frozen=True)
class Job(Generic[RequestT]):
    """One command: what it is asked, what it does, how its result reads."""

    command: str
    request: type[RequestT]
    run: Callable[[RequestT, Progress], Result]
    """Raises UserError or ConfigError for what the user can fix."""
    describe: Callable[[Result], str] = describe_result
    """The text that a person sees on stdout instead of the JSON."""


def build_request(request: type[RequestT], values: Mapping[str, Any]) -> RequestT:
    """Validate `values` by field. Raises ConfigError naming the field."""
    try:
        return request.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":
            raise ConfigError(f"{first['loc'][0]}: missing; it is required") from None
        raise ConfigError(describe_validation_error(error, request)) from None


def execute(job: Job[RequestT], request: RequestT, progress: Progress) -> Result:
    """Run the job and write `result.json` into its output folder, also where it fails; errors go on to the caller.

    Folders given as URIs are staged for its time. A failure is not written into a folder that had content before (the
    output of an earlier command stays intact), unless the request resumes what is there.
    """
    request.check()
    with staged(request, progress):
        return _execute(job, request, progress)


def _execute(job: Job[RequestT], request: RequestT, progress: Progress) -> Result:
    folder: Path | None = getattr(request, "output", None)
    ours = folder is not None and (_is_empty(folder) or getattr(request, "resume", False))
    started = time.perf_counter()
    try:
        result = job.run(request, progress)
        progress.finish()
    except BaseException as error:
        if folder is not None and ours and folder.is_dir():
            status = "interrupted" if exit_code(error) == INTERRUPTED else "failed"
            seconds = time.perf_counter() - started
            failure = Result(
                command=job.command, status=status, seconds=seconds, output=folder, error=describe_error(error)
            )
            with contextlib.suppress(OSError):  # a full disk must not hide the error that it caused
                failure.save(folder)
        raise
    result = result.model_copy(update={"seconds": time.perf_counter() - started})
    if result.output is not None and result.output.is_dir():
        result.save(result.output)
    return result


def run_command(
    job: Job[RequestT], values: Mapping[str, Any], *, json_output: bool = False, debug: bool = False
) -> int:
    """Run the job as a command of a terminal; returns the exit code.

    Only the result goes to stdout; logs, progress and the one line of an error go to stderr.
    """
    log_to_stderr(debug)
    request = None
    started = time.perf_counter()
    try:
        with _interruptible(), _stdout_kept_for_the_result() as stdout:
            request = build_request(job.request, values)
            with console_progress() as progress:
                result = execute(job, request, progress)
            print(result.to_json() if json_output else job.describe(result), file=stdout, flush=True)
        return {"done": DONE, "failed": FAILED, "interrupted": INTERRUPTED}[result.status]
    except BaseException as error:
        code = exit_code(error)
        if debug:
            traceback.print_exc()
        message = describe_error(error)
        unexpected = code == FAILED and not isinstance(error, UserError)
        hint = "; run again with --debug for the traceback" if unexpected and not debug else ""
        print(f"error: {message}{hint}", file=sys.stderr, flush=True)
        if json_output:
            status = "interrupted" if code == INTERRUPTED else "failed"
            seconds = time.perf_counter() - started
            output = getattr(request, "output", None)
            print(
                Result(command=job.command, status=status, seconds=seconds, output=output, error=message).to_json(),
                flush=True,
            )
        return code


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ends with `error`."""
    if isinstance(error, ConfigError):
        return WRONG_USAGE
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return FAILED


def describe_error(error: BaseException) -> str:
    """One line on `error`."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, UserError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror.lower()}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # An exception from another process carries its traceback: the first line says where, the last one what.
    text = " ... ".join(line[:_LONGEST_LINE] for line in dict.fromkeys((lines[0], lines[-1]))) if lines else ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def main(job: Job[RequestT], arguments: Sequence[str] | None = None) -> int:
    """Run `job` with options made from its request's fields; returns the exit code. Exits with 2 on wrong usage."""
    parser = _parser(job)
    values = vars(parser.parse_args(arguments))
    json_output, debug = values.pop("json"), values.pop("debug")
    return run_command(job, values, json_output=json_output, debug=debug)


def as_arguments(request: Request) -> list[str]:
    """The arguments from which `main` makes this request again."""
    arguments = []
    for name, value in request:
        option = f"--{_option(name)}"
        if isinstance(value, bool):
            arguments.append(option if value else f"--no-{_option(name)}")
        elif isinstance(value, tuple):
            arguments += [f"{option}={item}" for item in value]
        elif value is not None:
            arguments.append(f"{option}={location(value) if isinstance(value, Path) else value}")
    return arguments


def _parser(job: Job[RequestT]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m jobs.{job.command}",
        description=(job.request.__doc__ or "").strip() or None,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for name, field in job.request.model_fields.items():
        option: dict[str, Any] = {"help": field.description, "dest": name, "metavar": _option(name).upper()}
        if _takes(field, bool):
            option = {"help": field.description, "dest": name, "action": argparse.BooleanOptionalAction}
        elif _takes(field, tuple):
            option["action"] = "append"
        parser.add_argument(f"--{_option(name)}", required=field.is_required(), **option)
    parser.add_argument("--json", action="store_true", default=False, help="print only the result, as JSON")
    parser.add_argument("--debug", action="store_true", default=False, help="show tracebacks and debug logs")
    return parser


def _option(field: str) -> str:
    return field.replace("_", "-")


def _takes(field: FieldInfo, kind: type) -> bool:
    """Whether the field's type is `kind`, or a union with it."""
    annotation = field.annotation
    union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    members = typing.get_args(annotation) if union else (annotation,)
    return any((typing.get_origin(member) or member) is kind for member in members)


def _is_empty(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that temporary folders are removed and workers are stopped."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextlib.contextmanager
def _stdout_kept_for_the_result() -> Iterator[typing.TextIO]:
    """Send to stderr whatever else is printed, by child processes too (a JVM writes to descriptor 1); yields stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr), open(kept, "w", closefd=False) as stdout:
            yield stdout
    finally:
        os.dup2(kept, 1)
        os.close(kept)
