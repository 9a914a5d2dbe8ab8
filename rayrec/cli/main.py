"""The `rayrec` program: its commands are made from the requests in `jobs`.

A command's module is imported only when that command is named, so that `rayrec --help` answers at once.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from jobs import COMMANDS, GROUPS, split_command
from rayrec.common.program import leave, run_program


class _Group(TyperGroup):
    """Lists commands by name and help text, and makes the one that is run from its request."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        command, arguments = split_command(args)
        name, listed, rest = super().resolve_command(ctx, [command, *arguments])
        if name is None or listed is None:
            return name, listed, rest
        from jobs.command.interface import typer_command
        from jobs.command.runner import load_command

        return name, typer_command(load_command(name)), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group, each group with an example."""
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", listed.summary) for name, listed in commands.items()])
                example = next(iter(commands.values())).example
                formatter.write(f"{'':{formatter.current_indent}}$ {example}\n")


app = typer.Typer(
    name="rayrec",
    cls=_Group,
    help="Turn raw click logs into a served ranking model. `rayrec COMMAND --help` shows the options of a command.",
    # Plain help: importing rich's renderers takes longer than all the rest together.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> NoReturn:
    """Run the process of `rayrec`, and exit with 0 done, 1 failed, 2 wrong usage or config, 130 interrupted."""
    leave(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run `rayrec ARGUMENTS`, and return the exit code."""
    return run_program(typer.main.get_command(app), "rayrec", arguments or ["--help"])


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rayrec {version('rayrec')}", flush=True)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


for _name, _listed in COMMANDS.items():
    app.command(_name, help=_listed.summary)(lambda: None)
