"""Runs a typer program: exit codes, and one line for wrong usage. Imports nothing heavy."""

import errno
import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import typer

from rayrec.common.errors import UserError
from rayrec.common.machine import limit_libraries
from rayrec.common.text import printable
from rayrec.internals.python import run_exit_handlers

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130
# Importing torch and Ray makes a million objects that stay. By default, after every 700 new ones, Python looks whether
# any can go: a quarter of the time of these imports.
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
_PLAIN = (
    (r"^No such option: (\S+)", r"no option '\1'"),
    (r"^No such command", "no command"),
    (r" \(Possible options: (.+)\)$", r"; did you mean \1?"),
    (r"\. Did you mean", "; did you mean"),
)
"""How messages of click read as rayrec's own."""


def run_program(program: Any, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a program made by typer on `arguments` (by default the process's own); return the exit code."""
    _open_streams()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    limit_libraries()
    try:
        code = program.main(args=arguments, prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        if message := usage_error(error):
            print(f"error: {printable(message)}", file=sys.stderr)
        return error.exit_code
    except UserError as error:  # a plug-in that cannot be imported: the command's module was just being loaded
        print(f"error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return FAILED
    except OSError as error:  # a help text that cannot be printed
        print(f"error: {stdout_error(error)}", file=sys.stderr)
        return FAILED
    except (typer.Abort, KeyboardInterrupt):
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


def stdout_error(error: OSError) -> str:
    """Return why nothing could be printed."""
    return f"standard output: {'closed' if error.errno == errno.EBADF else str(error.strerror).lower()}"


def _open_streams() -> None:
    """Open what the process was started without of its standard streams, so that no other file takes its descriptor.

    Writing to such a standard output is an error; what goes to such a standard error is lost.
    """
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)  # the lowest that is free, so its own
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def leave(code: int) -> NoReturn:
    """End this process: run its exit handlers, but do not take a million objects apart, a second's work after torch."""
    run_exit_handlers()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # it was said, or the reader has left
            stream.flush()
    os._exit(code)


def usage_error(error: typer.TyperException) -> str:
    """Return one line on wrong usage, with the command that shows the right one."""
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).removesuffix(".")
    for click, ours in _PLAIN:
        message = re.sub(click, ours, message)
    message = message[:1].lower() + message[1:]
    if not message or context is None:
        return message
    return f"{message}{' See' if message.endswith('?') else '; see'} `{context.command_path} --help`"
