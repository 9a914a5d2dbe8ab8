"""The messages of the Open Inference Protocol over gRPC, as checked rows, and scores as messages.

Tensors come as raw bytes (`raw_input_contents`, as Triton's clients send them) or as typed values (`contents`), and the
scores go back the same way.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.inference.predictor import Predictor
from serve.grpc_server import proto
from serve.request_tensors import Tensor, make_tensor, rows_of
from serve.requests import MOST_VALUES, RequestError
from serve.v2 import OUTPUT, InferRequest, require_known_outputs

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}  # fmt: skip
"""The field with the typed numbers of a data type; FP16 has none and comes as bytes."""


def infer_request(message: Any, predictor: Predictor, max_rows: int) -> InferRequest:
    """Return the rows of a `ModelInferRequest`. Raises RequestError: 413 too many rows, 422 wrong content."""
    if not message.inputs:
        raise RequestError(422, "inputs: empty; send at least one tensor")
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise RequestError(422, f"raw_input_contents: {len(raw)} for {len(message.inputs)} inputs; send one for each")
    tensors = [_tensor(position, entry, raw) for position, entry in enumerate(message.inputs)]
    require_known_outputs(output.name for output in message.outputs)
    rows = rows_of(tensors, predictor, max_rows, encoded=_wants_encoded(message.parameters))
    return InferRequest(rows, message.id or None, binary=bool(raw))


def infer_response(name: str, version: str, request: InferRequest, scores: NDArray[np.float32]) -> Any:
    """Return the `ModelInferResponse` with the (n,) scores of the request's rows."""
    answer = proto.ModelInferResponse(model_name=name, model_version=version, id=request.id or "")
    output = answer.outputs.add(name=OUTPUT, datatype="FP32", shape=[len(scores)])
    if request.binary:
        answer.raw_output_contents.append(scores.astype("<f4").tobytes())
    else:
        output.contents.fp32_contents.extend(scores.tolist())
    return answer


def _tensor(position: int, entry: Any, raw: Any) -> Tensor:
    head = position, entry.name, entry.datatype, list(entry.shape)
    if raw:
        return make_tensor(*head, None, raw[position])
    if entry.datatype == "FP16":
        raise RequestError(422, f"input '{entry.name[:100]}': FP16 has no typed values; send raw_input_contents")
    values: Any = None
    if entry.datatype == "BYTES":
        try:
            values = pa.array(list(entry.contents.bytes_contents), pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            raise RequestError(422, f"input '{entry.name[:100]}': a string is not UTF-8") from None
    elif entry.datatype in _CONTENTS:
        values = np.array(getattr(entry.contents, _CONTENTS[entry.datatype]))
    return make_tensor(*head, values)


def _wants_encoded(parameters: Mapping[str, Any]) -> bool:
    if "encoded" not in parameters:
        return False
    value = parameters["encoded"]
    if value.WhichOneof("parameter_choice") != "bool_param":
        raise RequestError(422, "parameters.encoded: must be true or false")
    return bool(value.bool_param)


_LOOKED_INTO = (frozenset({5, 6}), frozenset({5}), frozenset[int]())
"""Fields that are counted as what is in them: the request's inputs and outputs, a tensor's contents."""
_BYTES_CONTENTS = 2, 8
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SMALLEST_NUMBER = 4
"""Bytes of a number among packed ones, as nearly all have them; those of fewer take 4 to 8 times as much parsed."""


def require_few_values(message: bytes) -> None:
    """Raise RequestError 413 for more values than a request may have; of a damaged message the start counts."""
    with suppress(IndexError):  # it ends within a field, or a number does not end: the parser says it better
        _require_few(_count(memoryview(message), 0, 0))


def _require_few(count: int) -> None:
    if count > MOST_VALUES:
        raise RequestError(413, f"the message has more than {MOST_VALUES} values; send several requests")


def _count(data: memoryview, level: int, count: int) -> int:
    """`count` and the fields of a request (level 0), a tensor (1) or its contents (2), and of messages within."""
    position = 0
    while position < len(data):
        _require_few(count)
        key, position = _varint(data, position)
        field, kind = key >> 3, key & 7
        count += 1
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind in {_FIXED64, _FIXED32}:
            position += 8 if kind == _FIXED64 else 4
        elif kind == _LENGTH:
            length, position = _varint(data, position)
            if field in _LOOKED_INTO[level]:
                count = _count(data[position : position + length], level + 1, count)
            elif level > 0 and (level, field) != _BYTES_CONTENTS:
                count += min(length, len(data) - position) // _SMALLEST_NUMBER
            position += length
    return count


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """Return the number at a position, and where it ends. Raises IndexError if it has more than 10 bytes, or no end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        if byte < 128:
            return value, position
    raise IndexError
