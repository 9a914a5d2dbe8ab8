"""From a parsed command line to the job that does the work."""

import importlib
from typing import Any

import typer


def run_job(command: str, json: bool, debug: bool, /, **options: Any) -> None:
    """Run the job of `command` with the options that were given (not None); exits with its code."""
    from jobs.entry_point import run_command

    job = importlib.import_module(f"jobs.{command}").JOB
    given = {name: value for name, value in options.items() if value is not None}
    raise typer.Exit(run_command(job, given, json_output=json, debug=debug))
