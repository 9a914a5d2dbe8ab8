"""gRPC through Ray Serve's own server: the calls of the Open Inference Protocol, with the limits of HTTP's requests.

Serve makes a call by the name of the method, so that they are named here as the protocol does.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version as installed_version
from typing import Any

import grpc

from serve import grpc_messages as messages
from serve.gate import Limits, new_request_id, timed_out, too_large
from serve.grpc_protocol import infer_request, infer_response, metadata_response
from serve.protocol import RequestError
from serve.request_log import RequestLog, ServedBy
from serve.served_models import ServedModels
from serve.tokens import is_allowed

METHODS = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata", "ModelInfer")
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
"""By the status that HTTP would have."""

logger = logging.getLogger("ray.serve.rayrec")


def add_to_server(servicer: Any, server: Any) -> None:
    """What Serve's gRPC server registers (`grpc_servicer_functions`)."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            getattr(servicer, name),
            request_deserializer=getattr(messages, f"{name}Request").FromString,
            response_serializer=getattr(messages, f"{name}Response").SerializeToString,
        )
        for name in METHODS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(messages.SERVICE, handlers),))


class GrpcService:
    """Answers the calls for the models of a replica, whatever they are at the moment of a call."""

    def __init__(self, models: ServedModels, limits: Limits, tokens: frozenset[str], log: RequestLog) -> None:
        self._models = models
        self._limits = limits
        self._tokens = tokens
        self._log = log

    async def call(self, method: str, request: Any, context: Any) -> Any:
        """The answer to one call; where there is none, an empty one, the context having the code and one line.

        `context` is Serve's. Raising instead would make Serve log a stack trace for each mistake of a client.
        """
        began = time.perf_counter()
        sent = dict(context.invocation_metadata())
        served: list[ServedBy] = []
        error = RequestError(499, "")  # the client goes away, unless something else happens
        try:
            self._check(method, request, sent)
            async with asyncio.timeout(self._limits.timeout_seconds):
                answer = await self._answers[method](self, request, served)
            error = RequestError(200, "")
            return answer
        except RequestError as refused:
            error = refused
        except TimeoutError:
            error = timed_out(self._limits.timeout_seconds)
        except Exception as unexpected:
            logger.error("gRPC %s failed", method, exc_info=unexpected)
            error = RequestError(500, "internal error; the server's log has the details")
        finally:
            self._log.record(
                served[0] if served else ServedBy(),
                request_id=new_request_id(sent.get("request_id")),
                client=context.peer(),
                http_method="gRPC",
                path=f"/{messages.SERVICE}/{method}",
                status=error.status,
                seconds=time.perf_counter() - began,
            )
        context.set_code(_CODES[error.status])
        context.set_details(error.message)
        return getattr(messages, f"{method}Response")()

    def _check(self, method: str, request: Any, sent: dict[str, Any]) -> None:
        """Raises RequestError: 401 without a token where there are some, 413 where the message is too large."""
        if method not in _OPEN_METHODS and not is_allowed(sent.get("authorization"), self._tokens):
            raise RequestError(401, "no valid token; send the metadata 'authorization: Bearer TOKEN'")
        if request.ByteSize() > self._limits.max_body_bytes:
            raise too_large(self._limits.max_body_bytes)

    async def _live(self, request: Any, served: list[ServedBy]) -> Any:
        return messages.ServerLiveResponse(live=True)

    async def _ready(self, request: Any, served: list[ServedBy]) -> Any:
        return messages.ServerReadyResponse(ready=True)

    async def _metadata(self, request: Any, served: list[ServedBy]) -> Any:
        return messages.ServerMetadataResponse(name="rayrec", version=installed_version("rayrec"))

    async def _model_ready(self, request: Any, served: list[ServedBy]) -> Any:
        self._models.model(request.name).version(request.version or None)
        return messages.ModelReadyResponse(ready=True)

    async def _model_metadata(self, request: Any, served: list[ServedBy]) -> Any:
        model = self._models.model(request.name)
        predictor = model.version(request.version or None).predictor
        return metadata_response(request.name, sorted(model.versions, key=int), predictor)

    async def _infer(self, request: Any, served: list[ServedBy]) -> Any:
        model = self._models.model(request.model_name)
        version = model.version(request.model_version or None)
        served.append(ServedBy(model.name, version.version, "infer"))
        asked = infer_request(request, version.predictor, self._limits.max_rows)
        scores = await model.score(version, asked.rows)
        return infer_response(model.name, version.version, asked, scores)

    _answers: dict[str, Callable[["GrpcService", Any, list[ServedBy]], Awaitable[Any]]] = {
        "ServerLive": _live,
        "ServerReady": _ready,
        "ServerMetadata": _metadata,
        "ModelReady": _model_ready,
        "ModelMetadata": _model_metadata,
        "ModelInfer": _infer,
    }


class GrpcMethods:
    """The methods that Serve looks up in a deployment's class."""

    _grpc: GrpcService

    async def ServerLive(self, request: Any, grpc_context: Any) -> Any:
        return await self._grpc.call("ServerLive", request, grpc_context)

    async def ServerReady(self, request: Any, grpc_context: Any) -> Any:
        return await self._grpc.call("ServerReady", request, grpc_context)

    async def ServerMetadata(self, request: Any, grpc_context: Any) -> Any:
        return await self._grpc.call("ServerMetadata", request, grpc_context)

    async def ModelReady(self, request: Any, grpc_context: Any) -> Any:
        return await self._grpc.call("ModelReady", request, grpc_context)

    async def ModelMetadata(self, request: Any, grpc_context: Any) -> Any:
        return await self._grpc.call("ModelMetadata", request, grpc_context)

    async def ModelInfer(self, request: Any, grpc_context: Any) -> Any:
        return await self._grpc.call("ModelInfer", request, grpc_context)
