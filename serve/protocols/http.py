"""What the protocols over HTTP share: admission in front of the routes, and the body of a request.

Plain ASGI: the middleware of Starlette that reads requests costs as much as the rest of the application.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pydantic_core
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayrec.config import ServeConfig
from serve.engine.admission import CLIENT_LEFT, MOST_VALUES, Admission, Call, of_this_replica, request_id, require_size
from serve.errors import RequestError

_CALL = "rayrec.call"
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
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        if admission is None or headers is None or not _has_body(headers):
            await self.app(scope, receive, send)
            return
        call = _call(scope, headers)
        with admission.bodies.hold() as share:
            try:
                async with admission.receive(call), share.arriving():
                    # Bodies that are there in part would keep each other waiting.
                    await share.grow(call.size)
                    chunks = []
                    async for chunk in _chunks(receive):
                        share.arrived += len(chunk)
                        require_size(share.arrived, admission.settings)
                        await share.grow(max(0, share.arrived - share.held))
                        chunks.append(chunk)
            except RequestError as error:
                await error_response(error, call.request_id)(scope, receive, send)
                return
            body = b"".join(chunks)
            chunks.clear()
            await self.app(scope, _received(body, receive), send)


def middlewares() -> list[Middleware]:
    """What Ray Serve puts around a replica's HTTP server, which is given this function by its name."""
    return [Middleware(Intake)]


@dataclass(frozen=True)
class Gate:
    """Lets a request through to `app` under the rule of `admission`, and answers what it refuses."""

    app: ASGIApp
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        call = scope[_CALL] = _call(scope, Headers(scope=scope))

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
    """The answer to a request that is refused, with the request's id if Ray Serve does not add it."""
    headers = {**(error.headers or {}), **({"X-Request-Id": request_id} if request_id is not None else {})}
    return JSONResponse({"error": error.message}, status_code=error.status, headers=headers)


def _call(scope: Scope, headers: Headers) -> Call:
    return Call(
        request_id=request_id(headers.get("X-Request-Id")),
        client=(scope.get("client") or ("",))[0],
        http_method=scope["method"],
        path=scope["path"],
        authorization=headers.get("Authorization"),
        size=_stated_size(headers),
        needs_token=scope["path"] not in _OPEN_PATHS,
    )


def _has_body(headers: Headers) -> bool:
    return "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it comes. Raises RequestError if the client goes away."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError(CLIENT_LEFT, "the client went away before its request was read")
        yield message.get("body", b"")
        more = message.get("more_body", False)


def _received(body: bytes, receive: Receive) -> Receive:
    """What an application receives if `body` has been received before."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def call_of(request: Request) -> Call:
    """The call that admission made of an HTTP request."""
    call: Call = request.scope[_CALL]
    return call


async def read_body(request: Request, settings: ServeConfig) -> bytes:
    """The whole body, read no further than the limit. Raises RequestError: 413 too large, 415 compressed."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(415, f"Content-Encoding '{encoding[:50]}': send the body as it is")
    chunks, size = [], 0
    async for chunk in _chunks(request.receive):
        size += len(chunk)
        require_size(size, settings)
        chunks.append(chunk)
    return b"".join(chunks)


def parse_json(body: bytes, example: str) -> Any:
    """The value of a body. Raises RequestError: 400 unless it is JSON, 413 if it is of too many values.

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


def _stated_size(headers: Headers) -> int:
    """Content-Length, or 0 if it is absent or not a number."""
    length = headers.get("Content-Length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
