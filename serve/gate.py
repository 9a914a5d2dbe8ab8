"""What every HTTP request passes before the routes: the token, the size and time limits; its metrics and its log line.

Plain ASGI: the middleware of Starlette that reads requests costs as much as the rest of the application.
"""

import asyncio
import json
import time
import uuid
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve.json_log import JsonLog
from serve.metrics import ServingMetrics
from serve.protocol import RequestError
from serve.tokens import is_allowed

REQUEST_ID = "X-Request-Id"
_SERVED_BY = "rayrec.served_by"
_OPEN_PATHS = frozenset({"/", "/healthz", "/v2/health/live", "/v2/health/ready"})


@dataclass(frozen=True)
class ServedBy:
    """Which version of which model a request asked to do what."""

    model: str
    version: str
    method: str


def note_served_by(scope: Scope, model: str, version: str, method: str) -> None:
    """Called by a route once it knows; metrics and the log have it then."""
    scope[_SERVED_BY] = ServedBy(model, version, method)


@dataclass(frozen=True)
class Limits:
    """Of one request."""

    max_rows: int
    max_body_bytes: int
    timeout_seconds: float


class Gate:
    """Refuses what may not or cannot be answered; what passes gets an answer within the time limit."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        tokens: frozenset[str],
        metrics: ServingMetrics,
        access_log: JsonLog | None,
    ) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._app = app
        self._limits = limits
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get(REQUEST_ID))
        began = time.perf_counter()
        status = 0

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope["path"], headers)
            async with asyncio.timeout(self._limits.timeout_seconds):
                await self._app(scope, receive, send_noting_status)
        except RequestError as error:
            await _refuse(send_noting_status, error)
        except TimeoutError:
            if status:
                raise
            seconds = f"{self._limits.timeout_seconds:g} s"
            await _refuse(
                send_noting_status, RequestError(504, f"not done within {seconds}; send fewer rows, or try again")
            )
        finally:
            # 499, as nginx has it: the client went away before the answer.
            self._record(scope, request_id, status or 499, time.perf_counter() - began)

    def _record(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        served: ServedBy = scope.get(_SERVED_BY) or ServedBy("", "", "")
        tags = {"model": served.model, "version": served.version, "method": served.method}
        self._metrics.requests.inc(1, {**tags, "status": str(status)})
        if served.method:
            self._metrics.seconds.observe(seconds, tags)
        if self._access_log is not None:
            client = (scope.get("client") or ("",))[0]
            self._access_log.write(
                {
                    "request_id": request_id,
                    "client": client,
                    "http_method": scope["method"],
                    "path": scope["path"],
                    **tags,
                    "status": status,
                    "seconds": round(seconds, 6),
                }
            )

    def _check(self, path: str, headers: Headers) -> None:
        """Raises RequestError: 401 without a token where there are some, 413 where the stated size is too large."""
        if path not in _OPEN_PATHS and not is_allowed(headers.get("Authorization"), self._tokens):
            raise RequestError(
                401, "no valid token; send 'Authorization: Bearer TOKEN'", {"WWW-Authenticate": "Bearer"}
            )
        length = headers.get("Content-Length", "0")
        if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > self._limits.max_body_bytes:
            raise too_large(self._limits.max_body_bytes)


def too_large(max_bytes: int) -> RequestError:
    """The answer to a body beyond the limit."""
    return RequestError(413, f"the body is larger than {max_bytes / 2**20:g} MiB; send several requests")


def _request_id(given: str | None) -> str:
    """The client's, or that which Serve's proxy gave it (and sends back); another where it is no plain short word."""
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex


async def _refuse(send: Send, error: RequestError) -> None:
    body = json.dumps({"error": error.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
