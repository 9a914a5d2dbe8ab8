"""The rule that admits a request over HTTP and gRPC: its token, size, memory and time, its metrics and log line."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from rayrec.common.text import printable
from rayrec.config import ServeConfig
from serve.json_log import JsonLog
from serve.memory import Memory
from serve.requests import CLIENT_LEFT, RequestError
from serve.tokens import is_admin, is_allowed

if TYPE_CHECKING:
    # Ray Serve's proxies import this module, and do not count scores.
    from serve.metrics import ServingMetrics

AT_ONCE_BYTES = 16 * 2**10
"""JSON of a smaller body is parsed in the event loop: to hand it to a thread takes as long."""

ResultT = TypeVar("ResultT")

logger = logging.getLogger("ray.serve.rayrec")


@dataclass
class Call:
    """A request as admission and the log see it; the code that answers it fills in the fields with defaults."""

    request_id: str
    client: str
    http_method: str
    path: str
    authorization: str | None
    size: int
    """Bytes of the body, as far as they are known before it is read."""
    needs_token: bool
    model: str = ""
    version: str = ""
    method: str = ""
    status: int = 0
    """HTTP status, over gRPC too; 0 until the answer begins."""

    def answered_by(self, model: str, version: str, method: str) -> None:
        """Note which version of which model is asked to do what, for metrics and log."""
        self.model, self.version, self.method = model, version, method


class Admission:
    """Refuses requests that may not or cannot be answered, ends those that take too long, and records every one."""

    def __init__(
        self,
        settings: ServeConfig,
        tokens: Mapping[str, bool],
        metrics: "ServingMetrics",
        access_log: JsonLog | None = None,
        root_path: str = "",
    ) -> None:
        """Make the rule of a replica.

        Args:
            tokens: The hashes of the tokens of which a request must have one (`read_tokens`); if empty, all may ask.
            access_log: The log of requests; if absent, a request leaves metrics only.
            root_path: What the paths of requests may begin with, as that of a server behind a proxy.
        """
        self.settings, self.root_path = settings, root_path
        self._tokens, self._metrics, self._access_log = tokens, metrics, access_log
        self.most_bytes = int(settings.max_body_mib * 2**20)
        """Bytes that a body may have."""
        # Half of the memory is for bodies, from their first byte to the answer, and half for what they are parsed into.
        # One thread parses: meanwhile a body is many times its size, and no two of them are there at once.
        half = int(settings.request_memory_mib * 2**20) // 2
        self.bodies, self._parsed = Memory(half), Memory(half)
        self._parser = ThreadPoolExecutor(1, "parsing")

    def receive(self, call: Call) -> "_Limits":
        """Read the body of a request within the block; if it is not refused, `admit` records it later.

        Raises RequestError as `admit`.
        """
        return _Limits(self, call, is_last=False)

    def admit(self, call: Call) -> "_Limits":
        """Answer a request within the block, which sets `call.status` as soon as the answer begins.

        Raises RequestError: 401 no valid token, 413 too large, 504 too slow, 500 for an unexpected error, and whatever
        the block raises; other errors come through only if the answer has already begun.
        """
        return _Limits(self, call, is_last=True)

    @asynccontextmanager
    async def parsed(
        self,
        size: int,
        rows: int,
        row_bytes: int,
        parse: Callable[[], ResultT],
        at_once_bytes: int = AT_ONCE_BYTES,
    ) -> AsyncIterator[ResultT]:
        """Yield what `parse` makes of a body of `size` bytes, for the block. Raises RequestError as `parse` does.

        `rows` is how many rows the body may have, as far as that shows before it is parsed: a byte may be a row.
        `row_bytes` is what a row takes in memory when all of its features are missing. Bodies of up to `at_once_bytes`
        are parsed in the event loop, larger ones in a thread, one after the other.
        """
        with self._parsed.hold() as share:
            await share.grow(2 * size + min(rows, self.settings.max_rows_per_request) * row_bytes)
            if size <= at_once_bytes:
                yield parse()
                return
            yield await self.in_turn(parse)

    async def in_turn(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what `work` makes of a body, in a thread that does one after the other. Raises as `work`."""
        content = await asyncio.get_running_loop().run_in_executor(self._parser, _attempt, work)
        if isinstance(content, RequestError):
            raise content
        return content

    def require_size(self, size: int) -> None:
        """Raise RequestError 413 for a body of more bytes than the limit."""
        if size > self.most_bytes:
            message = f"the body is larger than {self.settings.max_body_mib:g} MiB; send several requests"
            raise RequestError(413, message)

    def require_token(self, call: Call) -> None:
        """Raise RequestError 401 unless the request has a token, or needs none."""
        if call.needs_token and not is_allowed(call.authorization, self._tokens):
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "no valid token; send 'Authorization: Bearer TOKEN' (gRPC: as metadata)", headers)

    def require_admin(self, call: Call) -> None:
        """Raise RequestError 403 unless the request has the token of an administrator."""
        if not is_admin(call.authorization, self._tokens):
            how = "write the word 'admin' after a token in --token-file or RAYREC_SERVE_TOKENS ('TOKEN admin')"
            raise RequestError(403, f"this needs an administrator's token; {how}")

    def record(self, call: Call, seconds: float) -> None:
        """Count a request that took so long, and log it."""
        status = call.status or CLIENT_LEFT
        self._metrics.answered(call.model, call.version, call.method, status, seconds)
        if self._access_log is not None:
            noted = ("request_id", "client", "http_method", "path", "model", "version", "method")
            request = {name: getattr(call, name) for name in noted}
            self._access_log.write({**request, "status": status, "seconds": round(seconds, 6)})


class _Limits:
    """The block in which a request is received or answered. A generator would cost as much as half of its checks."""

    __slots__ = ("_admission", "_began", "_call", "_is_last", "_timeout")

    def __init__(self, admission: Admission, call: Call, *, is_last: bool) -> None:
        """`is_last`: the request is recorded after the block in any case, not only if it fails."""
        self._admission, self._call, self._is_last = admission, call, is_last

    async def __aenter__(self) -> None:
        self._began = time.perf_counter()
        try:
            self._admission.require_token(self._call)
            self._admission.require_size(self._call.size)
        except RequestError as error:
            self._end(error)
            raise
        self._timeout = asyncio.timeout(self._admission.settings.request_timeout_seconds)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raised, call = error, self._call
        try:
            await self._timeout.__aexit__(kind, error, traceback)
        except TimeoutError as late:
            raised = late
        # An error that nobody expected becomes one line for the client, unless the answer has begun; the log has it.
        if isinstance(raised, TimeoutError) and not call.status:
            seconds = self._admission.settings.request_timeout_seconds
            raised = RequestError(504, f"the request timed out after {seconds:g} s; send fewer rows, or try again")
        elif isinstance(raised, Exception) and not isinstance(raised, RequestError) and not call.status:
            logger.error("%s %s failed", call.http_method, printable(call.path), exc_info=raised)
            raised = RequestError(500, "internal error; the server's log has the details")
        self._end(raised)
        if raised is not error and raised is not None:
            raise raised from None

    def _end(self, error: BaseException | None) -> None:
        if isinstance(error, RequestError):
            self._call.status = error.status
        if self._is_last or error is not None:
            self._admission.record(self._call, time.perf_counter() - self._began)


def _attempt(parse: Callable[[], ResultT]) -> ResultT | RequestError:
    """Return what `parse` gives, or the error that it raises without its frames: with them, what they had made of the
    body would stay in memory for as long as the error does.
    """
    try:
        return parse()
    except RequestError as error:
        return RequestError(error.status, error.message, error.headers)


_replica: list[Admission] = []


def set_of_this_replica(admission: Admission) -> None:
    """Let the servers of this process, which Ray Serve starts, find the admission of the replica that it runs."""
    _replica[:] = [admission]


def of_this_replica() -> Admission | None:
    """Return the admission of the replica that this process runs; None in a proxy of Ray Serve."""
    return _replica[0] if _replica else None


def request_id(given: str | None) -> str:
    """Return the id that a client, or Serve's proxy, gave a request; a new one unless that is a plain, short word."""
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return os.urandom(16).hex()
