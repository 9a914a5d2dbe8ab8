"""One line on what is wrong with a value that a person wrote."""

import difflib
import re
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

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
    shown = (
        ""
        if isinstance(first["input"], (dict, BaseModel))
        else f" (got {_PASSWORD.sub('://...@', repr(first['input']))})"
    )
    return f"{location}: {message}{shown}{more}" if location else f"{message}{shown}{more}"


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
