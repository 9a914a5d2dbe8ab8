"""The calls of the Open Inference Protocol over gRPC, which Ray Serve hands to a replica as bytes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError

from serve.admission import Admission, Call
from serve.grpc_messages import infer_request, infer_response, require_few_values
from serve.grpc_server import CODES, SERVICE, call_of, proto, set_health_of_this_replica
from serve.requests import RequestError
from serve.served_models import ServedModel, ServedModels
from serve.served_version import ServedVersion
from serve.updates import Updates
from serve.v2 import SERVER, InferRequest, change_model, metadata


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
        call = call_of(name, grpc_context, len(request))
        try:
            async with self._admission.admit(call):
                asked = request if name == "ModelInfer" else _parsed(request_class, request)
                response = await answer(self, asked, call)
                call.status = 200
                return response_class(**response) if isinstance(response, dict) else response
        except RequestError as error:
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
