"""What callers see of a command, made from its request: the options of its command line, its function in Python.

Both are made from `fields_of`, as is the reference in the documents, so a request is the only place that says what a
command takes.
"""

import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from jobs import COMMANDS, split_command
from jobs.command.request import ByPosition, Metavar, Positional, Request, is_annotated, without_none
from jobs.command.result import Result
from jobs.command.runner import Command, RequestT, build_request, execute, load_command, run_command
from rayrec.common.console import console_progress
from rayrec.common.errors import ConfigError, did_you_mean
from rayrec.common.program import run_program, usage_error
from rayrec.common.progress import SilentProgress
from rayrec.store.paths import Folder, LocalPath

_METAVARS = {Folder: "FOLDER|URI", LocalPath: "PATH", Path: "PATH", int: "N", float: "NUMBER", str: "TEXT"}
FLAGS = {"json": "Print only the result, as JSON.", "debug": "Show tracebacks and debug logs."}
"""The options that every command has besides the fields of its request."""
_SHARED = "Shared options"
"""Title of the section of help texts with the options that several commands have."""


@dataclass(frozen=True)
class RequestField:
    """One field of a request."""

    name: str
    type: Any
    """The field's type with its annotations, without None."""
    help: str
    is_positional: bool
    is_required: bool
    is_by_position: bool
    """Whether Python takes it by position."""
    is_shared: bool
    """True if several commands share it, from a request in `jobs.command`."""
    default: Any
    """The default, or None if the field is required."""

    @property
    def is_flag(self) -> bool:
        return self.type is bool

    @property
    def is_repeated(self) -> bool:
        return typing.get_origin(_plain(self.type)) is tuple

    @property
    def option(self) -> str:
        """Option on the command line, such as `--top-k`; `continue_`, a word of Python, is `--continue`."""
        return f"--{self.name.strip('_').replace('_', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the words that set a flag: to true and, if it is unset by default, to false."""
        return (self.option,) if self.default is False else (self.option, f"--no-{self.option[2:]}")

    @property
    def metavar(self) -> str:
        """Word that stands for the value in help texts."""
        named = [
            item.name for item in getattr(self.type, "__metadata__", ()) if isinstance(item, Metavar) and item.name
        ]
        plain = _plain(self.type)
        if named:
            return named[-1]
        item = typing.get_args(plain)[0] if self.is_repeated else self.type
        if typing.get_origin(_plain(item)) is Literal:
            return "|".join(map(str, typing.get_args(_plain(item))))
        return _METAVARS[item if item in _METAVARS else _plain(item)]

    @property
    def default_text(self) -> str:
        """Default as the command line takes it; empty if the command line cannot say it (None, no items)."""
        if self.default is None or self.is_flag:
            return ""
        return ", ".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)


def fields_of(request: type[Request]) -> list[RequestField]:
    """Return the fields in the order of help texts: positional, required, the command's own, those that
    commands share.
    """
    # Python has the annotations by class, and pydantic the defaults and docstrings.
    hints = typing.get_type_hints(request, include_extras=True)
    declared = [name for parent in request.__mro__ for name in vars(parent).get("__annotations__", {})]
    # A request that declares a shared field again says something else about it.
    declaring = {
        name: parent for parent in reversed(request.__mro__) for name in vars(parent).get("__annotations__", {})
    }
    shared = {name for name, parent in declaring.items() if parent.__module__.startswith("jobs.command.")}
    # A field that a subclass declares again keeps its place.
    own_first = reversed(dict.fromkeys(reversed(declared)))
    fields = [
        RequestField(
            name=name,
            type=without_none(hints[name]),
            help=" ".join((field.description or "").split()),
            is_positional=(is_positional := is_annotated(hints[name], Positional)),
            is_required=field.is_required(),
            is_by_position=is_positional or field.is_required() or is_annotated(hints[name], ByPosition),
            is_shared=name in shared,
            default=None if field.is_required() else field.default,
        )
        for name in own_first
        if (field := request.model_fields.get(name)) is not None
    ]
    return sorted(fields, key=lambda field: (not field.is_positional, not field.is_required, not field.is_by_position))


def _plain(hint: Any) -> Any:
    """Return a type without its annotations."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


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


def python_function(command: Command[Any]) -> Callable[..., Result]:
    """Return a function with a parameter for each field, which runs the command and returns its result.

    Positional and required fields, and those annotated `ByPosition`, may be given by position. Errors that the user can
    fix are `rayrec.common.errors.UserError`, in one line.
    """
    fields = fields_of(command.request)
    by_position, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            field.name,
            by_position if field.is_by_position else keyword,
            default=inspect.Parameter.empty if field.is_required else field.default,
            annotation=field.type,
        )
        for field in fields
    ]
    parameters.append(inspect.Parameter("progress", keyword, default=True, annotation=bool))
    signature = inspect.Signature(parameters, return_annotation=Result)

    def call(*args: Any, **kwargs: Any) -> Result:
        values = signature.bind(*args, **kwargs).arguments
        shown = values.pop("progress", True)
        with TemporaryDirectory(prefix="rayrec-frame-") as folder:
            given = {name: _as_file(value, folder, name) for name, value in values.items() if value is not None}
            request = build_request(command.request, given)
            with console_progress() if shown else nullcontext(SilentProgress()) as progress:
                return execute(command, request, progress)

    call.__name__ = call.__qualname__ = command.name
    call.__doc__ = docstring(command)
    # What `help` shows first: names and defaults; the types are in api.pyi.
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    call.__signature__ = signature.replace(parameters=plain)  # type: ignore[attr-defined]
    return call


def _as_file(value: Any, folder: str, name: str) -> Any:
    """Return the path of a data frame's rows, which are written for the time of the call; other values as they are."""
    if hasattr(value, "collect_schema") and hasattr(value, "collect"):
        value = value.collect()  # a lazy frame of polars
    if not hasattr(value, "__arrow_c_stream__"):
        return value
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = f"{folder}/{name}.parquet"
    pq.write_table(pa.table(value), path)
    return path


def docstring(command: Command[Any]) -> str:
    """Return the docstring of the command's function: what it does, and what each parameter is."""
    texts = [f"{field.name}: {field.help}" for field in fields_of(command.request)]
    texts.append("progress: Show progress on stderr.")
    indented = partial(textwrap.wrap, width=116, initial_indent=" " * 4, subsequent_indent=" " * 8)
    lines = [line for text in texts for line in indented(text)]
    return "\n".join([command.listed.text, "", "Args:", *lines])
