"""Values and YAML files that people write: reading them, and one line on what is wrong with them."""

import difflib
import re
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from rayrec.common.errors import ConfigError, UserError, did_you_mean

ModelT = TypeVar("ModelT", bound=BaseModel)

_NAME, _NUMBER = "NAME", "N"
"""Stand for a name of the user's own, and for a place in a list, in the path of a key."""
_TAGS = ("kind", "op")
"""Keys that tell apart the members of a union."""
_SCALAR = re.compile(r"(constrained-)?(str|int|float|bool)$|(literal|function-\w+|tuple|list|dict|nullable)\[")
"""The names that pydantic gives to members of unions that are no configs."""
_TYPES = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a section of keys and values"),
    "string_type": "a text",
    "path_type": "a path",
    "literal_error": "{expected}",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "below {lt:g}",
    "less_than_equal": "at most {le:g}",
}
"""What a value must be, by pydantic's type of the error."""
_MOST_PATHS = 2
_LIKE = 0.8
"""How like a key must be to one of another section."""
_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
"""The user and the password in a URI, which must not be shown again."""


def describe_validation_error(error: ValidationError, root: type[BaseModel]) -> str:
    """Return one line on the first problem of `error`, which says what to write instead."""
    # pydantic lists every problem, in its own terms. One is told, at the place where a person wrote it.
    found = _by_place(error, root)
    # A missing key may be there under a wrong name; that error says more.
    location, problems = min(found, key=lambda item: item[1][0]["type"] == "missing")
    first = problems[0]
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{_unknown_key(root, first['loc'])}{more}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"].strip("'")
        return f"{location}: say which {tag} it is (key '{tag}'){more}"
    if first["type"] == "union_tag_invalid":
        tag, given = first["ctx"]["discriminator"].strip("'"), first["ctx"]["tag"]
        known = re.findall("'([^']*)'", first["ctx"]["expected_tags"])
        return f"{location}.{tag}: no such {tag} '{given}'; {did_you_mean(given, known, 'use')}{more}"
    if first["type"] == "missing":
        return f"{location}: missing; it is required{more}"
    if first["type"] == "invalid_key":
        return f"{_locate(root, first['loc'][:-1])[0] or 'top level'}: {_wrong_key(first['input'])}{more}"
    if first["type"] == "json_invalid":
        return "not whole JSON"
    is_section = isinstance(first["input"], (dict, BaseModel))
    shown = "" if is_section else f" (got {_PASSWORD.sub('://...@', repr(first['input']))})"
    return f"{f'{location}: ' if location else ''}{_advice(problems, root)}{shown}{more}"


def _advice(problems: list[Any], root: type[BaseModel]) -> str:
    """Say what a value must be; several problems at one place are those of the members of a union."""
    if all(problem["type"] in _TYPES for problem in problems):
        return f"must be {' or '.join(dict.fromkeys(_TYPES[p['type']].format(**p.get('ctx', {})) for p in problems))}"
    problem = next((p for p in problems if p["type"] not in _TYPES), problems[0])
    if problem["type"] in ("too_short", "too_long"):
        least, most = problem["ctx"].get("min_length"), problem["ctx"].get("max_length")
        count, word = (least, "at least") if least is not None else (most, "at most")
        return f"give {word} {count} {'entry' if count == 1 else 'entries'}"
    if problem["type"] == "string_pattern_mismatch":
        *parents, key = problem["loc"]
        fields = (c.model_fields[key] for c in _locate(root, parents)[1] if key in c.model_fields)
        examples = [example for field in fields for example in field.examples or ()]
        return f"write it as in '{examples[0]}'" if examples else f"must match {problem['ctx']['pattern']}"
    message: str = problem["msg"]
    return message.removeprefix("Value error, ")


def _wrong_key(key: Any) -> str:
    """Say what to write instead of a key that is no text."""
    if isinstance(key, bool):
        # Programs for YAML 1.1 read `on` so, and write what they have read.
        meant, other = ("on", "yes") if key else ("off", "no")
        return f"a key is {str(key).lower()}; write '{meant}' in quotes (YAML 1.1 reads {meant} and {other} so)"
    return f"the key {key} is no text; write '{key}' in quotes"


def _unknown_key(root: type[BaseModel], location: Iterable[int | str]) -> str:
    """Say what an unknown key may have been meant as: a key beside it, or one of another section."""
    *parents, key = map(str, location)
    path, configs = _locate(root, parents)
    place = f"{path}.{key}" if path else key
    beside = sorted({name for config in configs for name in config.model_fields})
    every_key = dict.fromkeys(_all_keys(root))
    # Names come from outside, and long ones would take long to compare.
    names = {path.rsplit(".")[-1] for path in every_key} - {*_TAGS}
    nearest = difflib.get_close_matches(key[:100], names, n=1, cutoff=_LIKE)
    if nearest and not difflib.get_close_matches(key[:100], beside, cutoff=_LIKE):
        meant = [path for path in every_key if path.endswith(f".{nearest[0]}")]
        # A key that is there under another kind is no mistake of the section.
        if meant and re.sub(r"\.\d+(?=\.)", f".{_NUMBER}", place) not in meant:
            return f"unknown key '{place}'; did you mean {' or '.join(meant[:_MOST_PATHS])}?"
    return f"unknown key '{place}'; {did_you_mean(key, beside, 'known keys:')}"


def _all_keys(config: type[BaseModel], within: str = "", above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """Yield the path of each key in a config and in the configs that it holds, whatever their kinds; once in those that
    hold their own kind.
    """
    for key, field in config.model_fields.items():
        yield f"{within}{key}"
        for inner, step in _configs_in(field.annotation):
            if inner not in above:
                yield from _all_keys(inner, ".".join([f"{within}{key}", *step, ""]), (*above, config))


def _by_place(error: ValidationError, root: type[BaseModel]) -> list[tuple[str, list[Any]]]:
    """Return the problems of `error` by the place that they are at: pydantic has one for each member of a union."""
    found: dict[str, list[Any]] = {}
    for problem in error.errors():
        place = _locate(root, problem["loc"])[0]
        before = found.get(place, [])
        # That a section is no scalar, where both may stand, says less than what is wrong with it.
        is_better = isinstance(problem["input"], dict) and before and before[0]["type"] != "value_error"
        found[place] = [problem] if is_better else [*before, problem]
    # Of a section, and of a list that is too short as pydantic does not count the wrong entries.
    around = {
        place
        for place, (first, *_) in found.items()
        if isinstance(first["input"], dict) or first["type"] == "too_short"
    }
    told = {place for place in around for other in found if other.startswith(f"{place}.")}
    return [(place, problems) for place, problems in found.items() if place not in told]


def _locate(root: type[BaseModel], location: Iterable[int | str]) -> tuple[str, list[type[BaseModel]]]:
    """Return `location` as a person writes it, without pydantic's names of unions' members, and the configs there."""
    path: list[str] = []
    configs = [root]
    for part in location:
        # pydantic adds the tag, the type or the class of a union's member to the path; none is a key that was written.
        tagged = [c for c in configs if part in {c.model_fields[t].default for t in _TAGS if t in c.model_fields}]
        if tagged:
            configs = tagged
            continue
        if _SCALAR.match(str(part)) or part in {c.__name__ for c in configs}:
            continue
        path.append(str(part))
        fields = [c.model_fields[part] for c in configs if part in c.model_fields]
        inner = [config for field in fields for config, _ in _configs_in(field.annotation)]
        configs = inner or configs
    return ".".join(path), configs


def _configs_in(annotation: Any, step: tuple[str, ...] = ()) -> Iterator[tuple[type[BaseModel], tuple[str, ...]]]:
    """Yield the configs that a value may be or hold, each with the number or name that leads to it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, step
    origin = typing.get_origin(annotation)
    inner = (*step, _NUMBER) if origin in (tuple, list) else (*step, _NAME) if origin is dict else step
    for argument in typing.get_args(annotation):
        yield from _configs_in(argument, inner)


def read_json(kind: type[ModelT], path: Path, remedy: str) -> ModelT | None:
    """Read a file that rayrec wrote as JSON; None if there is no such file.

    Raises UserError that ends with the `remedy` if the file is damaged, or of another version of rayrec.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        reason = f"damaged ({describe_validation_error(error, kind)})"
        if any(problem["loc"] == ("version",) for problem in error.errors()):
            reason = "written by another version of rayrec"
        raise UserError(f"{path}: {reason}; {remedy}") from None


def is_yaml_file(name: str | Path) -> bool:
    """Return whether `name` is that of a YAML file, not of something shipped."""
    return Path(name).suffix in {".yaml", ".yml"}


def read_text(path: Path, what: str) -> str:
    """Return the text of a file; `what` it should be. Raises ConfigError."""
    try:
        return path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or 'cannot be read').lower()}; give a {what} file") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not UTF-8 text; give a YAML {what}") from None


_CORE = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": "<<",
}
"""The plain texts that are no texts: those of YAML 1.2, but for digits with leading zeros, which are ids."""


class _Loader(yaml.CSafeLoader):
    """Reads by YAML 1.2; PyYAML reads by YAML 1.1, where 010 is 8, 12:30:00 is 45000, and a day or `no` is no text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is there twice; PyYAML would take the last one."""
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    problem = f"key '{key.value}' is there twice; keep one"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


class _Dumper(yaml.CSafeDumper):
    """Quotes what is a text to us and not to a reader of YAML 1.1, and the other way round."""


_Loader.yaml_implicit_resolvers = {  # None: whatever a text begins with
    None: [(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{pattern})$")) for tag, pattern in _CORE.items()]
}
_Dumper.yaml_implicit_resolvers = {**yaml.CSafeDumper.yaml_implicit_resolvers, **_Loader.yaml_implicit_resolvers}


def dump_yaml(value: Any, **options: Any) -> str:
    """Return a value as YAML, of which `parse_yaml` makes an equal one."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, **options)


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text, by the rules of YAML 1.2. Raises yaml.YAMLError."""
    return yaml.load(text, _Loader)


def parse_mapping(origin: str, text: str, what: str) -> dict[str, Any]:
    """Return the mapping that a YAML text holds. Raises ConfigError, with `what` it must be."""
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
