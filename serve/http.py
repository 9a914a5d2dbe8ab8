"""HTTP from a connection to a route: the layer that admits a request and reads its body, and the table of routes.

A request passes `Front`; Ray Serve, where it may wait; and `Router`, which finds what answers. Plain ASGI: the routing
and middleware of Starlette take as long as the rest of the application.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.haproxy import NOT_SERVED
from cluster.ray_serve import GRPC_LIMIT, SETTINGS
from serve.admission import SMALL_BYTES, Admission, Call, of_this_replica, request_id
from serve.requests import CLIENT_LEFT, IDENTITY, RequestError, inflated, most_bytes, require_known_encoding

_CALL = "rayrec.call"
"""Where the scope of an admitted request has its call."""
_MOST_BYTES_OF_A_PROXY = int(os.environ.get(GRPC_LIMIT, SETTINGS[GRPC_LIMIT]))
"""A proxy of Ray Serve, which reads bodies whole, does not know the settings of the replicas."""
_REQUEST_ID, _LENGTH = b"x-request-id", b"content-length"
_OPEN_PATHS = frozenset({"/", "/healthz", "/v2/health/live", "/v2/health/ready"})
_PATHS_OF_SERVE = frozenset({"/-/healthz", "/-/routes"})
"""Ray Serve itself answers these, to HAProxy."""


def middlewares() -> list[Middleware]:
    """Return what Ray Serve puts around an HTTP server of its own; it is given this function by its name."""
    admission = of_this_replica()
    return [Middleware(ProxyFront)] if admission is None else [Middleware(Front, admission, names_requests=True)]


@dataclass(frozen=True)
class Front:
    """The one layer before the routes: admits a request, reads its body, and records how it was answered.

    In a replica with an HTTP server of its own it stands before Ray Serve, which counts a request as one in work, and
    reads its body to the end, whether its application does or not: slow clients would take the places of others, and
    bodies that nobody has looked at would add up in memory. The application has it, too, for requests that come through
    a proxy of Ray Serve.
    """

    app: ASGIApp
    admission: Admission
    names_requests: bool = False
    """Whether a refusal gets the header X-Request-Id, which Ray Serve adds to answers from behind it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _CALL in scope or scope["path"] in _PATHS_OF_SERVE:
            await self.app(scope, receive, send)
            return
        scope = {**below(self.admission.root_path, scope), "headers": _read_by_serve(scope["headers"])}
        headers = headers_of(scope)
        call = scope[_CALL] = _call(scope, headers)

        # Metrics and log have the status that the client gets.
        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            await send(message)

        # The call has the body: Ray Serve would read it once more.
        left: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive_no_body() -> Message:
            return left.pop() if left else await receive()

        try:
            with self.admission.admit(call):
                async with self.admission.in_time(call):
                    call.body = await self._body(call, headers, receive)
                await self.app(scope, receive_no_body, _in_json(scope, receive, send_noting_status))
        except RequestError as error:
            await error_response(error, call.request_id if self.names_requests else None)(scope, receive, send)

    async def _body(self, call: Call, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the whole body, inflated, for which the call then holds memory, unless it is small.

        Raises RequestError: 400 not what its encoding says, 413 too large, 415 an encoding that is not read.
        """
        encoding = headers.get(b"content-encoding", b"").decode().strip().lower() or IDENTITY
        require_known_encoding(encoding)
        most = self.admission.most_bytes
        chunks: list[bytes] = []
        size, is_whole = 0, False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestError(CLIENT_LEFT, "the client went away before its request was read")
            chunks.append(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            size += len(chunks[-1])
            # A body that is sent in chunks states no size: it is counted as it comes.
            self.admission.require_size(size)
            if size > SMALL_BYTES and not call.memory:
                await self.admission.hold(call, (call.size or most) + (0 if encoding == IDENTITY else most))
        body = b"".join(chunks)
        chunks.clear()
        if encoding != IDENTITY:
            if not call.memory:
                await self.admission.hold(call, most_bytes(size, most))
            body = await self.admission.in_turn(partial(inflated, body, most))
        if call.memory:
            await self.admission.hold(call, len(body))
        return body


@dataclass(frozen=True)
class ProxyFront:
    """Limits sizes before a proxy of Ray Serve, whose replicas, elsewhere, admit requests; its errors become JSON."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = {**scope, "headers": _read_by_serve(scope["headers"])}
        if _stated_size(headers_of(scope)) > _MOST_BYTES_OF_A_PROXY:
            refused = RequestError(413, "the body is too large; send several requests")
            await error_response(refused)(scope, receive, send)
        else:
            await self.app(scope, receive, _in_json(scope, receive, send))


def _in_json(scope: Scope, receive: Receive, send: Send) -> Send:
    """Return `send` with Ray Serve's own errors, which are plain text in one piece, as the JSON of all others."""
    refused: Message | None = None

    async def send_json(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start" and _is_plain_error(message):
            refused = message
        elif refused is None:
            await send(message)
        else:
            await error_response(_error_of(refused, message["body"]))(scope, receive, send)

    return send_json


def _is_plain_error(start: Message) -> bool:
    return start["status"] >= 400 and dict(start["headers"]).get(b"content-type", b"").startswith(b"text/plain")


def _error_of(start: Message, text: bytes) -> RequestError:
    """Return the error that an answer of Ray Serve stands for, with all of its headers but those about the text."""
    # Serve answers 404 while it has no route: no replica is there yet, or any more.
    if start["status"] == 404:
        return RequestError(503, NOT_SERVED, {"Retry-After": "1"})
    kept = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in start["headers"]
        if name not in {b"content-type", _LENGTH}
    }
    return RequestError(start["status"], text.decode(errors="replace"), kept)


class Route:
    """A path, with names in braces for its parts, the methods that it takes, and what answers."""

    def __init__(self, path: str, answer: Callable[[Request], Awaitable[Response]], *methods: str) -> None:
        """`methods`: GET and HEAD, unless others are given."""
        self.pattern, *_ = compile_path(path)
        self.answer = answer
        self.methods = methods or ("GET", "HEAD")


@dataclass(frozen=True)
class Router:
    """Answers an admitted request by the first route that has its path."""

    routes: Sequence[Route]
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive)
        try:
            async with self.admission.in_time(call_of(request)):
                response = await self._answer(request)
        except RequestError as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Raises RequestError: 404 no such path, 405 another method, and what the route raises."""
        method, path = request.method, below(request.scope.get("root_path", ""), request.scope)["path"]
        for route in self.routes:
            if (found := route.pattern.fullmatch(path)) is None:
                continue
            # No other route has this path, so a method that it does not take is wrong.
            if method not in route.methods:
                message = f"{method} {path[:200]}: use {' or '.join(route.methods)}"
                raise RequestError(405, message, {"Allow": ", ".join(route.methods)})
            request.scope["path_params"] = found.groupdict()
            return await route.answer(request)
        paths = "POST /v1/models/NAME:predict or :VERB, POST /v2/models/NAME/infer, GET /v1/models, GET /healthz"
        raise RequestError(404, f"{method} {path[:200]}: Not Found; there are {paths}")


async def _live(receive: Receive, send: Send) -> None:
    """Answer the server's notes that the application begins and ends, which have nothing to do here."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


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


def _read_by_serve(given: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers as Ray Serve can read them, with one id of the request.

    Serve decodes some as UTF-8 without care, and of those given twice takes the last. No header that has a meaning here
    has other characters than ASCII's.
    """
    kept = [(name, value) for name, value in given if name.isascii() and value.isascii()]
    ids = [value.decode() for name, value in kept if name == _REQUEST_ID]
    others = [(name, value) for name, value in kept if name != _REQUEST_ID]
    return [*others, (_REQUEST_ID, request_id(ids[0] if ids else None).encode())]


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by name, in small letters; of those that are given twice the first."""
    return dict(reversed(scope["headers"]))


def call_of(request: Request) -> Call:
    """Return the call that admission made of an HTTP request."""
    call: Call = request.scope[_CALL]
    return call


def _call(scope: Scope, headers: Mapping[bytes, bytes]) -> Call:
    authorization = headers.get(b"authorization")
    return Call(
        request_id=headers[_REQUEST_ID].decode(),
        client=(scope.get("client") or ("",))[0],
        http_method=scope["method"],
        path=scope["path"],
        authorization=None if authorization is None else authorization.decode(),
        size=_stated_size(headers),
        needs_token=scope["path"] not in _OPEN_PATHS,
    )


def _stated_size(headers: Mapping[bytes, bytes]) -> int:
    """Return Content-Length, or 0 if it is absent or not a number."""
    length = headers.get(_LENGTH, b"0")
    return int(length) if length.isdigit() and len(length) < 20 else 0
