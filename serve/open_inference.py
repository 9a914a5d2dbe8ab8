"""The Open Inference Protocol, version 2, of KServe and Triton, with its binary tensor extension.

    https://github.com/kserve/open-inference-protocol
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md

An input is a feature: n raw values, shape [n] or [n, 1] (multi-hot: [n, most values of a row], padded). With the
parameter `encoded: true` it is a column of a dataset folder. The output `score` is n probabilities. Knows neither Ray
nor FastAPI.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.schema import CategoricalFeature, Feature
from rayrec.inference.predictor import Predictor
from serve.protocol import RequestError, parse_json
from serve.served_version import Rows
from serve.tensors import INTEGERS, Tensor, read_tensor

OUTPUT = "score"
_EXAMPLE = '{"inputs": [{"name": FEATURE, "shape": [1], "datatype": DATATYPE, "data": [VALUE]}, ...]}'
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class InferRequest:
    """A request to score rows."""

    rows: Rows
    id: str | None
    binary: bool
    """Whether the scores are sent as bytes."""


def metadata(name: str, versions: list[str], predictor: Predictor) -> dict[str, Any]:
    """What `GET /v2/models/NAME` tells: name, data type and shape of each input and of the output."""
    inputs = []
    for field in predictor.raw_rows.columns:
        is_list = pa.types.is_list(field.type)
        kind = field.type.value_type if is_list else field.type
        datatype = "FP64" if pa.types.is_floating(kind) else "BYTES" if pa.types.is_string(kind) else "INT64"
        inputs.append({"name": field.name, "datatype": datatype, "shape": [-1, -1] if is_list else [-1]})
    return {
        "name": name,
        "versions": versions,
        "platform": "rayrec",
        "inputs": inputs,
        "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}],
    }


def parse_infer(body: bytes, json_length: str | None, predictor: Predictor, max_rows: int) -> InferRequest:
    """A request's body, checked. Raises RequestError: 400 no JSON, 413 too many rows, 422 wrong content.

    `json_length` is the header `Inference-Header-Content-Length`: the JSON that comes before binary tensors.
    """
    length = len(body)
    if json_length is not None:
        is_number = json_length.isascii() and json_length.isdigit() and len(json_length) <= 12
        if not is_number or int(json_length) > len(body):
            raise RequestError(400, "Inference-Header-Content-Length: must be the length of the body's JSON part")
        length = int(json_length)
    content = parse_json(body[:length], _EXAMPLE)
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), list) or not content["inputs"]:
        raise RequestError(422, f"inputs: missing or empty; send {_EXAMPLE}")
    parameters = content.get("parameters") or {}
    identifier = content.get("id")
    if not isinstance(parameters, dict) or not isinstance(identifier, str | None):
        raise RequestError(422, "id must be a string, parameters an object")
    encoded = parameters.get("encoded", False)
    if not isinstance(encoded, bool):
        raise RequestError(422, "parameters.encoded: must be true or false")
    tensors = _tensors(content["inputs"], body[length:], max_rows)
    try:
        columns = _encoded_columns(tensors, predictor) if encoded else _raw_columns(tensors, predictor)
    except UserError as error:
        raise RequestError(422, str(error)) from None
    return InferRequest(Rows(columns, encoded), identifier, _wants_binary(content.get("outputs"), parameters))


def answer(name: str, version: str, request: InferRequest, scores: NDArray[np.float32]) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where bytes follow it."""
    output: dict[str, Any] = {"name": OUTPUT, "datatype": "FP32", "shape": [len(scores)]}
    head: dict[str, Any] = {"model_name": name, "model_version": version}
    if request.id is not None:
        head["id"] = request.id
    if not request.binary:
        output["data"] = scores.tolist()
        return json.dumps({**head, "outputs": [output]}, allow_nan=False).encode(), None
    data = scores.astype("<f4").tobytes()
    output["parameters"] = {"binary_data_size": len(data)}
    text = json.dumps({**head, "outputs": [output]}).encode()
    return text + data, len(text)


def _tensors(inputs: list[Any], binary: bytes, max_rows: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for index, entry in enumerate(inputs):
        tensor, taken = read_tensor(entry, index, binary)
        binary = binary[taken:]
        where = f"input '{tensor.name[:100]}'"
        if tensor.name in tensors:
            raise RequestError(422, f"{where}: given twice")
        if tensor.rows > max_rows:
            raise RequestError(413, f"{where}: {tensor.rows} rows, at most {max_rows} a request; send several")
        if tensor.rows == 0:
            raise RequestError(422, f"{where}: no rows; send at least one")
        first = next(iter(tensors.values()), tensor)
        if tensor.rows != first.rows:
            raise RequestError(422, f"{where}: {tensor.rows} rows, but input '{first.name[:100]}' has {first.rows}")
        tensors[tensor.name] = tensor
    if binary:
        raise RequestError(422, f"{len(binary)} bytes follow the last binary tensor; check binary_data_size")
    return tensors


def _wants_binary(outputs: Any, parameters: dict[str, Any]) -> bool:
    wanted = parameters.get("binary_data_output", False) is True
    if outputs is None:
        return wanted
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise RequestError(422, "outputs: must be a list of objects with a name")
    for output in outputs:
        if output.get("name") != OUTPUT:
            raise RequestError(422, f"outputs: the model has one, '{OUTPUT}'")
        own = output.get("parameters")
        wanted = bool(own.get("binary_data", wanted)) if isinstance(own, dict) else wanted
    return wanted


def _raw_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    raw = predictor.raw_rows
    for name in tensors:
        if name not in raw.columns.names:
            raise UserError(raw.unknown(name))
    rows = next(iter(tensors.values())).rows
    columns = []
    for field in raw.columns:
        tensor = tensors.get(field.name)
        if tensor is None:
            columns.append(pa.nulls(rows, field.type))
            continue
        is_list = pa.types.is_list(field.type)
        _require_width(tensor, is_list)
        dtype = field.type.value_type if is_list else field.type
        _require_datatype(tensor, dtype)
        if isinstance(tensor.values, list):
            values = [_without_padding(row) for row in _rows_of(tensor)] if is_list else tensor.values
            columns.append(raw.from_values(field.name, values))
        else:
            flat = _as_arrow(tensor, dtype)
            columns.append(pa.ListArray.from_arrays(_offsets(tensor), flat) if is_list else flat)
    return pa.RecordBatch.from_arrays(columns, schema=raw.columns)


def _encoded_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    """Columns as `FeatureEncoder.encode` makes them: float32 numbers, ids of the tables; every feature is there."""
    known = [feature.name for feature in predictor.schema.features]
    for name in tensors:
        if name not in known:
            raise UserError(predictor.raw_rows.unknown(name))
    columns = []
    for feature in predictor.schema.features:
        tensor = tensors.get(feature.name)
        if tensor is None:
            raise UserError(f"input '{feature.name}': missing; encoded rows have every feature of the model")
        field = predictor.encoded_columns.field(feature.name)
        columns.append(_encoded_column(tensor, feature, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=predictor.encoded_columns)


def _encoded_column(tensor: Tensor, feature: Feature, dtype: pa.DataType) -> pa.Array:
    is_list = pa.types.is_list(dtype)
    _require_width(tensor, is_list)
    where = f"input '{tensor.name}'"
    _require_datatype(tensor, pa.int64() if isinstance(feature, CategoricalFeature) else pa.float64())
    wanted: type = np.float64
    if isinstance(feature, CategoricalFeature):
        wanted = np.int64
    if isinstance(tensor.values, list) and any(
        isinstance(value, bool) or not isinstance(value, int if wanted is np.int64 else (int, float))
        for value in tensor.values
    ):
        raise UserError(f"{where}: a value of another type than {tensor.datatype}")
    try:
        values: NDArray[Any] = np.asarray(tensor.values).astype(wanted)
    except (OverflowError, ValueError, TypeError):
        raise UserError(f"{where}: a value is out of range") from None
    if not isinstance(feature, CategoricalFeature):
        if not (np.abs(values) <= _FLOAT32_MAX).all():  # NaN too
            raise UserError(f"{where}: encoded numbers are finite float32")
        return pa.array(values.astype(np.float32))
    present = values >= 0 if is_list else np.ones(len(values), bool)
    if not ((values[present] >= 0) & (values[present] < feature.cardinality)).all():
        raise UserError(f"{where}: encoded ids go from 0 to {feature.cardinality - 1}")
    if not is_list:
        return pa.array(values, dtype)
    offsets = np.concatenate([[0], np.cumsum(present.reshape(tensor.rows, tensor.width).sum(axis=1))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values[present], dtype.value_type))


def _require_width(tensor: Tensor, is_list: bool) -> None:
    if tensor.width != 1 and not is_list:
        raise UserError(f"input '{tensor.name}': {tensor.width} values a row; the feature has one, shape [rows]")


def _require_datatype(tensor: Tensor, dtype: pa.DataType) -> None:
    if pa.types.is_string(dtype):
        fits, needs = tensor.datatype == "BYTES", "BYTES"
    elif pa.types.is_integer(dtype):
        fits, needs = tensor.datatype in INTEGERS, "INT64 (or another integer)"
    else:
        fits, needs = tensor.datatype != "BYTES", "FP64 (or another number)"
    if not fits:
        raise UserError(f"input '{tensor.name}': datatype {tensor.datatype}, needs {needs}")


def _rows_of(tensor: Tensor) -> list[list[Any]]:
    assert isinstance(tensor.values, list)
    return [tensor.values[row * tensor.width : (row + 1) * tensor.width] for row in range(tensor.rows)]


def _without_padding(values: list[Any]) -> list[Any]:
    """Ids are padded with -1; of strings the encoder leaves out the empty ones."""
    return [None if isinstance(value, int) and value == -1 else value for value in values]


def _offsets(tensor: Tensor) -> pa.Array:
    return pa.array(np.arange(tensor.rows + 1) * tensor.width, pa.int32())


def _as_arrow(tensor: Tensor, dtype: pa.DataType) -> pa.Array:
    """Binary data as the values of a raw column; NaN numbers, the empty string and -1 among ids are missing."""
    where = f"input '{tensor.name}'"
    if isinstance(tensor.values, pa.Array):
        return tensor.values
    values = np.asarray(tensor.values)
    if pa.types.is_floating(dtype):
        with np.errstate(invalid="ignore"):
            numbers = values.astype(np.float64)
            too_large = np.flatnonzero(np.abs(numbers) > _FLOAT32_MAX)
        if len(too_large):
            raise UserError(f"row {too_large[0]}, {where}: out of range; numbers go up to {_FLOAT32_MAX:.3g}")
        return pa.array(numbers)
    if values.dtype == np.uint64 and (values >= 2**63).any():
        raise UserError(f"{where}: an id is out of range")
    ids = values.astype(np.int64)
    return pa.array(ids, mask=ids == -1)
