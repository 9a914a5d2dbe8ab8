"""The base of every request: its fields are a command's options, on the command line and in Python."""

import json
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.recipes import Recipe, RecipeContent, read_recipe
from rayrec.store.folders import OutputKind, is_vacant, require_output
from rayrec.store.paths import is_uri, is_utf8


@dataclass(frozen=True)
class Metavar:
    """Annotates a field with the word that stands for its value in help texts; by default its type decides."""

    name: str = ""


class Positional(Metavar):
    """Annotates a field that the command line takes by position."""


class RawPath(Metavar):
    """Annotates a text, or several, that are names, paths or URIs; `with_absolute_paths` completes the paths."""


@dataclass(frozen=True)
class ByPosition:
    """Annotates an option that Python takes by position, as it does required ones, though it may be left out."""


def _as_text(given: object) -> object:
    return str(given) if isinstance(given, PathLike) else given


def _as_texts(given: object) -> object:
    if isinstance(given, str | PathLike):
        return (_as_text(given),)
    return tuple(map(_as_text, given)) if isinstance(given, Sequence) else given


def _as_overrides(given: object) -> object:
    # JSON is YAML, which the values of overrides are.
    return tuple(f"{key}={json.dumps(value)}" for key, value in given.items()) if isinstance(given, Mapping) else given


PathText = Annotated[str, BeforeValidator(_as_text), RawPath("PATH")]
"""A name, path or URI that stays text; a Path is accepted too."""
PathTexts = Annotated[tuple[str, ...], BeforeValidator(_as_texts), RawPath("PATH")]
"""Several names, paths or URIs; a single one is accepted too."""
RecipeText = Annotated[str, BeforeValidator(_as_text), Positional("RECIPE")]
Overrides = Annotated[tuple[str, ...], BeforeValidator(_as_overrides), Metavar("SECTION.KEY=VALUE")]
"""Overrides as text; a mapping from `section.key` to a value is accepted too."""


class Request(Config):
    """Options and arguments of a command.

    The docstring of a request is the help of its command, and those of its fields are the help of its options.
    """

    forwards: ClassVar[str | None] = None
    """A positional field of another command's words; options unknown here go there, and --json and --debug too."""
    small_files: ClassVar[tuple[str, ...]] = ()
    """Fields that may name a YAML file, which travels with a submitted job; other paths are on shared storage."""

    outputs: ClassVar[Mapping[str, OutputKind]] = {"output": "folder"}
    """Fields that name an output, and the kind of each."""

    @model_validator(mode="before")
    @classmethod
    def _in_utf8(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name, value in values.items():
            for text in value if isinstance(value, tuple | list) else (value,):
                if isinstance(text, str | PathLike) and not is_utf8(str(text)):
                    raise ValueError(f"{name}: {str(text)!a} is not UTF-8, or holds a zero byte; give another name")
        return values

    def require_outputs(self) -> None:
        """Raise UserError for an output that cannot be written, or must not be; called before any work."""
        try:
            here = os.getcwd()
        except FileNotFoundError:
            raise UserError("the working folder was removed; go to another one") from None
        if not is_utf8(here):
            raise UserError(f"{here!a}: the name of the working folder is not UTF-8; rename it")
        for name, kind in self.outputs.items():
            path: Path | None = getattr(self, name, None)
            if path is not None:
                with naming(path):
                    is_own = self.owns(path)
                require_output(path, kind, inputs=self._reads(), is_own=is_own)

    def owns(self, output: Path) -> bool:
        """Return whether an existing output is the command's own, which it continues."""
        return getattr(self, "resume", False) and not is_vacant(output)

    def _reads(self) -> Iterator[str]:
        """Yield the files, folders, globs and URIs that are read, but for the small files."""
        hints = typing.get_type_hints(type(self), include_extras=True)
        for name, value in self:
            if value is None or name in (*self.outputs, *self.small_files):
                continue
            if isinstance(value, Path):
                yield str(value)
            elif is_annotated(hints[name], RawPath):
                for text in (value,) if isinstance(value, str) else value:
                    yield from map(absolute_path, {text, text.partition("=")[2] or text})  # SPLIT=PATH, NAME=FOLDER

    def check(self) -> None:
        """Raise ConfigError for every mistake that can be found without the data."""

    def kept(self) -> str:
        """Say what a command that could not write any more leaves, and how it goes on; empty without an output."""
        output: Path | None = getattr(self, "output", None)
        if output is None:
            return ""
        with suppress(OSError, UserError):  # of a name that is too long, or a store
            if not is_vacant(output):
                again = "--resume continues from them" if hasattr(self, "resume") else "run again to continue"
                return f"finished parts are kept; {again}"
        return f"nothing was written to {output}"

    def with_absolute_paths(self) -> Self:
        """Return the same request for a process that runs in another folder of a machine with the same storage."""
        hints = typing.get_type_hints(type(self), include_extras=True)
        made: dict[str, Any] = {}
        for name, value in self:
            if name in self.small_files or value is None:
                continue
            if isinstance(value, Path):
                made[name] = value.expanduser().absolute()
            elif is_annotated(hints[name], RawPath):
                made[name] = absolute_path(value) if isinstance(value, str) else tuple(map(absolute_path, value))
        return self.model_copy(update=made)


def without_none(hint: Any) -> Any:
    """Return the type of a field that may be None, without None."""
    if type(None) not in typing.get_args(hint):
        return hint
    (member,) = (member for member in typing.get_args(hint) if member is not type(None))
    return member


def is_annotated(hint: Any, kind: type) -> bool:
    """Tell whether a field's type, None aside, has an annotation of this class."""
    return any(isinstance(item, kind) for item in getattr(without_none(hint), "__metadata__", ()))


class RecipeRequest(Request):
    """The request of a command that takes a recipe."""

    small_files: ClassVar[tuple[str, ...]] = ("recipe",)

    recipe: RecipeText
    """Shipped recipe (see `rayrec recipes`) or YAML file."""
    set: Overrides = ()
    """Override a key of the recipe; repeatable."""

    def load_recipe(self) -> Recipe:
        """Return the recipe with overrides applied. Raises ConfigError."""
        return self.read_recipe().resolve()

    def read_recipe(self) -> RecipeContent:
        """Return the recipe with overrides applied, before defaults are filled in. Raises ConfigError."""
        return read_recipe(self.recipe, self.overrides)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return all overrides, each `section.key=value`; later ones win."""
        return self.set

    def check(self) -> None:
        self.load_recipe()

    def with_absolute_paths(self) -> Self:
        """Also make the paths in the recipe absolute, by further overrides. Raises ConfigError on a wrong recipe."""
        paths = _relative_paths(self.load_recipe())
        overrides = tuple(f"{key}={path.absolute()}" for key, path in paths)
        return super().with_absolute_paths().model_copy(update={"set": (*self.set, *overrides)})


def _number_or_range(workers: int | str) -> int | str:
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", str(workers)):
        raise ValueError("write a number above 0, or MIN:MAX to train elastically")
    return workers if ":" in str(workers) else int(workers)


class TrainingRecipeRequest(RecipeRequest):
    """A request with short options for the recipe's `train` section; they win over `set`."""

    workers: Annotated[int | str, AfterValidator(_number_or_range), Metavar("N|MIN:MAX")] | None = None
    """Number of worker processes (train.workers); MIN:MAX trains elastically."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Device to train on (train.device)."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] | None = None
    """Arithmetic of the dense network (train.precision)."""

    @property
    def overrides(self) -> tuple[str, ...]:
        least, _, most = str(self.workers or "").rpartition(":")
        given = {"workers": most, "min_workers": least, "device": self.device, "precision": self.precision}
        short = [f"train.{key}={value}" for key, value in given.items() if value]
        return (*self.set, *short)


def absolute_path(text: str) -> str:
    """Return the absolute form of a path of raw files; a URI stays as it is."""
    return text if is_uri(text) else str(Path(os.path.expanduser(text)).absolute())


def _relative_paths(config: Config | dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the dotted key and value of each relative path in a config."""
    for name, value in config.items() if isinstance(config, dict) else config:
        if isinstance(value, Config | dict):
            yield from _relative_paths(value, f"{prefix}{name}.")
        elif isinstance(value, Path) and not value.is_absolute():
            yield f"{prefix}{name}", value
