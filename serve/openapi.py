"""The OpenAPI document of what is served: each model's rows from its own feature schema, with examples that it knows.

https://spec.openapis.org/oas/v3.1.0
"""

from collections.abc import Sequence
from importlib.metadata import version as installed_version
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from rayrec.features.feature_kinds import CategoricalFeature, MultiHotFeature, VectorFeature
from rayrec.features.schema import Schema
from rayrec.inference.predictor import Predictor
from rayrec.inference.ranker import Ranker
from serve import arrow
from serve.request_tensors import DATA_TYPES
from serve.served_models import ServedModels
from serve.served_version import ServedVersion
from serve.v1 import MOST_EXPLAINED
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
        "/v2": _get("Name, version and extensions.", name=_TEXT, version=_TEXT),
        "/v2/health/live": _get("The server runs.", live=_BOOLEAN),
        "/v2/health/ready": _get("The models are loaded.", ready=_BOOLEAN),
    }
    rows: dict[str, Any] = {}
    for name, model in sorted(models.current.items()):
        version = model.version()
        encoded = quote(name, safe="")
        rows[_row_name(name)] = _row(version)
        paths[f"/v1/models/{encoded}"] = _get(f"Version, metrics and schema of '{name}'.", name=_TEXT, version=_TEXT)
        paths[f"/v1/models/{encoded}:predict"] = _predict(name, max_rows)
        paths[f"/v2/models/{encoded}"] = _get(f"Inputs and outputs of '{name}'.", name=_TEXT)
        paths[f"/v2/models/{encoded}/ready"] = _get(f"'{name}' answers.", ready=_BOOLEAN)
        paths[f"/v2/models/{encoded}/infer"] = _infer(name, version.predictor, max_rows)
        if version.recommender is not None:
            paths[f"/v1/models/{encoded}:recommend"] = _recommend(name, max_rows)
        if version.explainer is not None:
            paths[f"/v1/models/{encoded}:explain"] = _explain(name, version.explainer.features, max_rows)
        paths[f"/v1/models/{encoded}:rank"] = _rank(name, version.ranker, rows[_row_name(name)], max_rows)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rayrec",
            "version": installed_version("rayrec"),
            "description": 'Click probabilities from raw features. Every error is `{"error": "one line"}`.',
        },
        **({"servers": [{"url": prefix}]} if prefix else {}),
        "paths": paths,
        "components": {"schemas": {"Error": _object(error=_TEXT), **rows}},
    }


def _row_name(model: str) -> str:
    """Return the name of the schema of a model's rows, of the characters that such names may have."""
    return quote(model, safe="").replace("%", "-").replace("~", "-7E") + ".Row"


def _predict(name: str, max_rows: int) -> dict[str, Any]:
    answer = _object(model=_TEXT, version=_TEXT, predictions=_list(_SCORE))
    summary = f"Scores of rows by '{name}'; an Arrow stream of raw columns gets one of scores."
    operation = _post(summary, _instances(name, max_rows), answer)
    for described in (operation["post"]["requestBody"], operation["post"]["responses"]["200"]):
        described["content"][arrow.MEDIA_TYPE] = {}
    return operation


def _explain(name: str, features: Sequence[str], max_rows: int) -> dict[str, Any]:
    number: JsonSchema = {"type": "number"}
    explanation = _object(
        score=_SCORE,
        logit={**number, "description": "The logarithm of the odds of the score."},
        base={**number, "description": "The mean logit of reference rows."},
        parts=_object(**dict.fromkeys(features, number)),
    )
    answer = _object(model=_TEXT, version=_TEXT, explanations=_list(explanation))
    summary = f"What each feature adds to the logit of a row by '{name}': base and parts add up to it."
    return _post(summary, _instances(name, min(MOST_EXPLAINED, max_rows)), answer)


def _instances(name: str, max_rows: int) -> JsonSchema:
    """Return the body of a request with rows of a model."""
    row = {"$ref": f"#/components/schemas/{_row_name(name)}"}
    instances = _object(instances=_list(row, minItems=1, maxItems=max_rows))
    return {"anyOf": [instances, {**row, "description": "One row alone."}]}


def _recommend(name: str, max_rows: int) -> dict[str, Any]:
    count = {"type": "integer", "minimum": 1, "maximum": max_rows, "default": 10}
    known = {**_BOOLEAN, "default": True, "description": "Leave out what the user has in the training data."}
    body = _object(["user"], user={"type": ["string", "number"]}, k=count, exclude_known=known)
    answer = _object(model=_TEXT, version=_TEXT, user=_TEXT, items=_list(_object(item=_TEXT, score=_SCORE)))
    return _post(f"Items for a user by '{name}'.", body, answer, missing="no such user")


def _rank(name: str, ranker: Ranker, properties: JsonSchema, max_rows: int) -> dict[str, Any]:
    row, lookup = {"$ref": f"#/components/schemas/{_row_name(name)}"}, ranker.lookup
    candidate: JsonSchema = row
    context: JsonSchema = {**row, "description": "The features that all candidates share."}
    limit = f"Rows; more than {max_rows} are answered 413."
    if ranker.candidate is not None:
        candidate = {"anyOf": [row, properties["properties"][ranker.candidate]]}
        limit = f"Rows, or values of {ranker.candidate} alone; more than {max_rows} are answered 413."
    if lookup is not None:
        fields = {field.name: {"anyOf": [_value(field.type), {"type": "null"}]} for field in lookup.context}
        candidate, context = _value(lookup.candidate.type), {**_object([], **fields), "additionalProperties": False}
        limit = f"Ids; more than {max_rows} are answered 413."
    body = _object(
        ["candidates"],
        context=context,
        candidates=_list(candidate, minItems=1, description=limit),
        k={"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
    )
    answer = _object(model=_TEXT, version=_TEXT, candidates=_list(_object(candidate=candidate, score=_SCORE)))
    return _post(f"Candidates in a context, best first, by '{name}'.", body, answer)


def _infer(name: str, predictor: Predictor, max_rows: int) -> dict[str, Any]:
    tensor = _object(
        ["name", "datatype", "shape"],
        name={"enum": predictor.raw_rows.columns.names},
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
    examples = version.examples.instances[:_EXAMPLES] if held_out is None else list(held_out.rows)
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
    elif pa.types.is_list(field.type):
        value = {"type": "array", "items": {"anyOf": [value["items"], {"type": "null"}]}}
    for feature in schema.features:
        if field.name == feature.columns[0] and isinstance(feature, CategoricalFeature):
            texts += _described(feature)
        elif field.name in feature.columns and isinstance(feature, VectorFeature):
            texts.append(f"{feature.size} numbers.")
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


def _post(summary: str, body: JsonSchema, answer: JsonSchema, missing: str = "no such model") -> dict[str, Any]:
    late = "not done within the time limit"
    errors = {"400": "not JSON", "404": missing, "413": "too large", "415": "compressed", "422": "wrong content"}
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
