"""Values and YAML files that people write: reading them, and one line on what is wrong with them."""

import difflib
import re
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rayrec.common.errors import ConfigError

_TAGS = ("kind", "op")
"""Keys that tell apart the members of a union."""
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
"""The user and the password in a URI, which must not be shown again."""


def describe_validation_error(error: ValidationError, root: type[BaseModel]) -> str:
    """One line on the first problem of `error`, with the nearest known key if a key is unknown."""
    # A missing key may be there under a wrong name; that error says more.
    first = min(error.errors(), key=lambda found: found["type"] == "missing")
    location, _ = _locate(root, first["loc"])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        *parents, key = first["loc"]
        _, configs = _locate(root, parents)
        known = sorted({name for c in configs for name in c.model_fields})
        nearest = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known keys: {', '.join(known)}"
        return f"unknown key '{location}'; {hint}{more}"
    if first["type"] == "union_tag_not_found":
        return f"{location}: say which kind it is (key 'kind'){more}"
    if first["type"] == "missing":
        return f"{location}: missing; it is required{more}"
    if first["type"] == "json_invalid":
        return "damaged, not whole JSON; make it again"
    message = first["msg"].removeprefix("Value error, ")
    is_section = isinstance(first["input"], (dict, BaseModel))
    shown = "" if is_section else f" (got {_PASSWORD.sub('://...@', repr(first['input']))})"
    return f"{f'{location}: ' if location else ''}{message}{shown}{more}"


def _locate(root: type[BaseModel], location: Iterable[int | str]) -> tuple[str, list[type[BaseModel]]]:
    """`location` as a person writes it, without pydantic's tags of unions, and the configs that may lie there."""
    path: list[str] = []
    configs = [root]
    for part in location:
        tagged = [c for c in configs if part in {c.model_fields[t].default for t in _TAGS if t in c.model_fields}]
        if tagged:
            configs = tagged
            continue
        path.append(str(part))
        inner = [m for c in configs if part in c.model_fields for m in _configs_in(c.model_fields[part].annotation)]
        configs = inner or configs
    return ".".join(path), configs


def _configs_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for argument in typing.get_args(annotation) for m in _configs_in(argument)]


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
        content = yaml.load(text, yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{origin}{where}: {problem}; fix the YAML") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{origin}: {what}")
    return content
