"""Bodies of the Open Inference Protocol, version 2, of KServe and Triton, with its binary tensor extension.

    https://github.com/kserve/open-inference-protocol
    https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md

An input is a feature: n raw values, shape [n] or [n, 1] (multi-hot: [n, most values of a row], padded). With the
parameter `encoded: true` it is a column of a dataset folder. The output `score` is n probabilities.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.inference.predictor import Predictor
from serve.errors import RequestError
from serve.models.served_version import Rows
from serve.protocols.http import parse_json
from serve.protocols.v2.columns import rows_of
from serve.protocols.v2.tensors import Tensor, read_tensor

EXTENSIONS = ["binary_tensor_data", "model_repository"]
OUTPUT = "score"
_EXAMPLE = '{"inputs": [{"name": FEATURE, "shape": [1], "datatype": DATATYPE, "data": [VALUE]}, ...]}'


@dataclass(frozen=True)
class InferRequest:
    """A request to score rows."""

    rows: Rows
    id: str | None
    binary: bool
    """Whether the scores are sent as bytes."""


def metadata(name: str, versions: list[str], predictor: Predictor) -> dict[str, Any]:
    """Return the answer to `GET /v2/models/NAME`: name, data type and shape of each input and of the output."""
    inputs = []
    for field in predictor.raw_rows.columns:
        is_list = pa.types.is_list(field.type)
        kind = field.type.value_type if is_list else field.type
        datatype = "FP64" if pa.types.is_floating(kind) else "INT64" if pa.types.is_integer(kind) else "BYTES"
        inputs.append({"name": field.name, "datatype": datatype, "shape": [-1, -1] if is_list else [-1]})
    outputs = [{"name": OUTPUT, "datatype": "FP32", "shape": [-1]}]
    return {"name": name, "versions": versions, "platform": "rayrec", "inputs": inputs, "outputs": outputs}


def require_known_outputs(names: Iterable[Any]) -> None:
    """Raise RequestError 422 for an output that is not the score."""
    if any(name != OUTPUT for name in names):
        raise RequestError(422, f"outputs: the model has one, '{OUTPUT}'")


def parse_infer(body: bytes, json_length: str | None, predictor: Predictor, max_rows: int) -> InferRequest:
    """Return the checked content of a request. Raises RequestError: 400 not JSON, 413 too many rows, 422 wrong content.

    `json_length` is the header `Inference-Header-Content-Length`: the length of the JSON before binary tensors.
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
    rows = rows_of(_tensors(content["inputs"], body[length:]), predictor, max_rows, encoded=encoded)
    return InferRequest(rows, identifier, _wants_binary(content.get("outputs"), parameters))


def answer(name: str, version: str, request: InferRequest, scores: NDArray[np.float32]) -> tuple[bytes, int | None]:
    """Return the body of an answer, and the length of its JSON if bytes follow it."""
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


def _tensors(inputs: list[Any], binary: bytes) -> list[Tensor]:
    tensors = []
    for index, entry in enumerate(inputs):
        tensor, taken = read_tensor(entry, index, binary)
        binary = binary[taken:]
        tensors.append(tensor)
    if binary:
        raise RequestError(422, f"{len(binary)} bytes follow the last binary tensor; check binary_data_size")
    return tensors


def _wants_binary(outputs: Any, parameters: dict[str, Any]) -> bool:
    wanted = parameters.get("binary_data_output", False) is True
    if outputs is None:
        return wanted
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise RequestError(422, "outputs: must be a list of objects with a name")
    require_known_outputs(output.get("name") for output in outputs)
    for output in outputs:
        own = output.get("parameters")
        wanted = bool(own.get("binary_data", wanted)) if isinstance(own, dict) else wanted
    return wanted
