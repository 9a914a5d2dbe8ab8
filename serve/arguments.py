"""The arguments of the application; imports no Ray, whose settings are read when it is imported."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, field_validator

from rayrec.common.errors import ConfigError
from rayrec.config import RecommendConfig, ServeConfig
from rayrec.inference.folder.table_files import is_model_folder
from rayrec.store.mlflow_server import registered_name
from rayrec.store.paths import REGISTRY_SCHEME, Folder, RemotePath, to_path


class ServeArguments(ServeConfig):
    """Arguments of `serve.app:build`. Settings not given come from the `serve` section of the first model's config."""

    model: dict[str, Folder] = Field(min_length=1)
    """Folders by name: a model, the versions of one, or several models (see `serve.folders`). Also read from
    text: `FOLDER`, whose name becomes the model's (of `ctr/models`, `ctr`), or `NAME=FOLDER`, several with commas."""

    log_folder: Path | None = None
    """The folder in which each replica writes its own log files (JSON lines); if absent, comparisons with a shadow are
    in Ray Serve's logs and requests are not logged."""

    token_file: Path | None = None
    """Tokens, one a line, of which each request must have one; if absent, those of RAYREC_SERVE_TOKENS, if any."""

    root_path: str = ""
    """What paths begin with behind a proxy that does not take it away, as `/rank`."""

    @field_validator("model", mode="before")
    @classmethod
    def _read_text(cls, value: object) -> object:
        return named_folders(value.split(",")) if isinstance(value, str) else value

    @field_validator("recommend")
    @classmethod
    def _is_of_a_model(cls, value: RecommendConfig) -> RecommendConfig:
        if value != RecommendConfig():
            raise ValueError("each model keeps its own; set serve.recommend in the config.yaml of its folder")
        return value

    @field_validator("root_path")
    @classmethod
    def _is_root_path(cls, path: str) -> str:
        return require_root_path(path)

    def settings(self, recipe: ServeConfig) -> ServeConfig:
        """Return the recipe's settings, replaced by those given here."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name in ServeConfig.model_fields}
        return recipe.model_copy(update=given)


def require_root_path(path: str) -> str:
    """Return `path` if it is empty or one that a proxy may have before others. Raises ValueError."""
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path):
        raise ValueError("write it as /rank or /team/rank, of letters, digits, '.', '_', '~' and '-'")
    return path


def _name_of(folder: Path) -> str:
    """Return the folder's name; of CTR/models, where `rayrec run --continue CTR` keeps versions, that of CTR."""
    path = folder if isinstance(folder, RemotePath) else Path(os.path.abspath(folder))
    if path.name != "models" or (not isinstance(path, RemotePath) and is_model_folder(path)):
        return path.name
    return path.parent.name or path.name


def named_folders(arguments: Sequence[str]) -> dict[str, Path]:
    """Return the folders by name, from `NAME=FOLDER` or `FOLDER`, which may be URIs.

    Raises ConfigError for a name that is used twice or cannot stand in a URL.
    """
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, separator, folder = argument.partition("=")
        if not separator or "/" in name:
            is_registered = argument.startswith(REGISTRY_SCHEME)
            name = registered_name(argument) if is_registered else _name_of(to_path(argument))
            folder = argument
        # In a URL the other characters are encoded.
        if name in {"", ".", ".."} or not name.isprintable() or any(character in name for character in "/:"):
            raise ConfigError(f"model '{argument}': '{name}' cannot stand in a URL; give NAME=FOLDER with a plain name")
        if name in folders:
            raise ConfigError(f"model '{argument}': the name '{name}' is used twice; give NAME=FOLDER")
        folders[name] = to_path(folder).absolute()
    return folders
