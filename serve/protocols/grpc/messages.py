"""Messages of the Open Inference Protocol to checked rows, and scores to messages.

Tensors come as raw bytes (`raw_input_contents`, as Triton's clients send them) or as typed values (`contents`), and the
scores go back the same way.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.inference.predictor import Predictor
from serve.errors import RequestError
from serve.protocols.grpc.proto import ModelInferResponse
from serve.protocols.v2.columns import rows_of
from serve.protocols.v2.messages import OUTPUT, InferRequest, require_known_outputs
from serve.protocols.v2.tensors import Tensor, make_tensor

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
    tensors = [_tensor(index, entry, raw) for index, entry in enumerate(message.inputs)]
    require_known_outputs(output.name for output in message.outputs)
    rows = rows_of(tensors, predictor, max_rows, encoded=_wants_encoded(message.parameters))
    return InferRequest(rows, message.id or None, binary=bool(raw))


def infer_response(name: str, version: str, request: InferRequest, scores: NDArray[np.float32]) -> Any:
    """Return the `ModelInferResponse` with the (n,) scores of the request's rows."""
    answer = ModelInferResponse(model_name=name, model_version=version, id=request.id or "")
    output = answer.outputs.add(name=OUTPUT, datatype="FP32", shape=[len(scores)])
    if request.binary:
        answer.raw_output_contents.append(scores.astype("<f4").tobytes())
    else:
        output.contents.fp32_contents.extend(scores.tolist())
    return answer


def _tensor(index: int, entry: Any, raw: Any) -> Tensor:
    head = index, entry.name, entry.datatype, list(entry.shape)
    if raw:
        return make_tensor(*head, None, raw[index])
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
