"""docs/recipe.md: every key of a recipe with its type, default and meaning, as the configs have them.

`python -m tests.recipe_reference` writes it, and the JSON Schema of the shipped recipes. Sources and models are those
that the registries find.
"""

import inspect
import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from rayrec.common.files import as_json
from rayrec.config import Config
from rayrec.recipes import SCHEMA_FILE, Recipe, recipe_schema

_REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENT = _REPOSITORY / "docs" / "recipe.md"
SCHEMA = _REPOSITORY / "rayrec" / SCHEMA_FILE
_INTRODUCTION = """\
# The keys of a recipe

A recipe is a YAML file with the sections {sections}. Only keys
whose default is "required" must be there; `rayrec recipes NAME` prints a recipe with every default filled in, and
`--set section.key=value` replaces a value on the command line. A key that is not on this page is an error, which names
the nearest one that is. `None` in a text is `null` in YAML.

This page is written by `python -m tests.recipe_reference` from the classes in `rayrec/config/`, of the sources and of
the models."""
Schema = dict[str, Any]
"""JSON schema, as pydantic makes it of a class or of a key."""


class _Use(NamedTuple):
    """A class that the value of a key may have."""

    name: str
    place: str
    """Where it stands: empty for the value itself and for items of a list, `.NAME` for values by name."""
    tag: str = ""
    """The key that tells it apart in a union, such as `kind`."""
    value: str = ""
    """The value of that key."""


class _Page:
    def __init__(self) -> None:
        self.recipe = Recipe.model_json_schema()
        self.classes: dict[str, Schema] = self.recipe["$defs"]
        self.headings: dict[str, str] = {}
        """By class, in the order of the page: the first key whose value may have the class gives it its heading."""

    def text(self) -> str:
        keys = self.recipe["properties"]
        whole = {key: node for key, node in keys.items() if not any(self.uses(node))}
        *sections, last = (f"[`{key}`](#{key})" for key in keys if key not in whole)
        introduction = _INTRODUCTION.format(sections=f"{', '.join(sections)} and {last}")
        parts = [introduction, "## The recipe as a whole", self.table("Recipe", whole)]
        for key, node in keys.items():
            if key not in whole:
                parts += self.section(key, node)
        return "\n\n".join(parts) + "\n"

    def section(self, key: str, node: Schema) -> Iterator[str]:
        known = len(self.headings)
        self.name_classes(key, node)
        yield f"## `{key}`"
        if any(use.tag for use in self.uses(node)):
            yield self.meaning("Recipe", key, node)
            yield f"It is chosen {self.type(node)}."
        for name in list(self.headings)[known:]:
            if self.headings[name] != f"`{key}`":
                yield f"### {self.headings[name]}"
            yield inspect.cleandoc(self.classes[name]["description"])
            yield self.table(name, {k: v for k, v in self.classes[name]["properties"].items() if "const" not in v})

    def name_classes(self, path: str, node: Schema, within: str = "") -> None:
        """Give the classes of a key, and of the keys in them, their headings; `within` is the kind that has the key."""
        for use in self.uses(node):
            if use.name not in self.headings:
                heading = f"`{path}{use.place}`" + (f": `{use.tag}: {use.value}`" if use.tag else "")
                if heading in self.headings.values():
                    heading += f" under `{within}`"
                self.headings[use.name] = heading
                for key, inner in self.classes[use.name]["properties"].items():
                    self.name_classes(f"{path}{use.place}.{key}", inner, use.value or within)

    def uses(self, node: Schema, place: str = "") -> Iterator[_Use]:
        """Yield the classes that the value of a key may have."""
        if "$ref" in node:
            yield _Use(node["$ref"].rpartition("/")[2], place)
        if "discriminator" in node:
            tag = node["discriminator"]["propertyName"]
            for value, reference in node["discriminator"]["mapping"].items():
                yield _Use(reference.rpartition("/")[2], place, tag, value)
        for inner in node.get("anyOf", []):
            yield from self.uses(inner, place)
        if "items" in node:
            yield from self.uses(node["items"], place)
        if isinstance(node.get("additionalProperties"), dict):
            yield from self.uses(node["additionalProperties"], f"{place}.NAME")

    def table(self, name: str, keys: dict[str, Schema]) -> str:
        if not keys:
            return "It has no settings."
        required = [] if name == "Recipe" else self.classes[name].get("required", [])
        rows = ["| key | value | default | |", "| --- | --- | --- | --- |"]
        for key, node in keys.items():
            default = "required" if key in required else self.default(node)
            cells = (f"`{key}`", self.type(node), default, self.meaning(name, key, node))
            rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        return "\n".join(rows)

    def meaning(self, name: str, key: str, node: Schema) -> str:
        """The docstring of a key: its own, that of the class which it is overridden from, or that of its value's."""
        config = next(config for config in _subclasses(Config) if config.__name__ == name)
        fields = (base.model_fields[key] for base in config.__mro__ if key in getattr(base, "model_fields", {}))
        own = (field.description for field in fields if field.description)
        of_value = (self.classes[use.name]["description"].partition("\n\n")[0] for use in self.uses(node))
        text = next(chain(own, of_value), None)
        assert text is not None, f"{name}.{key}: has no docstring"
        return " ".join(text.split())

    def type(self, node: Schema) -> str:
        """The values that a key may have, in words."""
        if "$ref" in node:
            return self.link(*self.uses(node))
        if "discriminator" in node:
            return f"by `{node['discriminator']['propertyName']}`: {_either(map(self.link, self.uses(node)))}"
        if "anyOf" in node or "enum" in node:
            return _either(self.alternatives(node))
        if node.get("type") == "array":
            if "prefixItems" in node:
                return f"list of {', '.join(map(self.type, node['prefixItems']))}"
            least = f" (at least {node['minItems']})" if node.get("minItems", 0) > 1 else ""
            of = ", each " if "discriminator" in node["items"] else " of "
            return f"list{of}{self.type(node['items'])}{least}"
        if node.get("type") == "object":
            values = node["additionalProperties"]
            names = self.type(node["propertyNames"]) if "propertyNames" in node else "name"
            return f"by {names}: {self.type(values) if isinstance(values, dict) else 'any value'}"
        return _scalar(node)

    def alternatives(self, node: Schema) -> Iterator[str]:
        if "enum" in node or "const" in node:
            yield from (f"`{value}`" for value in node.get("enum", [node.get("const")]))
        elif "anyOf" in node:
            for inner in node["anyOf"]:
                yield from self.alternatives(inner)
        else:
            yield self.type(node)

    def link(self, use: _Use) -> str:
        heading = self.headings[use.name]
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        return f"[{f'`{use.value}`' if use.value else heading}](#{anchor})"

    def default(self, node: Schema) -> str:
        if "default" not in node:
            return ""
        value = self.without_defaults(node["default"], node)
        return "" if value == {} and "$ref" in node else f"`{json.dumps(value, ensure_ascii=False)}`"

    def without_defaults(self, value: Any, node: Schema) -> Any:
        """A default without what the classes in it have by default themselves."""
        if isinstance(value, list):
            return [self.without_defaults(item, node) for item in value]
        if not isinstance(value, dict):
            return value
        for use in self.uses(node):
            if not use.tag or value.get(use.tag) == use.value:
                keys = self.classes[use.name]["properties"]
                kept = {k: self.without_defaults(v, keys[k]) for k, v in value.items() if v != keys[k].get("default")}
                return {**({use.tag: use.value} if use.tag else {}), **kept}
        return value


def _subclasses(config: type[Config]) -> Iterator[type[Config]]:
    yield config
    for subclass in config.__subclasses__():
        yield from _subclasses(subclass)


def _either(texts: Iterable[str]) -> str:
    *before, last = dict.fromkeys(texts)
    return f"{', '.join(before)} or {last}" if before else last


def _scalar(node: Schema) -> str:
    """A text, number or truth value, with its bounds."""
    name = {"string": "text", "boolean": "`true` or `false`", "null": "`null`"}.get(node["type"], node["type"])
    name = node.get("format", name)
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    if "minimum" in node:
        words.pop("exclusiveMinimum")
    limits = [f"{word} {node[bound]:g}" for bound, word in words.items() if bound in node]
    pattern = [f"that matches `{node['pattern']}`"] if "pattern" in node else []
    return " ".join([name, *limits, *pattern])


def document() -> str:
    """The page."""
    return _Page().text()


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    SCHEMA.write_text(as_json(recipe_schema()))
