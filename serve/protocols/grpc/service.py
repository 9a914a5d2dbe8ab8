"""gRPC through Ray Serve's own server: the calls of the Open Inference Protocol, admitted as HTTP's requests are."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import version as installed_version
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from serve.engine.admission import Admission, Call, of_this_replica, request_id
from serve.errors import RequestError
from serve.models.served_models import ServedModel, ServedModels
from serve.models.served_version import ServedVersion
from serve.protocols.grpc import proto
from serve.protocols.grpc.messages import infer_request, infer_response
from serve.protocols.grpc.wire import require_few_values
from serve.protocols.v2.messages import InferRequest, metadata

_OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.RESOURCE_EXHAUSTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC's code for the status that HTTP would have."""


def add_to_server(servicer: Any, server: Any) -> None:
    """Register the calls with Serve's gRPC server, which is given this function in `grpc_servicer_functions`.

    Requests stay bytes until they are admitted.
    """
    server.add_generic_rpc_handlers((_Calls(servicer),))


class _Calls(grpc.GenericRpcHandler):
    """Receives a request under the rule of the replica's admission: its token first, then its bytes, as memory allows.

    gRPC itself receives the requests of all clients at once, whoever they are.
    """

    def __init__(self, servicer: Any) -> None:
        # Serve finds the handlers by this name and puts its own functions into them.
        self._method_handlers = {
            f"/{proto.SERVICE}/{name}": grpc.unary_unary_rpc_method_handler(getattr(servicer, name))
            for name in proto.METHODS
        }

    def service(self, handler_call_details: Any) -> Any:
        handler = self._method_handlers.get(handler_call_details.method)
        admission = of_this_replica()
        if handler is None or admission is None:
            return handler
        # On the wire a request is a stream of one message; a handler of streams chooses when to read it.
        name = handler_call_details.method.rpartition("/")[2]
        return grpc.stream_unary_rpc_method_handler(partial(_receive, admission, name, handler.unary_unary))


async def _receive(
    admission: Admission, name: str, answer: Callable[[bytes, Any], Awaitable[bytes]], _: Any, context: Any
) -> bytes:
    """Read the one message of a call, and answer it as Serve does; the context gets the code of a refused one."""
    call = _call(name, context)
    with admission.bodies.hold() as share:
        try:
            async with admission.receive(call), share.arriving():
                # How large it is shows when it is there; how much of it is there does not show.
                await share.grow(int(admission.settings.max_body_mib * 2**20))
                message = await _read(context)
                share.shrink(min(len(message), share.held))
        except RequestError as error:
            await context.abort(_CODES[error.status], error.message)
        return await answer(message, context)


async def _read(context: Any) -> bytes:
    """The message of a call. Raises RequestError if there is none."""
    reading = asyncio.ensure_future(context.read())
    # gRPC does not expect a reading to be cancelled; the end of the call ends it, and nobody asks how.
    reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait({reading})
    message = reading.result()
    if not isinstance(message, bytes):
        raise RequestError(400, "the call ends without its message")
    return message


def _call(name: str, context: Any, size: int = 0) -> Call:
    sent = dict(context.invocation_metadata())
    return Call(
        request_id=request_id(sent.get("request_id")),
        client=context.peer(),
        http_method="gRPC",
        path=f"/{proto.SERVICE}/{name}",
        authorization=sent.get("authorization"),
        size=size,
        needs_token=name not in _OPEN_METHODS,
    )


def _admitted(answer: Callable[["GrpcMethods", bytes, Call], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The method that Serve calls, from the coroutine that answers the bytes of a request once the call is admitted.

    A refused call gets an empty message, and the context a code and one line: an exception would make Serve log a stack
    trace for each mistake of a client.
    """
    name = answer.__name__

    # Serve passes its context to a parameter of this name.
    async def method(self: "GrpcMethods", request: bytes, grpc_context: Any) -> Any:
        call = _call(name, grpc_context, len(request))
        try:
            async with self._admission.admit(call):
                response = await answer(self, request, call)
                call.status = 200
                return response
        except RequestError as error:
            grpc_context.set_code(_CODES[error.status])
            grpc_context.set_details(error.message)
            return getattr(proto, f"{name}Response")()

    method.__name__ = name
    return method


def _parsed(kind: Any, request: bytes) -> Any:
    """The message of a class. Raises RequestError 400 if the bytes are not one."""
    try:
        return kind.FromString(request)
    except DecodeError:
        raise RequestError(400, f"the message is not a {kind.DESCRIPTOR.name}") from None


class GrpcMethods:
    """The calls for the models of a replica; Serve looks them up in a deployment's class by their name."""

    def __init__(self, models: ServedModels, admission: Admission) -> None:
        self._models = models
        self._admission = admission

    @_admitted
    async def ServerLive(self, request: bytes, call: Call) -> Any:
        return proto.ServerLiveResponse(live=True)

    @_admitted
    async def ServerReady(self, request: bytes, call: Call) -> Any:
        return proto.ServerReadyResponse(ready=not self._models.end_soon)

    @_admitted
    async def ServerMetadata(self, request: bytes, call: Call) -> Any:
        return proto.ServerMetadataResponse(name="rayrec", version=installed_version("rayrec"))

    @_admitted
    async def ModelReady(self, request: bytes, call: Call) -> Any:
        asked = _parsed(proto.ModelReadyRequest, request)
        self._models.model(asked.name).version(asked.version or None)
        return proto.ModelReadyResponse(ready=True)

    @_admitted
    async def ModelMetadata(self, request: bytes, call: Call) -> Any:
        asked = _parsed(proto.ModelMetadataRequest, request)
        model = self._models.model(asked.name)
        predictor = model.version(asked.version or None).predictor
        return proto.ModelMetadataResponse(**metadata(model.name, sorted(model.versions, key=int), predictor))

    @_admitted
    async def ModelInfer(self, request: bytes, call: Call) -> Any:
        parse = partial(self._parse_infer, request, call)
        size, row_bytes = len(request), self._models.row_bytes
        async with self._admission.parsed(size, size, row_bytes, parse) as (model, version, asked):
            return infer_response(model.name, version.version, asked, await model.score(version, asked.rows))

    def _parse_infer(self, request: bytes, call: Call) -> tuple[ServedModel, ServedVersion, InferRequest]:
        require_few_values(request)
        message = _parsed(proto.ModelInferRequest, request)
        model = self._models.model(message.model_name)
        version = model.version(message.model_version or None)
        call.answered_by(model.name, version.version, "infer")
        return model, version, infer_request(message, version.predictor, self._admission.settings.max_rows_per_request)
