"""YAML files that people write, with errors that name the file and the line."""

from pathlib import Path
from typing import Any

import yaml

from rayrec.common.errors import ConfigError


def is_yaml_file(name: str | Path) -> bool:
    """Whether `name` is that of a YAML file, not of something shipped."""
    return Path(name).suffix in {".yaml", ".yml"}


def read_text(path: Path, what: str) -> str:
    """The text of a file; `what` it should be. Raises ConfigError."""
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}; give a {what} file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; give a YAML {what}") from None


def parse_mapping(origin: str, text: str, what: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; `what` it is, as an error says it. Raises ConfigError."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{origin}{where}: {problem}; fix the YAML") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{origin}: {what}")
    return content
