"""The commands that talk to a cluster's job submission API."""

from typing import Annotated, Any

import typer

from rayrec.cli.options import AddressOption, DebugOption, JsonOption
from rayrec.cli.run_job import run_job


def submit(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Any other command with its arguments and options.")
    ],
    address: AddressOption = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return as soon as the job is sent.")] = False,
    metadata: Annotated[
        list[str] | None, typer.Option(help="Kept with the job; repeatable.", metavar="NAME=VALUE")
    ] = None,
    entrypoint_num_cpus: Annotated[
        float | None, typer.Option(help="CPUs to reserve for the command's own process.", show_default="0")
    ] = None,
    entrypoint_num_gpus: Annotated[float | None, typer.Option(help="GPUs, likewise.", show_default="0")] = None,
    entrypoint_memory: Annotated[
        str | None, typer.Option(help="Memory, likewise, such as 8GB.", show_default=False)
    ] = None,
    entrypoint_resources: Annotated[
        list[str] | None, typer.Option(help="Custom resource, likewise; repeatable.", metavar="NAME=AMOUNT")
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Run a command as a job of a Ray cluster, follow its log and exit with its code.

    Its paths are those of storage that the cluster's nodes share; a recipe file travels along.
    """
    name, arguments = _parse(context, command)
    flags = [flag for flag, wanted in (("--json", json), ("--debug", debug)) if wanted]
    run_job(
        "submit", json, debug, command=name, arguments=arguments, flags=flags, address=address, wait=not no_wait,
        metadata=metadata, entrypoint_num_cpus=entrypoint_num_cpus, entrypoint_num_gpus=entrypoint_num_gpus,
        entrypoint_memory=entrypoint_memory, entrypoint_resources=entrypoint_resources,
    )  # fmt: skip


def jobs(
    action: Annotated[str, typer.Argument(help="list, show, logs or stop.")],
    job: Annotated[str | None, typer.Argument(help="Id of the job.", show_default=False)] = None,
    address: AddressOption = None,
    follow: Annotated[bool, typer.Option("--follow", help="Of logs: go on until the job is over.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the jobs of a Ray cluster, show one or its log, or stop it."""
    run_job("jobs", json, debug, action=action, job=job, address=address, follow=follow)


def _parse(context: typer.Context, command: list[str]) -> tuple[str, dict[str, Any]]:
    """The name of a command and the fields of its request, parsed as that command's own line is."""
    assert context.parent is not None, "submit is a command of the program"
    name, target, arguments = context.parent.command.resolve_command(context.parent, command)  # type: ignore[attr-defined]
    parsed = target.make_context(name, arguments, parent=context.parent)
    # An option that may be repeated and was not given is an empty sequence.
    given = {field: value for field, value in parsed.params.items() if value is not None and value != ()}
    return name, {field: value for field, value in given.items() if field not in {"json", "debug"}}
