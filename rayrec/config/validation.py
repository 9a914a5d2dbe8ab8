"""Values and YAML files that people write: reading them, and one line on what is wrong with them."""

import re
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rayrec.common.errors import ConfigError, did_you_mean

_TAGS = ("kind", "op")
"""Keys that tell apart the members of a union."""
_SCALAR = re.compile(r"(constrained-)?(str|int|float|bool)$|(literal|function-\w+|tuple|list|dict|nullable)\[")
"""The names that pydantic gives to members of unions that are no configs."""
_PLAIN = {
    **dict.fromkeys(("tuple_type", "list_type"), "must be a list"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be a section of keys and values"),
}
"""Messages on errors that pydantic describes in terms of Python."""
_BOOLEAN = "tag:yaml.org,2002:bool"
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
"""The user and the password in a URI, which must not be shown again."""


def describe_validation_error(error: ValidationError, root: type[BaseModel]) -> str:
    """One line on the first problem of `error`, with the nearest known key if a key is unknown."""
    found = _one_for_each_place(error, root)
    # A missing key may be there under a wrong name; that error says more.
    location, first = min(found, key=lambda problem: problem[1]["type"] == "missing")
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if first["type"] == "extra_forbidden":
        *parents, key = first["loc"]
        _, configs = _locate(root, parents)
        known = sorted({name for c in configs for name in c.model_fields})
        return f"unknown key '{location}'; {did_you_mean(str(key), known, 'known keys:')}{more}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"].strip("'")
        return f"{location}: say which {tag} it is (key '{tag}'){more}"
    if first["type"] == "union_tag_invalid":
        tag, given = first["ctx"]["discriminator"].strip("'"), first["ctx"]["tag"]
        known = re.findall("'([^']*)'", first["ctx"]["expected_tags"])
        return f"{location}.{tag}: no such {tag} '{given}'; {did_you_mean(given, known, 'use')}{more}"
    if first["type"] == "missing":
        return f"{location}: missing; it is required{more}"
    if first["type"] == "json_invalid":
        return "damaged, not whole JSON; make it again"
    message = _PLAIN.get(first["type"], first["msg"].removeprefix("Value error, "))
    is_section = isinstance(first["input"], (dict, BaseModel))
    shown = "" if is_section else f" (got {_PASSWORD.sub('://...@', repr(first['input']))})"
    return f"{f'{location}: ' if location else ''}{message}{shown}{more}"


def _one_for_each_place(error: ValidationError, root: type[BaseModel]) -> list[tuple[str, Any]]:
    """The problems of `error` with the places that they are at, where pydantic has one for each member of a union."""
    found: dict[str, Any] = {}
    for problem in error.errors():
        place = _locate(root, problem["loc"])[0]
        # That a section is no scalar, where both may stand, says less than what is wrong with it.
        if place not in found or (isinstance(problem["input"], dict) and found[place]["type"] != "value_error"):
            found[place] = problem
    sections = {place for place, problem in found.items() if isinstance(problem["input"], dict)}
    inner = {place for place in sections for other in found if other.startswith(f"{place}.")}
    return [(place, problem) for place, problem in found.items() if place not in inner]


def _locate(root: type[BaseModel], location: Iterable[int | str]) -> tuple[str, list[type[BaseModel]]]:
    """`location` as a person writes it, without pydantic's names of unions' members, and the configs that may lie
    there."""
    path: list[str] = []
    configs = [root]
    for part in location:
        tagged = [c for c in configs if part in {c.model_fields[t].default for t in _TAGS if t in c.model_fields}]
        if tagged:
            configs = tagged
            continue
        if _SCALAR.match(str(part)) or part in {c.__name__ for c in configs}:
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


class _Loader(yaml.CSafeLoader):
    pass


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != _BOOLEAN]
    for first, found in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOLEAN, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, in which `on`, `yes` and `NO` are texts, as in YAML 1.2. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def parse_mapping(origin: str, text: str, what: str) -> dict[str, Any]:
    """The mapping that a YAML text holds; `what` it is, as an error says it. Raises ConfigError."""
    try:
        content = parse_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not YAML"
        raise ConfigError(f"{origin}{where}: {problem}; fix the YAML") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{origin}: {what}")
    return content
