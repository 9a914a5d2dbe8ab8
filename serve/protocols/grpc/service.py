"""gRPC through Ray Serve's own server: the calls of the Open Inference Protocol, admitted as HTTP's requests are."""

from collections.abc import Awaitable, Callable
from importlib.metadata import version as installed_version
from typing import Any

import grpc

from serve.engine.admission import Admission, Call, request_id
from serve.errors import RequestError
from serve.models.served_models import ServedModels
from serve.protocols.grpc import proto
from serve.protocols.grpc.messages import infer_request, infer_response
from serve.protocols.v2.messages import metadata

_OPEN_METHODS = frozenset({"ServerLive", "ServerReady"})
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    500: grpc.StatusCode.INTERNAL,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""gRPC's code for the status that HTTP would have."""


def add_to_server(servicer: Any, server: Any) -> None:
    """Register the calls with Serve's gRPC server, which is given this function in `grpc_servicer_functions`."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            request_deserializer=getattr(proto, f"{name}Request").FromString,
            response_serializer=getattr(proto, f"{name}Response").SerializeToString,
        )
        for name in proto.METHODS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(proto.SERVICE, handlers),))


def _admitted(answer: Callable[["GrpcMethods", Any, Call], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The method that Serve calls, from the coroutine that answers once the call is admitted.

    A refused call gets an empty message, and the context a code and one line: an exception would make Serve log a stack
    trace for each mistake of a client.
    """
    name = answer.__name__

    # Serve passes its context to a parameter of this name.
    async def method(self: "GrpcMethods", request: Any, grpc_context: Any) -> Any:
        sent = dict(grpc_context.invocation_metadata())
        call = Call(
            request_id=request_id(sent.get("request_id")),
            client=grpc_context.peer(),
            http_method="gRPC",
            path=f"/{proto.SERVICE}/{name}",
            authorization=sent.get("authorization"),
            size=request.ByteSize(),
            needs_token=name not in _OPEN_METHODS,
        )
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


class GrpcMethods:
    """The calls for the models of a replica; Serve looks them up in a deployment's class by their name."""

    def __init__(self, models: ServedModels, admission: Admission) -> None:
        self._models = models
        self._admission = admission

    @_admitted
    async def ServerLive(self, request: Any, call: Call) -> Any:
        return proto.ServerLiveResponse(live=True)

    @_admitted
    async def ServerReady(self, request: Any, call: Call) -> Any:
        return proto.ServerReadyResponse(ready=True)

    @_admitted
    async def ServerMetadata(self, request: Any, call: Call) -> Any:
        return proto.ServerMetadataResponse(name="rayrec", version=installed_version("rayrec"))

    @_admitted
    async def ModelReady(self, request: Any, call: Call) -> Any:
        self._models.model(request.name).version(request.version or None)
        return proto.ModelReadyResponse(ready=True)

    @_admitted
    async def ModelMetadata(self, request: Any, call: Call) -> Any:
        model = self._models.model(request.name)
        predictor = model.version(request.version or None).predictor
        return proto.ModelMetadataResponse(**metadata(model.name, sorted(model.versions, key=int), predictor))

    @_admitted
    async def ModelInfer(self, request: Any, call: Call) -> Any:
        model = self._models.model(request.model_name)
        version = model.version(request.model_version or None)
        call.answered_by(model.name, version.version, "infer")
        asked = infer_request(request, version.predictor, self._admission.settings.max_rows_per_request)
        return infer_response(model.name, version.version, asked, await model.score(version, asked.rows))
