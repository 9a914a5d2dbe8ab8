"""Ray Serve's gRPC server in front of a replica: its messages, and the layer that admits a call and reads its message.

Serve's proxies import this module too, so it imports no model. The message classes are made from
`open_inference.binpb`, the compiled descriptor of `open_inference.proto`. After a change to that file, make the
descriptor again with the package grpcio-tools:

    cd serve; python -m grpc_tools.protoc --proto_path . --descriptor_set_out open_inference.binpb open_inference.proto
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from serve.admission import Admission, Call, of_this_replica, request_id
from serve.requests import RequestError

# A pool of its own: generated code would add the messages to the pool of the process, where a client's copy of the same
# names (Triton's, KServe's) would clash with them.
_POOL = descriptor_pool.DescriptorPool()
"""Describes every service of the server, for reflection."""
_COMPILED = Path(__file__).with_name("open_inference.binpb").read_bytes()
(_FILE,) = descriptor_pb2.FileDescriptorSet.FromString(_COMPILED).file
_POOL.AddSerializedFile(_FILE.SerializeToString())
_POOL.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
_POOL.AddSerializedFile(reflection_pb2.DESCRIPTOR.serialized_pb)
SERVICE, HEALTH = f"{_FILE.package}.GRPCInferenceService", "grpc.health.v1.Health"
METHODS = {method.name: method for method in _POOL.FindServiceByName(SERVICE).methods}
PATHS = {name: f"/{SERVICE}/{name}" for name in METHODS} | {"Check": f"/{HEALTH}/Check"}
"""The paths of the calls that Ray Serve hands to a replica."""
proto = SimpleNamespace(CheckRequest=health_pb2.HealthCheckRequest, CheckResponse=health_pb2.HealthCheckResponse)
"""The message classes by their names: METHODRequest and METHODResponse."""
for _name, _method in METHODS.items():
    setattr(proto, f"{_name}Request", message_factory.GetMessageClass(_method.input_type))
    setattr(proto, f"{_name}Response", message_factory.GetMessageClass(_method.output_type))

CODES = {
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


class Health(Protocol):
    """What tells clients whether a replica, or a model of it, answers."""

    @property
    def ends_soon(self) -> bool:
        """Tell if the server is about to end."""

    def health(self, service: str) -> int:
        """Return the status, as `grpc.health.v1` has it, of a model or of the server."""


_replica: list[Health] = []
"""The replica that this process runs; empty in a proxy of Ray Serve."""


def set_health_of_this_replica(replica: Health) -> None:
    """Let clients that watch the health of models hear of those of the replica that this process runs."""
    _replica[:] = [replica]


def add_to_server(servicer: Any, server: Any) -> None:
    """Register the calls with Serve's gRPC server, which is given this function in `grpc_servicer_functions`.

    Requests stay bytes until they are admitted. Reflection needs no replica: Serve is to leave its calls as they are.
    """
    server.add_generic_rpc_handlers((_Calls(servicer),))
    server.add_passthrough_service(reflection.SERVICE_NAME)
    reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server, _POOL)


class _Calls(grpc.GenericRpcHandler):
    """Finds what answers a call: in a replica it is admitted before Ray Serve takes it up (as `http.Front` does)."""

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
        return grpc.stream_unary_rpc_method_handler(partial(_admit, admission, name, handler.unary_unary))


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


admitted_call: ContextVar[Call] = ContextVar("admitted_call")
"""The call that the code below is about, where a replica's own server has admitted it."""


async def _admit(
    admission: Admission, name: str, answer: Callable[[bytes, Any], Awaitable[bytes]], _: Any, context: Any
) -> bytes:
    """Admit a call and read its one message, which Ray Serve then answers; the context gets the code of a refused one.

    gRPC itself receives the requests of all clients at once, with a token or without.
    """
    call = call_of(name, context)
    try:
        with admission.admit(call):
            async with admission.in_time(call):
                # How large the message is shows when it is there; how much of it is there does not show.
                await admission.hold(call, admission.most_bytes)
                reading = asyncio.ensure_future(context.read())
                # gRPC does not expect a reading to be cancelled; the end of the call ends it, and nobody asks how.
                reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                await asyncio.wait({reading})
                message = reading.result()
                if not isinstance(message, bytes):
                    raise RequestError(400, "the call ends without its message")
                await admission.hold(call, len(message))
            admitted_call.set(call)
            content = await answer(message, context)
            # Without a status Ray Serve has refused it: its queue is full.
            call.status = call.status or 503
    except RequestError as error:
        await context.abort(CODES[error.status], error.message)
    return content


def call_of(name: str, context: Any, size: int = 0) -> Call:
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
