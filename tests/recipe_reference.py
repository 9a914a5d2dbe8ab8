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

import yaml

from rayrec.config import Config
from rayrec.recipes import SCHEMA_FILE, Recipe, recipe_schema
from rayrec.store.files import as_json

_REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENT = _REPOSITORY / "docs" / "recipe.md"
SCHEMA = _REPOSITORY / "rayrec" / SCHEMA_FILE
_INTRODUCTION = """\
# The keys of a recipe

A recipe is a YAML file with the sections {sections}.
Keys stand here with their defaults; those marked "required" have none. A count is an integer above 0, a fraction a
number from 0 to 1.

- YAML is read by version 1.2: `no`, `on`, `12:30:00` and `2024-05-01` are texts, `1e-3` is a number. Digits with a zero
  at the front (`010`) are texts too, so ids keep it. A key that is there twice is an error.
- `rayrec recipes NAME` prints a recipe with every default; `--output mine.yaml` writes it to a file.
- `--set section.key=value` replaces a value on the command line.
- `rayrec recipes --schema` prints a JSON Schema of recipes, installed plug-ins included. `inspect`, `tune` and
  `recipes --output` write it beside the recipe, whose first line names it for editors with a YAML language server."""
_LONG_LIST = 8
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
        self.told: dict[tuple[str, str], tuple[str, str]] = {}
        """By key and meaning, the first class that has it and what the page says there."""
        self.unions: set[str] = set()

    def text(self) -> str:
        keys = self.recipe["properties"]
        whole = {key: node for key, node in keys.items() if not any(self.uses(node))}
        *sections, last = (f"[`{key}`](#{key})" for key in keys if key not in whole)
        introduction = _INTRODUCTION.format(sections=f"{', '.join(sections)} and {last}")
        parts = [introduction, "## The recipe as a whole", *self.keys("Recipe", whole)]
        for key, node in keys.items():
            if key not in whole:
                parts += self.section(key, node)
        return "\n\n".join(parts) + "\n"

    def section(self, key: str, node: Schema) -> Iterator[str]:
        known = len(self.headings)
        self.name_classes(key, node)
        yield f"## `{key}`"
        if any(use.tag for use in self.uses(node)):
            yield f"{self.meaning('Recipe', key, node)} Chosen {self.type(node)}."
        for name in list(self.headings)[known:]:
            if self.headings[name] != f"`{key}`":
                yield f"### {self.headings[name]}"
            yield inspect.cleandoc(self.classes[name]["description"])
            yield from self.keys(name, {k: v for k, v in self.classes[name]["properties"].items() if "const" not in v})
            config = next(config for config in _subclasses(Config) if config.__name__ == name)
            if key == "model" and (defaults := getattr(config, "train_defaults", None)):
                shown = yaml.safe_dump(dict(defaults), default_flow_style=None, sort_keys=False).strip()
                yield f"Defaults in `train`, where a recipe says nothing:\n\n```yaml\n{shown}\n```"

    def name_classes(self, path: str, node: Schema, within: str = "") -> None:
        """Give the classes of a key, and of the keys in them, their headings; `within` is the kind that has the key."""

        # A class that changes what it inherits comes after those that it refers to; the largest one of a section first.
        def place(use: _Use) -> tuple[int, int]:
            return self.changed(use.name), 0 if "." in path else -len(self.classes[use.name]["properties"])

        for use in sorted(self.uses(node), key=place):
            if use.name not in self.headings:
                heading = f"`{path}{use.place}`" + (f": `{use.tag}: {use.value}`" if use.tag else "")
                if heading in self.headings.values():
                    heading += f" under `{within}`"
                self.headings[use.name] = heading
                for key, inner in self.classes[use.name]["properties"].items():
                    self.name_classes(f"{path}{use.place}.{key}", inner, use.value or within)

    def changed(self, name: str) -> int:
        """Count the keys that a class has otherwise than its base."""
        config = next(config for config in _subclasses(Config) if config.__name__ == name)
        inherited = getattr(config.__base__, "model_fields", {})
        return sum(
            field.default != inherited[key].default
            for key, field in config.model_fields.items()
            if key in inherited and key not in ("kind", "op")
        )

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

    def keys(self, name: str, keys: dict[str, Schema]) -> Iterator[str]:
        """Yield the keys of a class as a list. What an earlier class said of a key of its own is not said again."""
        required = [] if name == "Recipe" else self.classes[name].get("required", [])
        lines: list[str] = []
        told: dict[str, list[str]] = {}
        for key, node in keys.items():
            written, meaning = self.written(key, node), self.meaning(name, key, node)
            example = f"such as `{node['examples'][0]}`" if "examples" in node else ""
            words = " ".join(filter(None, (self.type(node), example)))
            words = ", ".join(filter(None, (words, "required" if key in required else "")))
            line = f"- {written}{f' ({words})' if words else ''}"
            line += "" if self.is_told_below(node, meaning) else f": {meaning}"
            place, before = self.told.setdefault((key, f"{self.bases_with(name, key)[-1]}: {meaning}"), (name, line))
            if place == name:
                lines.append(line)
            else:
                told.setdefault(place, []).append(f"`{key}`" if line == before else written)
        for place, again in told.items():
            heading = self.headings[place]
            shown = re.sub(r"^.*`\w+: (\w+)`$", r"`\1`", heading)
            lines.append(f"- {', '.join(again)}: as in [{shown}](#{_anchor(heading)})")
        if lines:
            yield "\n".join(lines)

    def is_told_below(self, node: Schema, meaning: str) -> bool:
        """Whether a key has no docstring but that of its section."""
        return any(
            " ".join(self.classes[use.name]["description"].split()).startswith(meaning) for use in self.uses(node)
        )

    def written(self, key: str, node: Schema) -> str:
        """Return the key as a recipe has it, with its default."""
        if "$ref" in node or "default" not in node:
            (use,) = self.uses(node) if "$ref" in node else (None,)
            return f"`{key}`" if use is None else f"[`{key}`](#{_anchor(self.headings[use.name])})"
        return f"`{key}: {_flow(self.without_defaults(node['default'], node))}`"

    def meaning(self, name: str, key: str, node: Schema) -> str:
        """The docstring of a key: its own, that of the class which it is overridden from, or that of its value's."""
        fields = (base.model_fields[key] for base in self.bases_with(name, key))
        own = (field.description for field in fields if field.description)
        of_value = (self.classes[use.name]["description"].partition("\n\n")[0] for use in self.uses(node))
        text = next(chain(own, of_value), None)
        assert text is not None, f"{name}.{key}: has no docstring"
        return " ".join(text.split())

    def bases_with(self, name: str, key: str) -> list[type[Config]]:
        """Return the class of that name and those of its bases that have the key, the one that declares it last."""
        config = next(config for config in _subclasses(Config) if config.__name__ == name)
        return [base for base in config.__mro__ if key in getattr(base, "model_fields", {})]

    def type(self, node: Schema) -> str:
        """Return the values that a key may have, in words; nothing for a section, to which the key is a link."""
        if "$ref" in node:
            return ""
        if "discriminator" in node:
            tag = f"by `{node['discriminator']['propertyName']}`"
            members = _either(map(self.link, self.uses(node)))
            # The members stand where the union comes first.
            is_known = members in self.unions
            self.unions.add(members)
            return tag if is_known else f"{tag}: {members}"
        if "anyOf" in node or "enum" in node:
            return _either(self.alternatives(node))
        if node.get("type") == "array":
            if "prefixItems" in node:
                return f"list of {', '.join(map(self.type, node['prefixItems']))}"
            least = f" (at least {node['minItems']})" if node.get("minItems", 0) > 1 else ""
            items = _either(self.alternatives(node["items"]))
            return f"list{', each ' if items.startswith('by ') else ' of '}{items}{least}"
        if node.get("type") == "object":
            values = node["additionalProperties"]
            names = self.type(node["propertyNames"]) if "propertyNames" in node else "name"
            return f"by {names}: {_either(self.alternatives(values)) if isinstance(values, dict) else 'any value'}"
        # Of truth values and texts, the default tells the type.
        return "" if node["type"] in ("boolean", "string") and "default" in node else _scalar(node)

    def alternatives(self, node: Schema) -> Iterator[str]:
        """Yield the values of a union; a default of null shows that null is one."""
        if "enum" in node or "const" in node:
            yield from (f"`{value}`" for value in node.get("enum", [node.get("const")]))
        elif "$ref" in node:
            yield from map(self.link, self.uses(node))
        elif "anyOf" in node:
            members = node["anyOf"]
            kinds = [inner.get("type") for inner in members]
            tagged = {value for inner in members for value in inner.get("discriminator", {}).get("mapping", ())}
            for inner, kind in zip(members, kinds, strict=True):
                # YAML reads some texts as other types, and a section without settings may be its tag alone.
                is_text = kind in ("integer", "boolean") and {"string", "integer", "boolean"} <= set(kinds)
                if kind != "null" and not is_text and not (tagged and tagged >= set(inner.get("enum", [None]))):
                    yield from self.alternatives(inner)
        else:
            yield self.type(node)

    def link(self, use: _Use) -> str:
        heading = self.headings[use.name]
        return f"[{f'`{use.value}`' if use.value else heading}](#{_anchor(heading)})"

    def without_defaults(self, value: Any, node: Schema) -> Any:
        """Return a default without what the classes in it have by default themselves."""
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


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _flow(value: Any) -> str:
    """Return a value as YAML on one line; long lists are cut."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_flow(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        shown = [*map(_flow, value)]
        return f"[{', '.join([*shown[:2], '...', shown[-1]] if len(shown) > _LONG_LIST else shown)}]"
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.]*", value)
    return str(value) if is_plain else json.dumps(value, ensure_ascii=False)


def _scalar(node: Schema) -> str:
    """Return a text, number or truth value, with its bounds."""
    name = {"string": "text", "boolean": "`true` or `false`"}.get(node["type"], node["type"])
    name = node.get("format", name)
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    if "minimum" in node:
        signs.pop("exclusiveMinimum")
    if name == "integer" and "exclusiveMinimum" in signs and node.get("exclusiveMinimum") == 0:
        return "count"
    if name == "number" and {"maximum", "exclusiveMaximum"} & set(node):
        return "fraction"
    limits = ", ".join(f"{sign} {node[bound]:g}" for bound, sign in signs.items() if bound in node)
    example = f"such as `{node['examples'][0]}`" if "examples" in node else ""
    return " ".join(filter(None, [name, limits, example]))


def document() -> str:
    """Return the page."""
    return _Page().text()


if __name__ == "__main__":
    DOCUMENT.write_text(document())
    SCHEMA.write_text(as_json(recipe_schema()))
