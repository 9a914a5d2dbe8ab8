"""Plug-ins: the kinds of sources and of models, each a package of its own."""

import importlib
import pkgutil
from functools import cached_property
from importlib import metadata, resources
from pathlib import Path
from types import ModuleType
from typing import Any

from rayrec.common.errors import UserError


class Plugins:
    """The packages of a group by kind.

    They are the sub-packages of the package `group` that have a module `config`, and what installed distributions
    declare as entry points of the group (docs/adding.md). So adding a folder adds a kind, and deleting one deletes it.
    """

    def __init__(self, group: str) -> None:
        self.group = group

    @cached_property
    def packages(self) -> dict[str, str]:
        """Return the name of each kind's package, by kind in alphabetical order."""
        (folder,) = importlib.import_module(self.group).__path__
        found = {point.name: point.value for point in metadata.entry_points(group=self.group)}
        for module in pkgutil.iter_modules([folder]):
            if (Path(folder) / module.name / "config.py").is_file():
                found[module.name] = f"{self.group}.{module.name}"
        return dict(sorted(found.items()))

    @cached_property
    def configs(self) -> dict[str, Any]:
        """Return the class of each kind's section of a recipe: `CONFIG` of its module `config`."""
        return {kind: self.load(kind, "config").CONFIG for kind in self.packages}

    def known(self, kind: str) -> str:
        """Return `kind`. Raises ValueError, which lists the kinds, if there is no such kind."""
        if kind not in self.packages:
            raise ValueError(f"no such kind; use {', '.join(self.packages)}")
        return kind

    def load(self, kind: str, module: str) -> ModuleType:
        """Return a module of the package of a kind. Raises UserError if it cannot be imported."""
        name = f"{self.packages[kind]}.{module}"
        try:
            return importlib.import_module(name)
        except Exception as error:
            raise UserError(
                f"plug-in '{kind}' of {self.group}: cannot import {name} ({type(error).__name__}: {error}); repair or "
                "uninstall the package that declares it"
            ) from error

    def texts(self, kind: str, suffix: str, folder: str = "") -> dict[str, str]:
        """Return the texts of such files in the kind's package, or in a folder of it, by name without `suffix`."""
        place = resources.files(self.packages[kind]) / folder
        files = [file for file in place.iterdir() if file.name.endswith(suffix)] if place.is_dir() else []
        return {file.name.removesuffix(suffix): file.read_text() for file in sorted(files, key=lambda file: file.name)}


SOURCES = Plugins("rayrec.sources")
MODELS = Plugins("rayrec.models")
