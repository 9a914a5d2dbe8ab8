"""The command line of a command, made from its request."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from jobs import COMMANDS, split_command
from jobs.command.fields import RequestField, fields_of
from jobs.command.request import Request
from jobs.command.runner import Command, RequestT, build_request, load_command, run_command
from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.common.program import run_program, usage_error

FLAGS = {"json": "Print only the result, as JSON.", "debug": "Show tracebacks and debug logs."}
"""The options that every command has besides the fields of its request."""
_SHARED = "Shared options"


class _HelpBySections(TyperCommand):
    """Lists the options that several commands share, and those of every command, in a section of their own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the sections."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], _SHARED: []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            if parameter.param_type_name == "argument":
                # Typer adds the type in Python, such as `<list[str]>`.
                sections["Arguments"].append((record[0].partition(" <")[0], record[1]))
                continue
            is_shared = parameter.name == "help" or getattr(parameter, "rich_help_panel", None) == _SHARED
            sections[_SHARED if is_shared else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def main(command: Command[RequestT], arguments: Sequence[str] | None = None) -> int:
    """Run `python -m jobs.NAME`, which takes the arguments of `rayrec NAME`; return the exit code."""
    return run_program(typer_command(command), f"python -m {command.module}", arguments)


def typer_command(command: Command[RequestT]) -> Any:
    """Return the typer command: an argument for each positional field, an option for each other one, --json and
    --debug.
    """
    fields = fields_of(command.request)
    forwards = command.request.forwards

    # What typer calls with the parsed words: options that were given make the request.
    def call(**values: Any) -> None:
        given = _given(fields, values)
        if forwards is not None:
            given[forwards] = [*given[forwards], *_flags(values)]
        raise typer.Exit(run_command(command, given, json_output=values["json"], debug=values["debug"]))

    # Typer reads a function's signature, so the function gets one that says what the request's fields are.
    parameters = [_parameter(field) for field in fields]
    for name, text in FLAGS.items():
        parameters.append(_keyword(name, bool, typer.Option(f"--{name}", help=text, rich_help_panel=_SHARED), False))
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    # Plain help: importing rich's renderers takes longer than all the rest together.
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    settings = {"help_option_names": ["-h", "--help"], "ignore_unknown_options": forwards is not None}
    app.command(
        command.name,
        cls=_HelpBySections,
        help=command.listed.text,
        epilog=f"\b\nExample:\n  {command.listed.example}",
        context_settings=settings,
    )(call)
    return typer.main.get_command(app)


def parse_command(words: Sequence[str]) -> tuple[Command[Any], Request, list[str]]:
    """Return a whole command line, such as `train RECIPE --data ...`: its command, request, and the flags of `FLAGS`.

    Raises ConfigError.
    """
    name, arguments = split_command(words)
    if name not in COMMANDS:
        raise ConfigError(f"no command '{name}'; {did_you_mean(name, COMMANDS, 'commands:')}")
    command = load_command(name)
    try:
        values = typer_command(command).make_context(f"rayrec {name}", arguments).params
    except typer.TyperException as error:
        raise ConfigError(usage_error(error)) from None
    return command, build_request(command.request, _given(fields_of(command.request), values)), _flags(values)


def as_arguments(request: Request) -> list[str]:
    """Return the arguments that make this request again; defaults are left out."""
    positional, options = [], []
    for field in fields_of(type(request)):
        value = getattr(request, field.name)
        if value is None or value == field.default:
            continue
        items = [str(v) for v in (value if field.is_repeated else (value,))]
        if field.is_positional:
            positional += items
        elif field.is_flag:
            options.append(field.option if value else field.flags[-1])
        else:
            options += [word for item in items for word in (field.option, item)]
    return [*positional, *options]


def _parameter(field: RequestField) -> inspect.Parameter:
    """Return the field as a parameter of the function that typer makes a command from.

    Values stay text until validation.
    """
    panel = _SHARED if field.is_shared else None
    if field.is_flag:
        assert not field.default, f"{field.name}: a flag sets it to true"
        option = typer.Option("/".join(field.flags), help=field.help, rich_help_panel=panel)
        return _keyword(field.name, bool | None, option, field.default)
    kind = list[str] if field.is_repeated else str
    default: Any = inspect.Parameter.empty if field.is_required else field.default_text or None
    if field.is_repeated and field.default:
        default = list(map(str, field.default))
    if field.is_positional:
        return _keyword(field.name, kind, typer.Argument(help=field.help, metavar=field.metavar), default)
    option = typer.Option(field.option, help=field.help, metavar=field.metavar, rich_help_panel=panel)
    return _keyword(field.name, kind, option, default)


def _keyword(name: str, kind: Any, info: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _given(fields: Sequence[RequestField], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options that were given; typer has None, or no items, for the others."""
    return {field.name: values[field.name] for field in fields if values[field.name] not in (None, (), [])}


def _flags(values: Mapping[str, Any]) -> list[str]:
    return [f"--{name}" for name in FLAGS if values[name]]
