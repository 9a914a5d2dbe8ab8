"""The Open Inference Protocol over gRPC, through Ray Serve's own server, admitted as HTTP's requests are.

`add_to_server` puts `_Calls` in front of Serve's handlers: it reads a message under the rule of the replica's
admission. Serve then hands its bytes to the method of that name of `GrpcMethods`, which the replica is.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection

from serve.admission import Admission, Call, limit_of, of_this_replica, request_id
from serve.grpc_messages import HEALTH, PATHS, POOL, SERVICE, infer_request, infer_response, proto, require_few_values
from serve.requests import RequestError
from serve.served_models import ServedModel, ServedModels
from serve.served_version import ServedVersion
from serve.updates import Updates
from serve.v2 import SERVER, InferRequest, change_model, metadata

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.RESOURCE_EXHAUSTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC's code for the status that HTTP would have."""

_OPEN_METHODS = frozenset({"ServerLive", "ServerReady", "Check"})
_WATCH = f"/{HEALTH}/Watch"
_SECONDS_BETWEEN_LOOKS = 1.0
"""How soon who watches the health of a model hears of a change."""


def add_to_server(servicer: Any, server: Any) -> None:
    """Register the calls with Serve's gRPC server, which is given this function in `grpc_servicer_functions`.

    Requests stay bytes until they are admitted. Reflection needs no replica: Serve is to leave its calls as they are.
    """
    server.add_generic_rpc_handlers((_Calls(servicer),))
    server.add_passthrough_service(reflection.SERVICE_NAME)
    reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server, POOL)


class _Calls(grpc.GenericRpcHandler):
    """Receives a request under the rule of the replica's admission: its token first, then its bytes, as memory allows.

    gRPC itself receives the requests of all clients at once, whoever they are.
    """

    def __init__(self, servicer: Any) -> None:
        # Serve finds the handlers by this name and puts its own functions into them.
        self._method_handlers = {
            path: grpc.unary_unary_rpc_method_handler(getattr(servicer, name)) for name, path in PATHS.items()
        }

    def service(self, handler_call_details: Any) -> Any:
        if handler_call_details.method == _WATCH and _replica:
            # Beside Serve, which would count it among the requests in work for as long as it lasts.
            parse, write = proto.CheckRequest.FromString, proto.CheckResponse.SerializeToString
            return grpc.unary_stream_rpc_method_handler(_watch, parse, write)
        handler = self._method_handlers.get(handler_call_details.method)
        admission = of_this_replica()
        if handler is None or admission is None:
            return handler
        # On the wire a request is a stream of one message; a handler of streams chooses when to read it.
        name = handler_call_details.method.rpartition("/")[2]
        return grpc.stream_unary_rpc_method_handler(partial(_receive, admission, name, handler.unary_unary))


_replica: list["GrpcMethods"] = []
"""The replica that this process runs; empty in a proxy of Ray Serve."""


async def _watch(asked: Any, _: Any) -> AsyncIterator[Any]:
    """Tell the health of a model, or of the server, now and whenever it changes, while the client listens.

    It ends when the server is about to, which would wait for it.
    """
    told, (replica,) = None, _replica
    while True:
        is_last = replica.ends_soon
        if (status := replica.health(asked.service)) != told:
            yield proto.CheckResponse(status=status)
            told = status
        if is_last:
            return
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)


async def _receive(
    admission: Admission, name: str, answer: Callable[[bytes, Any], Awaitable[bytes]], _: Any, context: Any
) -> bytes:
    """Read the one message of a call, and answer it as Serve does; the context gets the code of a refused one."""
    call = _call(name, context)
    with admission.bodies.hold() as share:
        try:
            async with admission.receive(call), share.arriving():
                # How large it is shows when it is there; how much of it is there does not show.
                await share.grow(limit_of(admission.settings))
                reading = asyncio.ensure_future(context.read())
                # gRPC does not expect a reading to be cancelled; the end of the call ends it, and nobody asks how.
                reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                await asyncio.wait({reading})
                message = reading.result()
                if not isinstance(message, bytes):
                    raise RequestError(400, "the call ends without its message")
                share.shrink(min(len(message), share.held))
        except RequestError as error:
            await context.abort(_CODES[error.status], error.message)
        return await answer(message, context)


def _call(name: str, context: Any, size: int = 0) -> Call:
    sent = dict(context.invocation_metadata())
    return Call(
        request_id=request_id(sent.get("request_id")),
        client=context.peer(),
        http_method="gRPC",
        path=PATHS[name],
        authorization=sent.get("authorization"),
        size=size,
        needs_token=name not in _OPEN_METHODS,
    )


def _admitted(answer: Callable[["GrpcMethods", Any, Call], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the method that Serve calls, from the coroutine that answers an admitted call: it is given the message (of
    ModelInfer, which may be large, the bytes) and returns the response, or its fields.

    A refused call gets an empty message, and the context a code and one line: an exception would make Serve log a stack
    trace for each mistake of a client.
    """
    name = answer.__name__
    request_class, response_class = getattr(proto, f"{name}Request"), getattr(proto, f"{name}Response")

    # Serve passes its context to a parameter of this name.
    async def method(self: "GrpcMethods", request: bytes, grpc_context: Any) -> Any:
        call = _call(name, grpc_context, len(request))
        try:
            async with self._admission.admit(call):
                asked = request if name == "ModelInfer" else _parsed(request_class, request)
                response = await answer(self, asked, call)
                call.status = 200
                return response_class(**response) if isinstance(response, dict) else response
        except RequestError as error:
            grpc_context.set_code(_CODES[error.status])
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
        _replica[:] = [self]

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

    @_admitted
    async def ServerLive(self, asked: Any, call: Call) -> Any:
        return {"live": True}

    @_admitted
    async def ServerReady(self, asked: Any, call: Call) -> Any:
        return {"ready": not self._models.end_soon}

    @_admitted
    async def Check(self, asked: Any, call: Call) -> Any:
        status = self.health(asked.service)
        if status == proto.CheckResponse.SERVICE_UNKNOWN:
            raise RequestError(404, f"no model '{asked.service[:100]}'; leave it empty for the server")
        return {"status": status}

    @_admitted
    async def ServerMetadata(self, asked: Any, call: Call) -> Any:
        return SERVER

    @_admitted
    async def ModelReady(self, asked: Any, call: Call) -> Any:
        self._models.model(asked.name).version(asked.version or None)
        return {"ready": True}

    @_admitted
    async def ModelMetadata(self, asked: Any, call: Call) -> Any:
        model = self._models.model(asked.name)
        predictor = model.version(asked.version or None).predictor
        return metadata(model.name, sorted(model.versions, key=int), predictor)

    @_admitted
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

    @_admitted
    async def RepositoryIndex(self, asked: Any, call: Call) -> Any:
        self._admission.require_admin(call)
        return {"models": await asyncio.to_thread(self._updates.index, only_ready=asked.ready)}

    @_admitted
    async def RepositoryModelLoad(self, asked: Any, call: Call) -> Any:
        return await self._change(asked, call, loads=True)

    @_admitted
    async def RepositoryModelUnload(self, asked: Any, call: Call) -> Any:
        return await self._change(asked, call, loads=False)

    async def _change(self, asked: Any, call: Call, *, loads: bool) -> dict[str, Any]:
        self._admission.require_admin(call)
        kinds = {name: value.WhichOneof("parameter_choice") for name, value in asked.parameters.items()}
        given = {name: kind and getattr(asked.parameters[name], kind) for name, kind in kinds.items()}
        await asyncio.to_thread(change_model, self._updates, asked.model_name, given, loads=loads)
        return {}
