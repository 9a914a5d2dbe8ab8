"""The JSON Schema of a config, in a form that editors complete and check YAML by."""

from typing import Any

from pydantic import BaseModel

JsonSchema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(config: type[BaseModel]) -> JsonSchema:
    """Return the schema of what a person writes for `config`: draft 2020-12, with a union decided by its tag.

    pydantic describes a union as `oneOf`; of a mistake in one member, validators then report all members.
    """
    return {"$schema": DIALECT, **_for_editors(config.model_json_schema())}


def chosen_by(tag: str, members: dict[str, JsonSchema], within: str | None = None) -> list[JsonSchema]:
    """Return a condition for each value of `tag`, a key of the object or of its section `within`."""

    def has(value: str) -> JsonSchema:
        condition: JsonSchema = {"required": [tag], "properties": {tag: {"const": value}}}
        return condition if within is None else {"required": [within], "properties": {within: condition}}

    return [{"if": has(value), "then": schema} for value, schema in members.items()]


def _for_editors(node: Any) -> Any:
    """Return a part of pydantic's schema without its titles, with unions by tag as conditions."""
    if isinstance(node, list):
        return [_for_editors(item) for item in node]
    if not isinstance(node, dict):
        return node
    found: JsonSchema = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):  # names of keys, of which one may be `title`
            found[key] = {name: _for_editors(inner) for name, inner in value.items()}
        elif key == "description":
            found[key] = " ".join(value.split())
        elif key in ("default", "const", "enum", "examples"):
            found[key] = value
        elif key != "title":
            found[key] = _for_editors(value)
    # An editor inserts a default when it completes a key: of a section that would be all of its keys.
    if isinstance(found.get("default"), dict):
        del found["default"]
    if "discriminator" in found:
        tag, members = found["discriminator"]["propertyName"], found["discriminator"]["mapping"]
        del found["discriminator"], found["oneOf"]
        found |= {"type": "object", "required": [tag], "properties": {tag: {"enum": list(members)}}}
        found["allOf"] = chosen_by(tag, {value: {"$ref": place} for value, place in members.items()})
    return found
