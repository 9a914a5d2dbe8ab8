"""Load on an HTTP server: from clients that wait for their answers, or at a given rate."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

REFUSED, BROKEN = 0, -1


@dataclass(frozen=True)
class Sample:
    """One request and how it was answered."""

    began: float
    """Seconds between the start of the load and the start of this request."""
    seconds: float
    """Seconds between the start of this request and the last byte of its answer."""
    status: int
    """HTTP status; REFUSED where nobody listens, BROKEN where a connection ends before the answer."""


@dataclass(frozen=True)
class Post:
    """A POST request that is sent again and again."""

    url: str
    """Address of the request, with http as its scheme."""
    body: bytes
    headers: Mapping[str, str]

    def encoded(self) -> bytes:
        """Return the request as it is sent."""
        url = urlsplit(self.url)
        headers = {"Host": url.netloc, "Content-Length": str(len(self.body)), **self.headers}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"POST {url.path} HTTP/1.1\r\n{lines}\r\n".encode() + self.body


def json_post(url: str, body: bytes, token: str | None = None) -> Post:
    """Return a request whose body is JSON, with a token if the server asks for one."""
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return Post(url, body, {"Content-Type": "application/json", **authorization})


def answer_to(post: Post) -> tuple[int, bytes]:
    """Return the status and the body of one answer. Raises OSError if the connection fails."""
    return asyncio.run(_answer_to(post))


def of_clients(post: Post, clients: int, seconds: float) -> list[Sample]:
    """Send `post` for some seconds from `clients` clients, each of which waits for an answer before it asks again."""
    return of_clients_until(post, clients, lambda passed: passed >= seconds)


def of_clients_until(post: Post, clients: int, is_over: Callable[[float], bool]) -> list[Sample]:
    """Send `post` as `of_clients` does, until `is_over` says so, which is given the seconds that have passed."""
    return asyncio.run(_of_clients(post, clients, is_over))


def at_rate(post: Post, per_second: float, seconds: float) -> list[Sample]:
    """Send `post` so often, whether earlier requests were answered or not; wait for all answers."""
    return asyncio.run(_at_rate(post, per_second, seconds))


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the number of requests, that of each status, and percentiles of the latency (milliseconds) of each
    status.
    """
    statuses = Counter(sample.status for sample in samples)
    return {
        "requests": len(samples),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "latency_ms": {str(status): percentiles(samples, status) for status in sorted(statuses)},
    }


def percentiles(samples: Sequence[Sample], status: int = 200) -> dict[str, float]:
    """Return the percentiles 50, 95 and 99 of the latency in milliseconds of the requests that were answered with
    `status`.
    """
    times = [1e3 * sample.seconds for sample in samples if sample.status == status]
    return {f"p{q}": round(float(np.percentile(times, q)), 3) for q in (50, 95, 99)} if times else {}


async def _answer_to(post: Post) -> tuple[int, bytes]:
    client = _Client(post)
    answer = await client.ask()
    client.close()
    if answer.status <= 0:
        raise OSError("the connection failed")
    return answer.status, answer.body


async def _of_clients(post: Post, clients: int, is_over: Callable[[float], bool]) -> list[Sample]:
    client = _Client(post)
    began = time.perf_counter()
    samples: list[Sample] = []

    async def ask_again_and_again() -> None:
        while not is_over(asked := time.perf_counter() - began):
            status = (await client.ask()).status
            samples.append(Sample(asked, time.perf_counter() - began - asked, status))
            if status <= 0:
                await asyncio.sleep(0.1)  # a server that is gone refuses thousands of connections a second

    await asyncio.gather(*(ask_again_and_again() for _ in range(clients)))
    client.close()
    return samples


async def _at_rate(post: Post, per_second: float, seconds: float) -> list[Sample]:
    client = _Client(post)
    began = time.perf_counter()

    async def one() -> Sample:
        asked = time.perf_counter()
        status = (await client.ask()).status
        return Sample(asked - began, time.perf_counter() - asked, status)

    tasks = []
    for index in range(round(per_second * seconds)):
        wait = began + index / per_second - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one()))
    samples = await asyncio.gather(*tasks)
    client.close()
    return samples


@dataclass(frozen=True)
class _Answer:
    status: int
    """As that of a sample."""
    body: bytes = b""
    keeps: bool = False
    """Whether the connection takes another request."""


class _Client:
    """Sends one request again and again, over connections that are kept."""

    def __init__(self, post: Post) -> None:
        url = urlsplit(post.url)
        self._address = url.hostname or "", url.port or 80
        self._request = post.encoded()
        self._idle: list[_Connection] = []

    async def ask(self) -> _Answer:
        """Return the answer to one request."""
        while self._idle and self._idle[-1].is_closed:
            self._idle.pop()
        try:
            connection = self._idle.pop() if self._idle else await self._connected()
        except ConnectionRefusedError:
            return _Answer(REFUSED)
        except OSError:
            return _Answer(BROKEN)
        answer = await connection.ask(self._request)
        if answer.keeps:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connected(self) -> "_Connection":
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._address)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection. Streams of asyncio would take longer for a request than the server itself does."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = bytearray()
        self._answer: asyncio.Future[_Answer] | None = None

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    async def ask(self, request: bytes) -> _Answer:
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or self._answer is None or self._answer.done():
            return
        head = self._received[:end].decode("latin-1").lower()
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        if len(self._received) >= end + 4 + int(length or 0):
            keeps = bool(length) and "connection: close" not in head
            self._answer.set_result(_Answer(int(head.split(maxsplit=2)[1]), bytes(self._received[end + 4 :]), keeps))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(_Answer(BROKEN))

    def close(self) -> None:
        self._transport.close()
