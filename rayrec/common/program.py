"""Runs a typer program: exit codes, and one line for wrong usage. Imports nothing heavy."""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from rayrec.common.errors import UserError

DONE, FAILED, WRONG_USAGE, INTERRUPTED = 0, 1, 2, 130


def run_program(program: Any, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a program made by typer on `arguments` (by default the process's own); returns the exit code."""
    try:
        code = program.main(args=arguments, prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        if message := usage_error(error):
            print(f"error: {message}", file=sys.stderr)
        return error.exit_code
    except UserError as error:  # a plug-in that cannot be imported: the command's module was just being loaded
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return FAILED
    except (typer.Abort, KeyboardInterrupt):
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


def usage_error(error: typer.TyperException) -> str:
    """One line on wrong usage, with the command that shows the right one."""
    context = getattr(error, "ctx", None)
    message = " ".join(error.format_message().split()).removesuffix(".")
    return f"{message}; see `{context.command_path} --help`" if message and context is not None else message
