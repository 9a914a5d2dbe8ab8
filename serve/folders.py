"""Contents of the folders that are served: models, their versions, and how traffic is split between them.

    FOLDER                a model folder: one model, whose only version is 1
    FOLDER/VERSION        model folders named by whole numbers: one model with versions
    FOLDER/NAME           folders of either kind: several models

`serving.json` beside the versions of a model says which of them answer; without it the newest does. It is the one
place that says so, for all replicas and for those that start later. `scan` reads names and small files only, so that it
can be called every second.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import NonNegativeFloat, ValidationError, model_validator

from rayrec.common.errors import UserError
from rayrec.config import Config
from rayrec.config.validation import describe_validation_error
from rayrec.inference.folder.table_files import is_model_folder
from rayrec.inference.folder.versions import folders_of, versions_in
from rayrec.store.files import write_atomically
from rayrec.store.node_copy import on_this_node, original
from rayrec.store.paths import place_on_this_node

TRAFFIC_FILE = "serving.json"
_COPY_SECONDS = 30.0
"""Between two listings of a bucket, which cost more than those of a folder."""


class TrafficSplit(Config):
    """The content of `serving.json`: which versions of a model answer."""

    weights: dict[str, NonNegativeFloat] = {}
    """Version -> share of the requests that name no version; shares need not add up to 1."""
    shadow: str | None = None
    """A version that scores the same requests for comparison; its scores are never the answer."""
    unloaded: bool = False
    """No version answers, until the model is loaded again."""

    @model_validator(mode="after")
    def _some_version_answers(self) -> "TrafficSplit":
        if not (any(self.weights.values()) or self.unloaded):
            raise ValueError("no version has a weight above 0, so none would answer")
        return self

    @property
    def versions(self) -> set[str]:
        """All versions that must be loaded."""
        return {*self.weights, *([self.shadow] if self.shadow is not None else [])}

    @classmethod
    def load(cls, folder: Path) -> "TrafficSplit | None":
        """Read `folder/serving.json`; None if it is absent. Raises UserError if it is invalid."""
        path = folder / TRAFFIC_FILE
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise UserError(f"{path}: {describe_validation_error(error, cls)}") from None

    @staticmethod
    def save(traffic: "TrafficSplit | None", folder: Path) -> None:
        """Write `folder/serving.json`, of a copy at its URI; None removes it. Raises UserError, OSError."""
        path = original(folder) / TRAFFIC_FILE
        if traffic is None:
            path.unlink(missing_ok=True)
        else:
            write_atomically(path, traffic.model_dump_json(exclude_defaults=True) + "\n")


@dataclass(frozen=True)
class ModelSource:
    """The place of the versions of one model."""

    folder: Path
    versions: Mapping[str, Path]
    """Version -> model folder, the newest first."""


class LocalModels:
    """Folders of models on this node: copies of those that are at URIs."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = {name: place_on_this_node(folder) for name, folder in folders.items()}
        self._given = list(folders.values())
        self._next = 0.0

    def refresh(self, now: bool = False) -> None:
        """Copy what is new, at most every 30 seconds unless it is to be done `now`. Raises UserError."""
        if now or time.monotonic() >= self._next:
            self._next = time.monotonic() + _COPY_SECONDS
            for folder in self._given:
                for needed in folders_of(folder):
                    on_this_node(needed)


def scan(folders: Mapping[str, Path]) -> dict[str, ModelSource]:
    """Return the models in `folders`, by name. Raises UserError if a folder holds none, or a name is found twice."""
    found: dict[str, ModelSource] = {}
    for name, folder in folders.items():
        source = _model_source(folder)
        sources = {name: source} if source else _models_in(folder)
        if not sources:
            raise UserError(
                f"{folder}: neither a model folder nor a folder of model folders; give the output of `rayrec export`"
            )
        for model, its_source in sources.items():
            if model in found:
                raise UserError(f"{its_source.folder}: the name '{model}' is used twice; give NAME=FOLDER")
            found[model] = its_source
    return found


def stamp_of_files(folder: Path) -> int:
    """Return a number that changes when a file below a model folder does: its name, size or time of change. Raises
    OSError.

    The files of a delta are also those of its base.
    """
    files = []
    for needed in folders_of(folder):
        for root, _, names in os.walk(needed):
            for path in sorted(os.path.join(root, name) for name in names if name != TRAFFIC_FILE):
                status = os.stat(path)
                files.append((path, status.st_ino, status.st_size, status.st_mtime_ns))
    return hash(tuple(files))


def _model_source(folder: Path) -> ModelSource | None:
    if is_model_folder(folder):
        return ModelSource(folder, {"1": folder})
    versions = versions_in(folder)
    if not versions:
        return None
    return ModelSource(folder, {str(number): versions[number] for number in sorted(versions, reverse=True)})


def _models_in(folder: Path) -> dict[str, ModelSource]:
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return {_as_text(child.name): source for child in children if (source := _model_source(child)) is not None}


def _as_text(name: str) -> str:
    """Return a folder's name without what is not UTF-8 in it, which neither JSON nor a URL can have."""
    return name.encode(errors="surrogateescape").decode(errors="replace")
