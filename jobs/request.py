"""What the requests of the commands share: how one is checked and made fit for another machine, recipes, options."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator

from rayrec.common.files import is_uri
from rayrec.config import Config
from rayrec.recipes import Recipe, RecipeContent, read_recipe


class Request(Config):
    """What a command is asked. Its fields are the command's options."""

    small_files: ClassVar[tuple[str, ...]] = ()
    """Fields that may name a YAML file, which travels with a submitted job; other paths are those of shared storage."""

    def check(self) -> None:
        """Raise ConfigError for whatever can be told to be wrong without the data."""

    def reads(self) -> Iterator[Path]:
        """The folders that the command reads, some of which may be staged ones of URIs."""
        yield from (value for name, value in self if isinstance(value, Path) and name != "output")

    @property
    def continues(self) -> bool:
        """Whether the command goes on with what is in its `output`."""
        return bool(getattr(self, "resume", False))

    def with_absolute_paths(self) -> Self:
        """The same request for a process that runs in another folder of a machine with the same storage."""
        changed = {name: _absolute(value) for name, value in self if name not in self.small_files}
        return self.model_copy(update=changed)


class RecipeRequest(Request):
    """A command that takes a recipe."""

    small_files: ClassVar[tuple[str, ...]] = ("recipe",)

    recipe: str
    """Name of a shipped recipe, or path of a YAML file."""
    set: tuple[str, ...] = ()
    """Overrides, each `section.key=value`."""

    def load_recipe(self) -> Recipe:
        """The recipe with overrides applied. Raises ConfigError."""
        return self.read_recipe().resolve()

    def read_recipe(self) -> RecipeContent:
        """The same before it is resolved. Raises ConfigError."""
        return read_recipe(self.recipe, self.overrides)

    @property
    def overrides(self) -> tuple[str, ...]:
        """All overrides, each `section.key=value`."""
        return self.set

    def check(self) -> None:
        self.load_recipe()

    def with_absolute_paths(self) -> Self:
        """Raises ConfigError where the recipe is wrong."""
        paths = _relative_paths(self.load_recipe())
        overrides = tuple(f"{key}={path.absolute()}" for key, path in paths)
        return super().with_absolute_paths().model_copy(update={"set": (*self.set, *overrides)})


def _number_or_range(workers: int | str) -> int | str:
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", str(workers)):
        raise ValueError("write a number above 0, or MIN:MAX to train elastically")
    return workers if ":" in str(workers) else int(workers)


class TrainingRecipeRequest(RecipeRequest):
    """A command whose recipe's `train` section has short options; they win over `set`."""

    workers: Annotated[int | str, AfterValidator(_number_or_range)] | None = None
    """Short for --set train.workers=N; MIN:MAX trains elastically, with train.min_workers=MIN."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Short for --set train.device=..."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] | None = None
    """Short for --set train.precision=..."""

    @property
    def overrides(self) -> tuple[str, ...]:
        least, _, most = str(self.workers or "").rpartition(":")
        given = {"workers": most, "min_workers": least, "device": self.device, "precision": self.precision}
        short = [f"train.{key}={value}" for key, value in given.items() if value]
        return (*self.set, *short)


def absolute_path(text: str) -> str:
    """Path of raw files that may be a URI, as it reads from any folder."""
    return text if is_uri(text) else str(Path(text).expanduser().absolute())


def _absolute(value: Any) -> Any:
    if isinstance(value, Path):
        return value.expanduser().absolute()
    if isinstance(value, tuple):
        return tuple(_absolute(item) for item in value)
    return value


def _relative_paths(config: Config, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """The relative paths in a config, each with its dotted key."""
    for name, value in config:
        if isinstance(value, Config):
            yield from _relative_paths(value, f"{prefix}{name}.")
        elif isinstance(value, Path) and not value.is_absolute():
            yield f"{prefix}{name}", value
