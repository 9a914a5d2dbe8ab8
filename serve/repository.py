"""What lies in the folders that are served: models, their versions, and how traffic is split between them.

    FOLDER                a model folder: one model, its only version is 1
    FOLDER/VERSION        model folders named by whole numbers: one model with versions
    FOLDER/NAME           folders of either kind: several models

`serving.json` beside the versions of a model says which of them answer; without it the newest does. Reads names and
small files only, so that it can be called every second.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeFloat, ValidationError, model_validator

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.validation import describe_validation_error
from rayrec.inference.folder.layout import is_model_folder

TRAFFIC_FILE = "serving.json"


class Traffic(Config):
    """The content of `serving.json`: which versions of a model answer."""

    weights: dict[str, NonNegativeFloat]
    """Version -> share of the requests that name no version; shares need not add up to 1."""
    shadow: str | None = None
    """A version that scores the same requests for comparison; its scores are never the answer."""

    @model_validator(mode="after")
    def _somebody_answers(self) -> "Traffic":
        if not any(self.weights.values()):
            raise ValueError("no version has a weight above 0; nobody would answer")
        return self

    @property
    def versions(self) -> set[str]:
        """All that must be loaded."""
        return {*self.weights, *([self.shadow] if self.shadow is not None else [])}

    @classmethod
    def load(cls, folder: Path) -> "Traffic | None":
        """Read `folder/serving.json`, None where there is none. Raises UserError where it is invalid."""
        path = folder / TRAFFIC_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise UserError(f"{path}: {describe_validation_error(error, cls)}") from None


@dataclass(frozen=True)
class ModelSource:
    """Where the versions of one model lie."""

    folder: Path
    versions: Mapping[str, Path]
    """Version -> model folder, the newest first."""


def scan(folders: Mapping[str, Path]) -> dict[str, ModelSource]:
    """The models in `folders`, by name. Raises UserError where one holds none, or a name is found twice."""
    found: dict[str, ModelSource] = {}
    for name, folder in folders.items():
        source = _model_source(folder)
        sources = {name: source} if source else dict(_models_in(folder))
        if not sources:
            raise UserError(
                f"{folder}: neither a model folder nor a folder of model folders; give the output of `rayrec export`"
            )
        for model, its_source in sources.items():
            if model in found:
                raise UserError(f"{its_source.folder}: the name '{model}' is used twice; give NAME=FOLDER")
            found[model] = its_source
    return found


def fingerprint(folder: Path) -> int:
    """A number that changes when a file below `folder` does: names, sizes, times of change. Raises OSError."""
    return hash(tuple(_files(folder)))


def _files(folder: Path) -> Iterator[tuple[str, int, int, int]]:
    for root, _, names in os.walk(folder):
        for name in sorted(names):
            status = os.stat(os.path.join(root, name))
            yield os.path.join(root, name), status.st_ino, status.st_size, status.st_mtime_ns


def _model_source(folder: Path) -> ModelSource | None:
    if is_model_folder(folder):
        return ModelSource(folder, {"1": folder})
    numbers = [int(entry.name) for entry in _children(folder) if _is_version(entry.name) and is_model_folder(entry)]
    if not numbers:
        return None
    return ModelSource(folder, {str(number): folder / str(number) for number in sorted(numbers, reverse=True)})


def _models_in(folder: Path) -> Iterator[tuple[str, ModelSource]]:
    for child in _children(folder):
        source = _model_source(child)
        if source is not None and not child.name.startswith("."):
            yield child.name, source


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry) for entry in os.scandir(folder) if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_version(name: str) -> bool:
    """Whole numbers from 1, written without leading zeros, so that a version has one name."""
    return name.isascii() and name.isdigit() and not name.startswith("0")
