"""What the protocols over HTTP share: admission in front of the routes, and the body of a request.

Plain ASGI: the middleware of Starlette that reads requests costs as much as the rest of the application.
"""

from dataclasses import dataclass
from typing import Any

import pydantic_core
from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayrec.config import ServeConfig
from serve.engine.admission import CLIENT_LEFT, Admission, Call, request_id, require_size
from serve.errors import RequestError

_CALL = "rayrec.call"
_OPEN_PATHS = frozenset({"/", "/healthz", "/v2/health/live", "/v2/health/ready"})


@dataclass(frozen=True)
class Gate:
    """Lets a request through to `app` under the rule of `admission`, and answers what it refuses."""

    app: ASGIApp
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        call = scope[_CALL] = Call(
            request_id=request_id(headers.get("X-Request-Id")),
            client=(scope.get("client") or ("",))[0],
            http_method=scope["method"],
            path=scope["path"],
            authorization=headers.get("Authorization"),
            size=_stated_size(headers),
            needs_token=scope["path"] not in _OPEN_PATHS,
        )

        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            await send(message)

        try:
            async with self.admission.admit(call):
                await self.app(scope, receive, send_noting_status)
        except RequestError as error:
            await error_response(error)(scope, receive, send)


def error_response(error: RequestError) -> JSONResponse:
    """The answer to a request that is refused."""
    return JSONResponse({"error": error.message}, status_code=error.status, headers=error.headers)


def call_of(request: Request) -> Call:
    """The call that admission made of an HTTP request."""
    call: Call = request.scope[_CALL]
    return call


async def read_body(request: Request, settings: ServeConfig) -> bytes:
    """The whole body, read no further than the limit. Raises RequestError: 413 too large, 415 compressed."""
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding.lower() != "identity":
        raise RequestError(415, f"Content-Encoding '{encoding[:50]}': send the body as it is")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            require_size(len(body), settings)
    except ClientDisconnect:
        raise RequestError(CLIENT_LEFT, "the client went away before its request was read") from None
    return bytes(body)


def parse_json(body: bytes, example: str) -> Any:
    """The value of a body. Raises RequestError 400 unless it is JSON; an empty body is answered with `example`."""
    if not body:
        raise RequestError(400, f"the body is empty; send {example}")
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


def _stated_size(headers: Headers) -> int:
    """Content-Length, or 0 if it is absent or not a number."""
    length = headers.get("Content-Length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 20 else 0
