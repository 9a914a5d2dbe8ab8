"""Shared part of the protocols over HTTP: admission in front of the routes, and the body of a request.

Plain ASGI: the middleware of Starlette that reads requests costs as much as the rest of the application.
"""

import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pydantic_core
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.haproxy import NOT_SERVED
from cluster.ray_serve import GRPC_LIMIT, SETTINGS, answer_malformed_in_json
from serve.engine.admission import (
    CLIENT_LEFT,
    MOST_VALUES,
    Admission,
    Call,
    limit_of,
    of_this_replica,
    request_id,
    require_size,
)
from serve.errors import RequestError
from serve.protocols.compression import IDENTITY, inflated, most_bytes, require_known

_CALL, _BODY = "rayrec.call", "rayrec.body"
"""What the intake leaves in the scope of a request for those who answer it."""
_MOST_BYTES_OF_A_PROXY = int(os.environ.get(GRPC_LIMIT, SETTINGS[GRPC_LIMIT]))
"""A proxy of Ray Serve, which reads bodies whole, does not know the settings of the replicas."""
_REQUEST_ID, _LENGTH = b"x-request-id", b"content-length"
_OPEN_PATHS = frozenset({"/", "/healthz", "/v2/health/live", "/v2/health/ready"})


@dataclass(frozen=True)
class Intake:
    """Receives the body of a request before Ray Serve takes it up, under the rule of the replica's admission.

    Ray Serve counts a request as one in work, and reads its body to the end, whether its application does or not: slow
    clients would take the places of others, and bodies that nobody has looked at would add up in memory.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = of_this_replica()
        if admission is not None:
            scope = below(admission.root_path, scope)
        elif scope["type"] == "http" and _stated_size(headers_of(scope)) > _MOST_BYTES_OF_A_PROXY:
            await error_response(RequestError(413, "the body is too large; send several requests"))(
                scope, receive, send
            )
            return
        headers = headers_of(scope) if scope["type"] == "http" else {}
        if admission is None or not _has_body(headers):
            await self.app(scope, receive, send)
            return
        call = scope[_CALL] = _call(scope, headers)
        if _REQUEST_ID not in headers:
            # Otherwise Ray Serve gives it another one.
            scope["headers"] = [*scope["headers"], (_REQUEST_ID, call.request_id.encode())]
        with admission.bodies.hold() as share:
            try:
                async with admission.receive(call):
                    encoding = _encoding(headers)
                    async with share.arriving():
                        # Bodies that are there in part would keep each other waiting.
                        await share.grow(call.size)
                        chunks = []
                        async for chunk in _chunks(receive):
                            share.arrived += len(chunk)
                            require_size(share.arrived, admission.settings)
                            await share.grow(max(0, share.arrived - share.held))
                            chunks.append(chunk)
                        body = b"".join(chunks)
                        chunks.clear()
                        if encoding != IDENTITY:
                            await share.grow(most_bytes(len(body), limit_of(admission.settings)))
                    if encoding != IDENTITY:
                        body = await _inflated(body, admission)
                        share.shrink(len(body))
            except RequestError as error:
                await error_response(error, call.request_id)(scope, receive, send)
                return
            scope[_BODY] = body
            await self.app(scope, _received(body, receive), send)


@dataclass(frozen=True)
class JsonErrors:
    """Turns Ray Serve's own answers, which are plain text, into the JSON of all other errors.

    Serve's proxy answers 404 while it has no route: no replica is there yet, or any more.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: Message | None = None
        text = b""

        async def send_json(message: Message) -> None:
            nonlocal refused, text
            if message["type"] == "http.response.start" and _is_plain_error(message):
                refused = message
            elif refused is None:
                await send(message)
            else:
                text += message.get("body", b"")
                if not message.get("more_body", False):
                    await error_response(_error_of(refused, text))(scope, receive, send)

        await self.app(scope, receive, send_json)


def _is_plain_error(start: Message) -> bool:
    return start["status"] >= 400 and dict(start["headers"]).get(b"content-type", b"").startswith(b"text/plain")


def _error_of(start: Message, text: bytes) -> RequestError:
    """Return the error that an answer of Ray Serve stands for, with all of its headers but those about the text."""
    if start["status"] == 404 and of_this_replica() is None:
        return RequestError(503, NOT_SERVED, {"Retry-After": "1"})
    kept = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in start["headers"]
        if name not in {b"content-type", _LENGTH}
    }
    return RequestError(start["status"], text.decode(errors="replace"), kept)


def middlewares() -> list[Middleware]:
    """Return what Ray Serve puts around an HTTP server of its own; it is given this function by its name."""
    answer_malformed_in_json()
    return [Middleware(JsonErrors), Middleware(Intake)]


@dataclass(frozen=True)
class Gate:
    """Lets a request through to `app` under the rule of `admission`, and answers what it refuses."""

    app: ASGIApp
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _CALL not in scope:
            scope[_CALL] = _call(scope, headers_of(scope))
        call: Call = scope[_CALL]

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            await send(message)

        try:
            async with self.admission.admit(call):
                await self.app(scope, receive, send_noting_status)
        except RequestError as error:
            await error_response(error)(scope, receive, send)


def error_response(error: RequestError, request_id: str | None = None) -> JSONResponse:
    """Return the answer to a request that is refused, with the request's id if Ray Serve does not add it."""
    headers = {**(error.headers or {}), **({"X-Request-Id": request_id} if request_id is not None else {})}
    return JSONResponse({"error": error.message}, status_code=error.status, headers=headers)


def below(prefix: str, scope: Scope) -> Scope:
    """Return the scope of a request whose path has lost `prefix`, unless a proxy took it away before."""
    path = scope.get("path", "")
    if not prefix or not (path == prefix or path.startswith(f"{prefix}/")):
        return scope
    return {**scope, "path": path[len(prefix) :] or "/"}


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by name, in small letters; of those that are given twice the first."""
    return dict(reversed(scope["headers"]))


def _call(scope: Scope, headers: Mapping[bytes, bytes]) -> Call:
    authorization = headers.get(b"authorization")
    return Call(
        request_id=request_id(headers.get(_REQUEST_ID, b"").decode("latin-1")),
        client=(scope.get("client") or ("",))[0],
        http_method=scope["method"],
        path=scope["path"],
        authorization=None if authorization is None else authorization.decode("latin-1"),
        size=_stated_size(headers),
        needs_token=scope["path"] not in _OPEN_PATHS,
    )


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(_LENGTH, b"0") != b"0"


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it comes. Raises RequestError if the client goes away."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(CLIENT_LEFT, "the client went away before its request was read")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _received(body: bytes, receive: Receive) -> Receive:
    """Return what an application receives if `body` has been received before."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def call_of(request: Request) -> Call:
    """Return the call that admission made of an HTTP request."""
    call: Call = request.scope[_CALL]
    return call


async def read_body(request: Request, admission: Admission) -> bytes:
    """Return the whole body, inflated, read no further than the limit.

    Raises RequestError: 400 not what its encoding says, 413 too large, 415 an encoding that is not read.
    """
    if _BODY in request.scope:
        body: bytes = request.scope[_BODY]
        return body
    encoding = _encoding(headers_of(request.scope))
    chunks, size = [], 0
    async for chunk in _chunks(request.receive):
        size += len(chunk)
        require_size(size, admission.settings)
        chunks.append(chunk)
    body = b"".join(chunks)
    return body if encoding == IDENTITY else await _inflated(body, admission)


async def _inflated(body: bytes, admission: Admission) -> bytes:
    return await admission.in_turn(partial(inflated, body, limit_of(admission.settings)))


def _encoding(headers: Mapping[bytes, bytes]) -> str:
    """Return how a body is compressed. Raises RequestError 415 for an encoding that is not read."""
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower() or IDENTITY
    require_known(encoding)
    return encoding


def parse_json(body: bytes, example: str) -> Any:
    """Return the value of a body. Raises RequestError: 400 unless it is JSON, 413 if it is of too many values.

    An empty body is answered with `example`.
    """
    if not body:
        raise RequestError(400, f"the body is empty; send {example}")
    # Before there is an object for each of them. Commas in strings count too: nobody sends a million of these.
    if (values := sum(map(body.count, (b",", b"{", b"[")))) > MOST_VALUES:
        raise RequestError(413, f"the body has {values} values, at most {MOST_VALUES} a request; send several requests")
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


def _stated_size(headers: Mapping[bytes, bytes]) -> int:
    """Return Content-Length, or 0 if it is absent or not a number."""
    length = headers.get(_LENGTH, b"0")
    return int(length) if length.isdigit() and len(length) < 20 else 0
