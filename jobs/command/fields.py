"""The fields of a request as options, from which command lines, Python functions and the reference are made."""

import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from jobs.command.request import ByPosition, Metavar, Positional, Request, is_annotated, without_none
from rayrec.store.paths import Folder, LocalPath

_METAVARS = {Folder: "FOLDER|URI", LocalPath: "PATH", Path: "PATH", int: "N", float: "NUMBER", str: "TEXT"}


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
