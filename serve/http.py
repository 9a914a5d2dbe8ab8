"""HTTP from a connection to a route: the body, Ray Serve's own errors as JSON, admission, and the table of routes.

A request passes, in this order: `JsonErrors` and `Intake`, which Ray Serve puts around its own HTTP servers; Ray Serve,
which counts it; `Gate`, which admits it; `Router`, which finds what answers. Plain ASGI: the routing and middleware of
Starlette take as long as the rest of the application.
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
from serve.admission import Admission, Call, of_this_replica, request_id
from serve.memory import Share
from serve.requests import CLIENT_LEFT, IDENTITY, RequestError, inflated, most_bytes, require_known_encoding

_CALL, _BODY = "rayrec.call", "rayrec.body"
"""What the intake leaves in the scope of a request for those who answer it."""
_MOST_BYTES_OF_A_PROXY = int(os.environ.get(GRPC_LIMIT, SETTINGS[GRPC_LIMIT]))
"""A proxy of Ray Serve, which reads bodies whole, does not know the settings of the replicas."""
_REQUEST_ID, _LENGTH = b"x-request-id", b"content-length"
_OPEN_PATHS = frozenset({"/", "/healthz", "/v2/health/live", "/v2/health/ready"})


def middlewares() -> list[Middleware]:
    """Return what Ray Serve puts around an HTTP server of its own; it is given this function by its name."""
    return [Middleware(JsonErrors), Middleware(Intake)]


@dataclass(frozen=True)
class JsonErrors:
    """Turns Ray Serve's own answers, which are plain text, into the JSON of all other errors."""

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
    # Serve's proxy answers 404 while it has no route: no replica is there yet, or any more.
    if start["status"] == 404 and of_this_replica() is None:
        return RequestError(503, NOT_SERVED, {"Retry-After": "1"})
    kept = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in start["headers"]
        if name not in {b"content-type", _LENGTH}
    }
    return RequestError(start["status"], text.decode(errors="replace"), kept)


@dataclass(frozen=True)
class Intake:
    """Receives the body of a request before Ray Serve takes it up, under the rule of the replica's admission.

    Ray Serve counts a request as one in work, and reads its body to the end, whether its application does or not: slow
    clients would take the places of others, and bodies that nobody has looked at would add up in memory.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        admission = of_this_replica()
        if scope["type"] == "http":
            scope["headers"] = _read_by_serve(scope["headers"])
        headers = headers_of(scope) if scope["type"] == "http" else {}
        if admission is None:
            # A proxy of Ray Serve, without HAProxy in front: its replica, elsewhere, reads the body by `read_body`.
            if _stated_size(headers) > _MOST_BYTES_OF_A_PROXY:
                refused = RequestError(413, "the body is too large; send several requests")
                await error_response(refused)(scope, receive, send)
            else:
                await self.app(scope, receive, send)
            return
        scope = below(admission.root_path, scope)
        if b"transfer-encoding" not in headers and headers.get(_LENGTH, b"0") == b"0":
            # There is no body to wait for.
            await self.app(scope, receive, send)
            return
        call = scope[_CALL] = _call(scope, headers)
        # The body is held from its first byte to the answer.
        with admission.bodies.hold() as share:
            try:
                # Token, size and time limit come first; who is refused here is answered and recorded at once.
                async with admission.receive(call):
                    body = await _receive_body(receive, headers, admission, share)
            except RequestError as error:
                await error_response(error, call.request_id)(scope, receive, send)
                return
            # Ray Serve reads the body once more, from memory; the route takes it from the scope.
            scope[_BODY] = body
            messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def received() -> Message:
                return messages.pop() if messages else await receive()

            await self.app(scope, received, send)


async def read_body(request: Request, admission: Admission) -> bytes:
    """Return the whole body, inflated, read no further than the limit.

    Raises RequestError: 400 not what its encoding says, 413 too large, 415 an encoding that is not read.
    """
    if _BODY in request.scope:
        body: bytes = request.scope[_BODY]
        return body
    with admission.bodies.hold() as share:
        return await _receive_body(request.receive, headers_of(request.scope), admission, share)


async def _receive_body(receive: Receive, headers: Mapping[bytes, bytes], admission: Admission, share: Share) -> bytes:
    """Return the whole body, inflated, for which `share` then holds memory. Raises RequestError as `read_body`."""
    encoding = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower() or IDENTITY
    require_known_encoding(encoding)
    with share.arriving():
        # Memory for all of it at once: bodies that are there in part would keep each other waiting.
        await share.grow(_stated_size(headers))
        chunks: list[bytes] = []
        is_whole = False
        while not is_whole:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestError(CLIENT_LEFT, "the client went away before its request was read")
            chunks.append(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            # A body that is sent in chunks states no size: it is counted as it comes.
            share.arrived += len(chunks[-1])
            admission.require_size(share.arrived)
            await share.grow(max(0, share.arrived - share.held))
        body = b"".join(chunks)
        chunks.clear()
        if encoding != IDENTITY:
            await share.grow(most_bytes(len(body), admission.most_bytes))
    if encoding != IDENTITY:
        body = await admission.in_turn(partial(inflated, body, admission.most_bytes))
        share.shrink(len(body))
    return body


@dataclass(frozen=True)
class Gate:
    """Lets a request through to `app` under the rule of `admission`, and answers what either of them refuses."""

    app: ASGIApp
    admission: Admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope = below(self.admission.root_path, scope)
        # The intake has made the call of a request with a body.
        if _CALL not in scope:
            scope[_CALL] = _call(scope, headers_of(scope))
        call: Call = scope[_CALL]

        # Metrics and log have the status that the client gets.
        async def send_noting_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
            await send(message)

        try:
            async with self.admission.admit(call):
                await self.app(scope, receive, send_noting_status)
        except RequestError as error:
            await error_response(error)(scope, receive, send)


class Route:
    """A path, with names in braces for its parts, the methods that it takes, and what answers."""

    def __init__(self, path: str, answer: Callable[[Request], Awaitable[Response]], *methods: str) -> None:
        """`methods`: GET and HEAD, unless others are given."""
        self.pattern, *_ = compile_path(path)
        self.answer = answer
        self.methods = methods or ("GET", "HEAD")


class Router:
    """Answers a request by the first route that has its path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises RequestError: 404 no such path, 405 another method, and what the route raises."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        method, path = scope["method"], below(scope.get("root_path", ""), scope)["path"]
        for route in self._routes:
            if (found := route.pattern.fullmatch(path)) is None:
                continue
            # No other route has this path, so a method that it does not take is wrong.
            if method not in route.methods:
                message = f"{method} {path[:200]}: use {' or '.join(route.methods)}"
                raise RequestError(405, message, {"Allow": ", ".join(route.methods)})
            scope["path_params"] = found.groupdict()
            response = await route.answer(Request(scope, receive))
            await response(scope, receive, send)
            return
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
    has other characters than ASCII's, but for a token, which Serve leaves alone.
    """
    ids = [value.decode("latin-1") for name, value in given if name == _REQUEST_ID]
    kept = [
        (name, value)
        for name, value in given
        if name != _REQUEST_ID and name.isascii() and (value.isascii() or name == b"authorization")
    ]
    return [*kept, (_REQUEST_ID, request_id(ids[0] if ids else None).encode())]


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
        request_id=request_id(headers.get(_REQUEST_ID, b"").decode("latin-1")),
        client=(scope.get("client") or ("",))[0],
        http_method=scope["method"],
        path=scope["path"],
        authorization=None if authorization is None else authorization.decode("latin-1"),
        size=_stated_size(headers),
        needs_token=scope["path"] not in _OPEN_PATHS,
    )


def _stated_size(headers: Mapping[bytes, bytes]) -> int:
    """Return Content-Length, or 0 if it is absent or not a number."""
    length = headers.get(_LENGTH, b"0")
    return int(length) if length.isdigit() and len(length) < 20 else 0
