"""The OpenAPI document of what is served: each model's rows from its own feature schema, with examples that it knows.

https://spec.openapis.org/oas/v3.1.0
"""

from importlib.metadata import version as installed_version
from typing import Any

import numpy as np
import pyarrow as pa

from rayrec.features.schema import Feature, MultiHotFeature, NumericFeature
from rayrec.features.transforms import Vocabulary
from rayrec.inference.predictor import Predictor
from rayrec.inference.ranker import FeatureLookup
from serve.open_inference import OUTPUT
from serve.served_models import ServedModel, ServedModels
from serve.served_version import ServedVersion
from serve.tensors import DATA_TYPES

_MAX = float(np.finfo(np.float32).max)
_EXAMPLES = 3
_SCORE = {"type": "number", "minimum": 0, "maximum": 1, "description": "Probability of a positive label."}


def document(models: ServedModels, max_rows: int, verbs: tuple[str, ...]) -> dict[str, Any]:
    """The document for the models of this moment; `verbs` are those of the V1 protocol."""
    paths: dict[str, Any] = {
        "/healthz": {"get": _operation("The server answers.", _object(status=_TEXT))},
        "/v1/models": {"get": _operation("Names of the models.", _object(models=_list(_TEXT)))},
        "/v2": {"get": _operation("Name, version and extensions.", _object(name=_TEXT, version=_TEXT))},
        "/v2/health/live": {"get": _operation("The server runs.", _object(live=_BOOLEAN))},
        "/v2/health/ready": {"get": _operation("The models are loaded.", _object(ready=_BOOLEAN))},
    }
    rows: dict[str, Any] = {}
    for name, model in sorted(models.current.items()):
        rows[f"{name}.Row"] = _row(model.version())
        paths |= _model_paths(model, max_rows, verbs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "rayrec",
            "version": installed_version("rayrec"),
            "description": 'Click probabilities from raw features. Every error is `{"error": "one line"}`.',
        },
        "paths": paths,
        "components": {"schemas": {"Error": _object(error=_TEXT), **rows}},
    }


_TEXT: dict[str, Any] = {"type": "string"}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}


def _model_paths(model: ServedModel, max_rows: int, verbs: tuple[str, ...]) -> dict[str, Any]:
    name, version = model.name, model.version()
    described = _operation(f"Version, metrics and schema of '{name}'.", _object(name=_TEXT, version=_TEXT))
    paths: dict[str, Any] = {
        f"/v1/models/{name}": {"get": described},
        f"/v2/models/{name}": {"get": _operation(f"Inputs and outputs of '{name}'.", _object(name=_TEXT))},
        f"/v2/models/{name}/ready": {"get": _operation(f"'{name}' answers.", _object(ready=_BOOLEAN))},
        f"/v2/models/{name}/infer": {"post": _infer(name, version.predictor, max_rows)},
    }
    operations = {"predict": _predict(name, max_rows)}
    if version.recommends:
        operations["recommend"] = _recommend(name, max_rows)
    if version.ranker is not None:
        operations["rank"] = _rank(name, version.ranker.lookup, max_rows)
    for verb in verbs:
        if verb in operations:
            paths[f"/v1/models/{name}:{verb}"] = {"post": operations[verb]}
    return paths


def _predict(name: str, max_rows: int) -> dict[str, Any]:
    row = {"$ref": f"#/components/schemas/{name}.Row"}
    instances = {"type": "array", "items": row, "minItems": 1, "maxItems": max_rows}
    body = {"anyOf": [_object(instances=instances), {**row, "description": "One row alone."}]}
    answer = _object(model=_TEXT, version=_TEXT, predictions=_list(_SCORE))
    return _operation(f"Scores of rows by '{name}'.", answer, body)


def _recommend(name: str, max_rows: int) -> dict[str, Any]:
    count = {"type": "integer", "minimum": 1, "maximum": max_rows, "default": 10}
    known = {**_BOOLEAN, "default": True, "description": "Leave out what the user has in the training data."}
    body = {**_object(user=_TEXT, k=count, exclude_known=known), "required": ["user"]}
    answer = _object(model=_TEXT, version=_TEXT, user=_TEXT, items=_list(_object(item=_TEXT, score=_SCORE)))
    return _operation(f"Items for a user by '{name}'.", answer, body, missing="no such user")


def _rank(name: str, lookup: FeatureLookup, max_rows: int) -> dict[str, Any]:
    id_: dict[str, Any] = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    types = {field.name: _TEXT if pa.types.is_string(field.type) else id_ for field in lookup.context}
    fields = {name: {"anyOf": [type_, {"type": "null"}]} for name, type_ in types.items()}
    context = {**_object(**fields), "required": [], "additionalProperties": False}
    limit = f"Ids; more than {max_rows} are answered 413."
    ads = {"type": "array", "items": id_, "minItems": 1, "description": limit}
    count = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}
    body = {**_object(context=context, ads=ads, k=count), "required": ["ads"]}
    answer = _object(model=_TEXT, version=_TEXT, ads=_list(_object(ad=id_, score=_SCORE)))
    return _operation(f"Ads in a context, best first, by '{name}'.", answer, body)


def _infer(name: str, predictor: Predictor, max_rows: int) -> dict[str, Any]:
    tensor = {
        **_object(
            name={"enum": predictor.raw_rows.columns.names},
            datatype={"enum": list(DATA_TYPES)},
            shape={"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": max_rows}, "maxItems": 2},
            data={"type": "array"},
            parameters={"type": "object"},
        ),
        "required": ["name", "datatype", "shape"],
    }
    body = {
        **_object(
            id=_TEXT,
            inputs={"type": "array", "items": tensor, "minItems": 1},
            outputs=_list({"type": "object", "properties": {"name": {"const": OUTPUT}}, "required": ["name"]}),
            parameters={"type": "object", "properties": {"encoded": _BOOLEAN, "binary_data_output": {"const": False}}},
        ),
        "required": ["inputs"],
    }
    output = _object(name=_TEXT, datatype=_TEXT, shape=_list({"type": "integer"}), data=_list(_SCORE))
    answer = {
        **_object(model_name=_TEXT, model_version=_TEXT, id=_TEXT, outputs=_list(output)),
        "required": ["model_name", "model_version", "outputs"],
    }
    return _operation(f"Open Inference Protocol: scores of tensors by '{name}'.", answer, body)


def _row(version: ServedVersion) -> dict[str, Any]:
    examples = version.examples.instances[:_EXAMPLES]
    properties = {feature.name: _property(feature, examples) for feature in version.predictor.schema.features}
    return {"type": "object", "properties": properties, "additionalProperties": False, "examples": examples}


def _property(feature: Feature, rows: list[dict[str, Any]]) -> dict[str, Any]:
    examples = [row[feature.name] for row in rows if feature.name in row]
    if isinstance(feature, NumericFeature):
        return {"type": ["number", "null"], "minimum": -_MAX, "maximum": _MAX, "examples": examples}
    known = next((t.size for t in feature.transforms if isinstance(t, Vocabulary)), None)
    if known is None:
        value: dict[str, Any] = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
        description = f"An id from 1 to {feature.cardinality - 1}; others count as unknown."
    else:
        value, description = _TEXT, f"{known:,} values are known; others share one embedding."
    if isinstance(feature, MultiHotFeature):
        items = {"anyOf": [value, {"type": "null"}]}
        description += f" The first {feature.hotness} of a list are read."
        return {"type": ["array", "null"], "items": items, "description": description, "examples": examples}
    return {**value, "type": [value["type"], "null"], "description": description, "examples": examples}


def _operation(
    summary: str, answer: dict[str, Any], body: dict[str, Any] | None = None, missing: str = "no such model"
) -> dict[str, Any]:
    errors = {"401": "no valid token", "404": missing, "503": "overloaded; try again after Retry-After seconds"}
    if body is not None:
        errors |= {
            "400": "not JSON",
            "413": "too large",
            "415": "compressed",
            "422": "wrong content",
            "504": "not done within the time limit",
        }
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "OK", **_content(answer)},
            **{
                status: {"description": text, **_content({"$ref": "#/components/schemas/Error"})}
                for status, text in sorted(errors.items())
            },
        },
    }
    if body is not None:
        operation["requestBody"] = {"required": True, **_content(body)}
    return operation


def _content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}
