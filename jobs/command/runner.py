"""Runs a command the same way for the terminal, a Ray job and Python.

A command's module ends in

    COMMAND = Command("train", TrainRequest, run)

    if __name__ == "__main__":
        raise SystemExit(main(COMMAND))

which makes `python -m jobs.train` take the arguments of `rayrec train`.
"""

import contextlib
import importlib
import locale
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from jobs import COMMANDS, Listed
from jobs.command.request import Request
from jobs.command.result import Result, describe_result
from rayrec.common.console import console_progress, log_to_stderr
from rayrec.common.disk_errors import disk_error, temporary_folders
from rayrec.common.errors import ConfigError, DiskError, UserError
from rayrec.common.machine import reach_this_machine_directly
from rayrec.common.program import DONE, FAILED, INTERRUPTED, WRONG_USAGE, stdout_error
from rayrec.common.progress import Progress
from rayrec.common.text import printable
from rayrec.config.validation import describe_validation_error
from rayrec.store.artifact import id_of
from rayrec.store.folders import is_vacant
from rayrec.store.node_copy import shown
from rayrec.store.paths import cache_root

_LONGEST_LINE = 300
"""Characters of an unexpected error that are shown without --debug."""

RequestT = TypeVar("RequestT", bound=Request)


@dataclass(frozen=True)
class Command(Generic[RequestT]):
    """One command: its request, its work, and how its result reads."""

    name: str
    request: type[RequestT]
    run: Callable[[RequestT, Progress], Result]
    """Raises UserError or ConfigError for what the user can fix."""
    describe: Callable[[Result], str] = describe_result
    """The text that a person sees on stdout instead of the JSON."""

    @property
    def listed(self) -> Listed:
        """Return its entry in the list of commands."""
        return COMMANDS[self.name]

    @property
    def module(self) -> str:
        """Module whose `COMMAND` it is."""
        return _module(self.name)


def load_command(name: str) -> Command[Any]:
    """Import the module of a command."""
    command: Command[Any] = importlib.import_module(_module(name)).COMMAND
    return command


def _module(name: str) -> str:
    return f"jobs.{name.replace(' ', '_')}"


def build_request(request: type[RequestT], values: Mapping[str, Any]) -> RequestT:
    """Validate `values` by field. Raises ConfigError naming the field."""
    try:
        return request.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing":
            raise ConfigError(f"{first['loc'][0]}: missing; it is required") from None
        raise ConfigError(describe_validation_error(error, request)) from None


def execute(command: Command[RequestT], request: RequestT, progress: Progress) -> Result:
    """Run the command and write `result.json` into its output folder, even if it fails; errors go on to the caller.

    A failure is not written into a folder that had content before (the output of an earlier command stays intact),
    unless the command has begun to continue the work in it.
    """
    # A mistake that shows without the data is answered before anything is touched.
    request.check()
    with _disk_errors(request):
        request.require_outputs()
    reach_this_machine_directly()
    folder: Path | None = getattr(request, "output", None)
    before: int | None = 0  # until it is looked at, others' work may be in it
    started = time.perf_counter()
    try:
        # The work; `before` tells afterwards whether the folder has become this command's.
        with _disk_errors(request):
            before = None if folder is None or is_vacant(folder) else folder.stat().st_mtime_ns
            result = command.run(request, progress)
        progress.finish()
    except BaseException as error:
        # Leave a result that says how it ended, and let the error go on.
        if folder is not None and folder.is_dir() and _is_taken_over(request, folder, before):
            with contextlib.suppress(
                UserError, OSError
            ):  # a full disk or a store must not hide the error that it caused
                _failure(command, error, started, folder).save(folder)
        raise
    result = result.model_copy(update={"seconds": time.perf_counter() - started})
    if (output := result.output) is not None and output.is_dir():
        result = result.model_copy(update={"id": id_of(output)})
        result.save(output)
    return result


def _is_taken_over(request: Request, folder: Path, before: int | None) -> bool:
    """Return whether a command has begun its work in a folder: it was vacant, or work in it was resumed, which writes
    files.

    `before`: when names in it were changed last, in nanoseconds, before the command began; None if it was vacant.
    """
    return before is None or (getattr(request, "resume", False) and folder.stat().st_mtime_ns != before)


@contextlib.contextmanager
def _disk_errors(request: Request) -> Iterator[None]:
    """Raise a DiskError for what the block meets of a disk, in whatever process, with what is kept of the work."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) and not isinstance(error, DiskError):
            raise
        # Where files are written whose libraries do not say which: results, copies of buckets, temporary ones.
        written = [cache_root(), *temporary_folders()]
        if (output := getattr(request, "output", None)) is not None:
            written.insert(0, output)
        if (found := disk_error(error, written)) is None:
            raise
        raise DiskError("; ".join(filter(None, (str(found), request.kept())))) from error


def _failure(command: Command[RequestT], error: BaseException, started: float, output: Path | None) -> Result:
    return Result(
        command=command.name,
        status="interrupted" if exit_code(error) == INTERRUPTED else "failed",
        seconds=time.perf_counter() - started,
        output=output,
        error=describe_error(error),
    )


def run_command(
    command: Command[RequestT], values: Mapping[str, Any], *, json_output: bool = False, debug: bool = False
) -> int:
    """Run a command for a terminal; return the exit code.

    Only the result goes to stdout; logs, progress and the one line of an error go to stderr.
    """
    log_to_stderr(debug)
    request = None
    started = time.perf_counter()
    try:
        with _interruptible(), _stdout_kept_for_the_result() as stdout:
            # Texts of the command line become a request, which runs; its result is all that stdout gets.
            request = build_request(command.request, values)
            with console_progress() as progress:
                result = execute(command, request, progress)
            text = result.to_json() if json_output else printable(command.describe(result), keep="\n")
            try:
                _print(text, stdout)
            except OSError as error:
                kept = f"; the result is in {result.output}" if result.output is not None else ""
                raise UserError(f"{stdout_error(error)}, but the work is done{kept}") from None
        return {"done": DONE, "failed": FAILED, "interrupted": INTERRUPTED}[result.status]
    except BaseException as error:
        # One line on stderr; with --json also a result, for which the reader of stdout waits.
        code = exit_code(error)
        if debug:
            traceback.print_exc()
        unexpected = code == FAILED and not isinstance(error, UserError)
        hint = "; run again with --debug for the traceback" if unexpected and not debug else ""
        with contextlib.suppress(OSError):
            _print(f"error: {describe_error(error)}{hint}", 2)
            if json_output:
                _print(_failure(command, error, started, getattr(request, "output", None)).to_json(), 1)
        return code


# Ray, once it runs, turns SIGTERM into a SystemExit.
_INTERRUPTIONS = (KeyboardInterrupt, SystemExit)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with `error`."""
    if isinstance(error, ConfigError):
        return WRONG_USAGE
    return INTERRUPTED if isinstance(error, _INTERRUPTIONS) else FAILED


def describe_error(error: BaseException) -> str:
    """Return one line on `error`, whatever users' names and values in it hold."""
    if isinstance(error, _INTERRUPTIONS):
        return "interrupted"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, UserError):
        text = " ".join((str(error) if isinstance(error, DiskError) else shown(str(error))).split())
    elif isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror.lower()}"
    elif lines:
        # An exception from another process carries its traceback: the first line says where, the last one what.
        said = " ... ".join(line[:_LONGEST_LINE] for line in dict.fromkeys((lines[0], lines[-1])))
        text = f"{type(error).__name__}: {said}"
    else:
        text = type(error).__name__
    return printable(text)


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
def _stdout_kept_for_the_result() -> Iterator[int]:
    """Yield the descriptor of stdout, and send everything else that is printed to stderr.

    Child processes are covered too: a JVM writes to descriptor 1.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield kept
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _print(text: str, descriptor: int) -> None:
    """Write a text and the end of its line, unless the reader of the descriptor has left. Raises OSError.

    No stream would do: what it could not write it tries again when it is closed.
    """
    left = f"{text}\n".encode(locale.getencoding(), "backslashreplace")
    with contextlib.suppress(BrokenPipeError):
        while left:
            left = left[os.write(descriptor, left) :]
