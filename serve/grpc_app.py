"""The Open Inference Protocol over gRPC: its calls, which Ray Serve hands to a replica as bytes, and their messages.

Tensors come as raw bytes (`raw_input_contents`, as Triton's clients send them) or as typed values (`contents`), and the
scores go back the same way.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from rayrec.inference.predictor import Predictor
from serve.admission import Admission, Call
from serve.grpc_server import CODES, SERVICE, admitted_call, call_of, proto, set_health_of_this_replica
from serve.models import ServedModel, ServedModels, ServedVersion
from serve.request_tensors import Tensor, make_tensor, rows_of
from serve.requests import MOST_VALUES, RequestError
from serve.updates import Updates
from serve.v2 import OUTPUT, SERVER, InferRequest, change_model, metadata, require_known_outputs


def _answering(answer: Callable[["GrpcMethods", Any, Call], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the method that Serve calls, from the coroutine that answers an admitted call: it is given the message (of
    ModelInfer, which may be large, the bytes) and returns the response, or its fields.

    A refused call gets an empty message, and the context a code and one line: an exception would make Serve log a stack
    trace for each mistake of a client.
    """
    name = answer.__name__
    request_class, response_class = getattr(proto, f"{name}Request"), getattr(proto, f"{name}Response")

    # Serve passes its context to a parameter of this name.
    async def method(self: "GrpcMethods", request: bytes, grpc_context: Any) -> Any:
        admission, admitted = self._admission, admitted_call.get(None)
        call = admitted or call_of(name, grpc_context, len(request))
        try:
            # A proxy of Ray Serve has admitted nothing.
            with nullcontext() if admitted else admission.admit(call):
                async with admission.in_time(call):
                    asked = request if name == "ModelInfer" else _parsed(request_class, request)
                    response = await answer(self, asked, call)
                    call.status = 200
                    return response_class(**response) if isinstance(response, dict) else response
        except RequestError as error:
            call.status = error.status
            grpc_context.set_code(CODES[error.status])
            grpc_context.set_details(error.message)
            return response_class()

    method.__name__ = name
    return method


def _parsed(kind: Any, request: bytes) -> Any:
    """Return the message of a class. Raises RequestError 400 if the bytes are not one."""
    try:
        return kind.FromString(request)
    except DecodeError:
        raise RequestError(400, f"the message is not a {kind.DESCRIPTOR.name}") from None


class GrpcMethods:
    """The calls for the models of a replica; Serve looks them up in a deployment's class by their name."""

    def __init__(self, models: ServedModels, admission: Admission, updates: Updates) -> None:
        self._models = models
        self._admission = admission
        self._updates = updates
        set_health_of_this_replica(self)

    @property
    def ends_soon(self) -> bool:
        """Tell if the server is about to end."""
        return self._models.end_soon

    def health(self, service: str) -> int:
        """Return the status, as `grpc.health.v1` has it, of a model, or of the server: "" or a service of it."""
        statuses = proto.CheckResponse
        if service not in {"", SERVICE, *self._models.current, *self._models.absent}:
            return statuses.SERVICE_UNKNOWN
        return statuses.NOT_SERVING if self.ends_soon or service in self._models.absent else statuses.SERVING

    @_answering
    async def ServerLive(self, asked: Any, call: Call) -> Any:
        return {"live": True}

    @_answering
    async def ServerReady(self, asked: Any, call: Call) -> Any:
        return {"ready": not self._models.end_soon}

    @_answering
    async def Check(self, asked: Any, call: Call) -> Any:
        status = self.health(asked.service)
        if status == proto.CheckResponse.SERVICE_UNKNOWN:
            raise RequestError(404, f"no model '{asked.service[:100]}'; leave it empty for the server")
        return {"status": status}

    @_answering
    async def ServerMetadata(self, asked: Any, call: Call) -> Any:
        return SERVER

    @_answering
    async def ModelReady(self, asked: Any, call: Call) -> Any:
        self._models.model(asked.name).version(asked.version or None)
        return {"ready": True}

    @_answering
    async def ModelMetadata(self, asked: Any, call: Call) -> Any:
        model = self._models.model(asked.name)
        predictor = model.version(asked.version or None).predictor
        return metadata(model.name, sorted(model.versions, key=int), predictor)

    @_answering
    async def ModelInfer(self, request: bytes, call: Call) -> Any:
        def parse() -> tuple[ServedModel, ServedVersion, InferRequest]:
            require_few_values(request)
            message = _parsed(proto.ModelInferRequest, request)
            model = self._models.model(message.model_name)
            version = model.version(message.model_version or None)
            call.answered_by(model.name, version.version, "infer")
            max_rows = self._admission.settings.max_rows_per_request
            return model, version, infer_request(message, version.predictor, max_rows)

        size, row_bytes = len(request), self._models.row_bytes
        async with self._admission.parsed(size, size, row_bytes, parse) as (model, version, asked):
            return infer_response(model.name, version.version, asked, await model.score(version, asked.rows))

    @_answering
    async def RepositoryIndex(self, asked: Any, call: Call) -> Any:
        self._admission.require_admin(call)
        return {"models": await asyncio.to_thread(self._updates.index, only_ready=asked.ready)}

    @_answering
    async def RepositoryModelLoad(self, asked: Any, call: Call) -> Any:
        return await self._change(asked, call, loads=True)

    @_answering
    async def RepositoryModelUnload(self, asked: Any, call: Call) -> Any:
        return await self._change(asked, call, loads=False)

    async def _change(self, asked: Any, call: Call, *, loads: bool) -> dict[str, Any]:
        self._admission.require_admin(call)
        kinds = {name: value.WhichOneof("parameter_choice") for name, value in asked.parameters.items()}
        given = {name: kind and getattr(asked.parameters[name], kind) for name, kind in kinds.items()}
        await asyncio.to_thread(change_model, self._updates, asked.model_name, given, loads=loads)
        return {}


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
