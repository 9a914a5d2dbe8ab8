"""The arguments of the application; imports no Ray, whose settings are read when it is imported."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, field_validator

from rayrec.common.errors import ConfigError
from rayrec.config import ServeConfig
from rayrec.storage.location import Folder, local_path
from rayrec.storage.mlflow_server import REGISTRY_SCHEME, registered_name


class ServeArguments(ServeConfig):
    """Arguments of `serve.app:build`. Settings not given come from the `serve` section of the first model's config."""

    model: dict[str, Folder] = Field(min_length=1)
    """Folders by name: a model, the versions of one, or several models (see `serve.models.repository`). Also read from
    text: `FOLDER`, whose name becomes the model's, or `NAME=FOLDER`, several separated by commas."""

    log_folder: Path | None = None
    """The folder in which each replica writes its own log files (JSON lines); if absent, comparisons with a shadow are
    in Ray Serve's logs and requests are not logged."""

    token_file: Path | None = None
    """Tokens, one a line, of which each request must have one; if absent, those of RAYREC_SERVE_TOKENS, if any."""

    @field_validator("model", mode="before")
    @classmethod
    def _read_text(cls, value: object) -> object:
        return named_folders(value.split(",")) if isinstance(value, str) else value

    def settings(self, recipe: ServeConfig) -> ServeConfig:
        """The recipe's settings, replaced by those given here."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name in ServeConfig.model_fields}
        return recipe.model_copy(update=given)


def named_folders(arguments: Sequence[str]) -> dict[str, Path]:
    """Folders by name, from `NAME=FOLDER` or `FOLDER`, which may be URIs.

    Raises ConfigError for a name that is used twice or cannot stand in a URL.
    """
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, separator, folder = argument.partition("=")
        if not separator or "/" in name:
            is_registered = argument.startswith(REGISTRY_SCHEME)
            name = registered_name(argument) if is_registered else local_path(argument).absolute().name
            folder = argument
        # A folder's name that is not UTF-8 has lone surrogates.
        if not name or any(character in "/:?#%" or "\ud800" <= character <= "\udfff" for character in name):
            raise ConfigError(f"model '{argument}': '{name}' cannot stand in a URL; give NAME=FOLDER with a plain name")
        if name in folders:
            raise ConfigError(f"model '{argument}': the name '{name}' is used twice; give NAME=FOLDER")
        folders[name] = local_path(folder).absolute()
    return folders
