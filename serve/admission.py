"""The rule that admits a request over HTTP and gRPC: its token, size, memory and time, its metrics and log line."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rayrec.common.machine import give_back_freed_memory
from rayrec.common.text import printable
from rayrec.config import ServeConfig
from serve.json_log import JsonLog
from serve.requests import CLIENT_LEFT, RequestError
from serve.tokens import is_admin, is_allowed

if TYPE_CHECKING:
    # Ray Serve's proxies import this module, and do not count scores.
    from serve.metrics import ServingMetrics

AT_ONCE_BYTES = 16 * 2**10
"""JSON of a smaller body is parsed in the event loop: to hand it to a thread takes as long."""
SMALL_BYTES = 64 * 2**10
"""A request of so many bytes never waits for memory: the server has read as much of every connection anyway."""
_LARGE_BYTES = 2**20
"""A request of so many bytes leaves much behind in the allocator."""

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
    body: bytes = b""
    """The body of a request over HTTP, inflated."""
    memory: int = 0
    """Bytes that the request holds of the memory for bodies."""
    model: str = ""
    version: str = ""
    method: str = ""
    status: int = 0
    """HTTP status, over gRPC too; 0 until the answer begins."""
    began: float = field(default_factory=time.monotonic)

    def answered_by(self, model: str, version: str, method: str) -> None:
        """Note which version of which model is asked to do what, for metrics and log."""
        self.model, self.version, self.method = model, version, method


class Memory:
    """Bytes that requests may hold together; belongs to one event loop.

    Who waits is served as soon as its bytes fit, not in turn: behind large requests, smaller ones find room.
    """

    def __init__(self, most: int) -> None:
        self.held = 0
        self._most = most
        self._freed = asyncio.Event()
        self._gives_back = False

    async def take(self, count: int) -> None:
        """Hold `count` more bytes as soon as they are free; small requests, and one alone, may exceed the limit."""
        while count > SMALL_BYTES and self.held and self.held + count > self._most:
            self._freed.clear()
            await self._freed.wait()
        self.held += count

    def give(self, count: int) -> None:
        """Free `count` bytes. What large requests leave in the allocator, where it would add up, goes to the system."""
        self.held -= count
        self._freed.set()
        if count >= _LARGE_BYTES and not self._gives_back:
            self._gives_back = True
            # Some of them still hold their bodies while their answers are sent.
            asyncio.get_running_loop().call_later(1.0, self._give_back)

    def _give_back(self) -> None:
        self._gives_back = False
        asyncio.get_running_loop().run_in_executor(None, give_back_freed_memory)


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
        self._bodies, self._parsed = Memory(half), Memory(half)
        self._parser = ThreadPoolExecutor(1, "parsing")

    @contextmanager
    def admit(self, call: Call) -> Iterator[None]:
        """Receive and answer a request within the block, after which its memory is free, and it is recorded.

        Raises RequestError: 401 no valid token, 413 too large, and what the block raises.
        """
        try:
            self._require_token(call)
            self.require_size(call.size)
            yield
        except RequestError as error:
            call.status = error.status
            raise
        finally:
            self._bodies.give(call.memory)
            self.record(call)

    @asynccontextmanager
    async def in_time(self, call: Call) -> AsyncIterator[None]:
        """Turn errors of the block into RequestError: 504 if the request's time is over, 500 for an unexpected one."""
        limit = self.settings.request_timeout_seconds
        try:
            async with asyncio.timeout(limit - (time.monotonic() - call.began)):
                yield
        except RequestError:
            raise
        except TimeoutError:
            message = f"the request timed out after {limit:g} s; send fewer rows, or try again"
            raise RequestError(504, message) from None
        except Exception:
            # One line for the client; the log has the rest.
            logger.exception("%s %s failed", call.http_method, printable(call.path))
            raise RequestError(500, "internal error; the server's log has the details") from None

    async def hold(self, call: Call, size: int) -> None:
        """Let a request hold `size` bytes of the memory for bodies, as soon as they are free.

        All of it at once: bodies that are there in part would keep each other waiting.
        """
        if size > call.memory:
            await self._bodies.take(size - call.memory)
        else:
            self._bodies.give(call.memory - size)
        call.memory = size

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
        memory = 2 * size + min(rows, self.settings.max_rows_per_request) * row_bytes
        await self._parsed.take(memory)
        try:
            yield parse() if size <= at_once_bytes else await self.in_turn(parse)
        finally:
            self._parsed.give(memory)

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

    def _require_token(self, call: Call) -> None:
        """Raise RequestError 401 unless the request has a token, or needs none."""
        if call.needs_token and not is_allowed(call.authorization, self._tokens):
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "no valid token; send 'Authorization: Bearer TOKEN' (gRPC: as metadata)", headers)

    def require_admin(self, call: Call) -> None:
        """Raise RequestError 403 unless the request has the token of an administrator."""
        if not is_admin(call.authorization, self._tokens):
            how = "write the word 'admin' after a token in --token-file or RAYREC_SERVE_TOKENS ('TOKEN admin')"
            raise RequestError(403, f"this needs an administrator's token; {how}")

    def record(self, call: Call) -> None:
        """Count a request that has ended, and log it."""
        status, seconds = call.status or CLIENT_LEFT, time.monotonic() - call.began
        self._metrics.answered(call.model, call.version, call.method, status, seconds)
        if self._access_log is not None:
            noted = ("request_id", "client", "http_method", "path", "model", "version", "method")
            request = {name: getattr(call, name) for name in noted}
            self._access_log.write({**request, "status": status, "seconds": round(seconds, 6)})


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
