"""The OpenAPI document of the served models: rows by the feature schema of each, with examples that it knows.

https://spec.openapis.org/oas/v3.1.0
"""

import json
import re
from importlib.metadata import version as installed_version
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from rayrec.features.raw_columns import is_events
from rayrec.features.raw_values import MOST_EVENTS
from rayrec.features.schema import CategoricalFeature, MultiHotFeature, Schema, VectorFeature
from rayrec.inference.predictor import Predictor
from serve import arrow
from serve.models import ServedModels, ServedVersion
from serve.request_tensors import DATA_TYPES, tensor_columns
from serve.requests import MOST
from serve.v1 import VERBS
from serve.v2 import OUTPUT

JsonSchema = dict[str, Any]

_MAX = float(np.finfo(np.float32).max)
_EXAMPLES = 3
_TEXT: JsonSchema = {"type": "string"}
_BOOLEAN: JsonSchema = {"type": "boolean"}
_ID: JsonSchema = {"type": ["integer", "string", "boolean"], "minimum": -(2**63), "maximum": 2**63 - 1}
_SCORE = {"type": "number", "minimum": 0, "maximum": 1, "description": "Probability of a positive label."}


def document(models: ServedModels, max_rows: int, prefix: str = "") -> dict[str, Any]:
    """Return the document for the models of this moment, whose paths clients find below `prefix`."""
    paths: dict[str, Any] = {
        "/healthz": _get("The server answers.", status=_TEXT),
        "/v1/models": _get("Names of the models.", models=_list(_TEXT)),
        "/v2": _get("Name, version and extensions.", name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
        "/v2/health/live": _get("The server runs.", live=_BOOLEAN),
        "/v2/health/ready": _get("The models are loaded.", ready=_BOOLEAN),
    }
    components: dict[str, Any] = {"Error": _object(error=_TEXT)}
    for name, model in sorted(models.current.items()):
        version = model.version()
        encoded, own = quote(name, safe=""), _component_name(name)
        components |= {f"{own}.{part}": schema for part, schema in _components(own, version).items()}
        about = {"name": _TEXT, "version": _TEXT, "ready": _BOOLEAN, "recipe": _TEXT}
        about |= {key: {"type": "object"} for key in ("metrics", "schema", "versions")}
        paths[f"/v1/models/{encoded}"] = _get(f"Version, metrics and schema of '{name}'.", **about)
        for verb, asked in VERBS.items():
            if asked.lacks(version):
                continue
            # What a verb declares, with the rows and the limits of this model.
            most = asked.most(max_rows)
            body, answer = (
                _declared(kind, own, f"{own}.{verb}", most, components) for kind in (asked.body, asked.answer)
            )
            path = paths[f"/v1/models/{encoded}:{verb}"] = _post(f"'{name}': {asked.summary}", body, answer)
            if verb == "predict":
                for described in (path["post"]["requestBody"], path["post"]["responses"]["200"]):
                    described["content"][arrow.MEDIA_TYPE] = {}
        if version.predictor.scores_next_items:
            continue
        tensors = _list(_object(name=_TEXT, datatype=_TEXT, shape=_list({"type": "integer"})))
        paths[f"/v2/models/{encoded}"] = _get(
            f"Inputs and outputs of '{name}'.",
            name=_TEXT,
            versions=_list(_TEXT),
            platform=_TEXT,
            inputs=tensors,
            outputs=tensors,
        )
        paths[f"/v2/models/{encoded}/ready"] = _get(f"'{name}' answers.", name=_TEXT, version=_TEXT, ready=_BOOLEAN)
        paths[f"/v2/models/{encoded}/infer"] = _infer(name, version.predictor, max_rows)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rayrec",
            "version": installed_version("rayrec"),
            "description": "Click probabilities from raw features. NAME/versions/VERSION instead of NAME is one "
            'version of a model. Every error is `{"error": "one line"}`.',
        },
        **({"servers": [{"url": prefix}]} if prefix else {}),
        "paths": paths,
        "components": {"schemas": components},
    }


def _component_name(model: str) -> str:
    """Return a model's name in the names of components, of the characters that these may have."""
    return quote(model, safe="").replace("%", "-").replace("~", "-7E")


def _declared(kind: Any, model: str, name: str, most: int, components: dict[str, Any]) -> JsonSchema:
    """Return the schema of a type that `serve.v1` declares; its parts are added to `components`, named from `name` on.

    The marks of `of_model` become the components of the model, `MOST` becomes the number.
    """
    schema = TypeAdapter(kind).json_schema(ref_template=f"#/components/schemas/{name}.{{model}}")
    text = re.sub(r'"\$model": "(\w+)"', rf'"$ref": "#/components/schemas/{model}.\1"', json.dumps(schema))
    found: JsonSchema = json.loads(text.replace(f'"{MOST}"', str(most)).replace(MOST, str(most)))
    components |= {f"{name}.{part}": of_part for part, of_part in found.pop("$defs", {}).items()}
    return found


def _components(own: str, version: ServedVersion) -> dict[str, JsonSchema]:
    """Return what bodies have that depends on the model: a row, and the context and a candidate of a ranking."""
    row, ranker = {"$ref": f"#/components/schemas/{own}.Row"}, version.ranker
    described = _row(version)
    found = {"Row": described, "Context": row, "Candidate": row}
    if ranker.candidate is not None:
        found["Candidate"] = {"anyOf": [row, described["properties"][ranker.candidate]]}
    if ranker.lookup is not None:
        fields = {field.name: {"anyOf": [_value(field.type), {"type": "null"}]} for field in ranker.lookup.context}
        found["Context"] = {**_object([], **fields), "additionalProperties": False}
        found["Candidate"] = _value(ranker.lookup.candidate.type)
    return found


def _infer(name: str, predictor: Predictor, max_rows: int) -> dict[str, Any]:
    tensor = _object(
        ["name", "datatype", "shape"],
        name={"enum": [field.name for field in tensor_columns(predictor.raw_rows)]},
        datatype={"enum": list(DATA_TYPES)},
        shape=_list({"type": "integer", "minimum": 1, "maximum": max_rows}, maxItems=2),
        data={"type": "array"},
        parameters={"type": "object"},
    )
    body = _object(
        ["inputs"],
        id=_TEXT,
        inputs=_list(tensor, minItems=1),
        outputs=_list(_object(name={"const": OUTPUT})),
        parameters=_object([], encoded=_BOOLEAN, binary_data_output={"const": False}),
    )
    output = _object(name=_TEXT, datatype=_TEXT, shape=_list({"type": "integer"}), data=_list(_SCORE))
    required = ["model_name", "model_version", "outputs"]
    answer = _object(required, model_name=_TEXT, model_version=_TEXT, id=_TEXT, outputs=_list(output))
    return _post(f"Open Inference Protocol: scores of tensors by '{name}'.", body, answer)


def _row(version: ServedVersion) -> JsonSchema:
    """Return a row of the model, with held-out rows as examples, or made-up ones where the model has none."""
    held_out, schema = version.held_out, version.predictor.schema
    made_up = version.examples.instances[:_EXAMPLES] if version.examples.verb == "predict" else []
    examples = made_up if held_out is None else list(held_out.rows)
    properties = {
        field.name: _property(field, schema, examples) | _known(field.name, version)
        for field in version.predictor.raw_rows.columns
    }
    row = {**_object([], **properties), "additionalProperties": False, "examples": examples}
    if held_out is None:
        return row
    described = f"The examples are rows of the split '{held_out.split}', x-labels their labels."
    return {
        **row,
        "description": described,
        "x-split": held_out.split,
        "x-labels": list(held_out.labels),
        "x-trained-on": held_out.trained_on,
    }


def _known(column: str, version: ServedVersion) -> JsonSchema:
    """Return the range of a column of numbers, and the values of one that has few."""
    found: JsonSchema = {}
    if version.held_out is not None and column in version.held_out.ranges:
        found["x-range"] = version.held_out.ranges[column]
    if column in version.known_values:
        found["examples"] = version.known_values[column]
    for feature in version.predictor.schema.categorical:
        if feature.columns[0] == column and feature.vocabulary is not None:
            found["x-known-values"] = feature.vocabulary.size
    return found


def _property(field: pa.Field, schema: Schema, rows: list[dict[str, Any]]) -> JsonSchema:
    """Return a raw column, with what the features that read it say of its values."""
    value, texts = _value(field.type), []
    weighed = [feature.inputs[0] for feature in schema.weighted if feature.weights == field.name]
    if weighed:
        value = _list({"anyOf": [{**_value(pa.float64()), "minimum": 0}]})
        texts.append(f"A weight for each value of {' and '.join(dict.fromkeys(weighed))}; by default 1.")
    elif is_events(field.type):
        (of,) = (history for history in schema.histories if history.events_name == field.name)
        value = _list(value["items"], maxItems=MOST_EVENTS)
        texts.append(f"Newer events of {' and '.join(of.keys)} than the model knows, which count beside those.")
    elif pa.types.is_list(field.type):
        value = {"type": "array", "items": {"anyOf": [value["items"], {"type": "null"}]}}
    for feature in schema.features:
        if field.name == feature.columns[0] and isinstance(feature, CategoricalFeature):
            texts += _described(feature)
        elif field.name in feature.columns and isinstance(feature, VectorFeature):
            texts.append(f"{feature.size} numbers.")
    if any(field.name == history.time for history in schema.histories):
        texts.append("When the row happens; by default now.")
    texts += [
        f"By default what is known of {' and '.join(lookup.keys)}."
        for lookup in schema.lookups
        if field.name in lookup.columns
    ]
    described = {"description": " ".join(texts)} if texts else {}
    examples = [row[field.name] for row in rows if field.name in row]
    types = value["type"] if isinstance(value["type"], list) else [value["type"]]
    if any(column.name == field.name and column.separator is not None for column in schema.columns):
        types = [*types, "string"]
    return {**value, "type": [*types, "null"], **described, "examples": examples}


def _described(feature: CategoricalFeature) -> list[str]:
    texts = []
    if feature.vocabulary is not None:
        texts.append(f"{feature.vocabulary.size:,} values are known; others share one embedding.")
    elif not feature.transforms:
        texts.append(f"An id from 1 to {feature.cardinality - 1}; others count as unknown.")
    if isinstance(feature, MultiHotFeature):
        texts.append(f"The first {feature.hotness} of a list are read.")
    return texts


def _get(summary: str, **answer: JsonSchema) -> dict[str, Any]:
    return {"get": _operation(summary, _object(**answer), {"404": "no such model"})}


def _post(summary: str, body: JsonSchema, answer: JsonSchema) -> dict[str, Any]:
    late = "not done within the time limit"
    errors = {
        "400": "not JSON",
        "404": "no such model, or no such user",
        "413": "too large",
        "415": "compressed",
        "422": "wrong content",
    }
    operation = _operation(summary, answer, {**errors, "504": late})
    return {"post": {**operation, "requestBody": {"required": True, **_content(body)}}}


def _operation(summary: str, answer: JsonSchema, errors: dict[str, str]) -> dict[str, Any]:
    errors |= {"401": "no valid token", "503": "overloaded; try again after Retry-After seconds"}
    refused = _content({"$ref": "#/components/schemas/Error"})
    responses = {status: {"description": text, **refused} for status, text in sorted(errors.items())}
    return {"summary": summary, "responses": {"200": {"description": "OK", **_content(answer)}, **responses}}


def _content(schema: JsonSchema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _value(dtype: pa.DataType) -> JsonSchema:
    """Return the JSON that a value of a raw column is read from."""
    if pa.types.is_list(dtype):
        return _list(_value(dtype.value_type))
    if pa.types.is_struct(dtype):
        fields = {field.name: {"anyOf": [_value(field.type), {"type": "null"}]} for field in dtype}
        first = dtype.field(0)
        return {**_object([first.name], **{**fields, first.name: _value(first.type)}), "additionalProperties": False}
    if pa.types.is_floating(dtype):
        return {"type": ["number", "string", "boolean"], "minimum": -_MAX, "maximum": _MAX}
    if pa.types.is_timestamp(dtype):
        return {"type": ["string", "number"], "description": "A time, as the raw data writes it."}
    return {"type": ["string", "number", "boolean"]} if pa.types.is_string(dtype) else _ID


def _object(required: list[str] | None = None, /, **properties: JsonSchema) -> JsonSchema:
    """Return an object with these properties; all of them are required unless some are named."""
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names}


def _list(items: JsonSchema, **keywords: Any) -> JsonSchema:
    return {"type": "array", "items": items, **keywords}
