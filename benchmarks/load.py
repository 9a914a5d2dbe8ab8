"""Load on an HTTP server: by wrk (as many requests as clients that wait for answers make), or at a given rate."""

import asyncio
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

# What wrk tells at its end, as JSON; it counts answers other than 2xx and 3xx as errors of status.
_SCRIPT = """
local file = io.open("{body}", "rb")
wrk.method = "POST"
wrk.body = file:read("*a")
wrk.headers["Content-Type"] = "application/json"
done = function(summary, latency, requests)
  io.write(string.format('\\nRESULT {{"requests": %d, "seconds": %.6f, "failed": %d, "p50_ms": %.3f, '
    .. '"p95_ms": %.3f, "p99_ms": %.3f}}\\n', summary.requests, summary.duration / 1e6,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write
    + summary.errors.timeout, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3))
end
"""


def wrk(address: str, body: Path, clients: int, seconds: int) -> dict[str, Any]:
    """POST a file for some seconds, each client waiting for its answer: requests, failed ones, latencies in ms."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(_SCRIPT.format(body=body))
        script.flush()
        command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "30s", "-s", script.name, address]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(told.partition("RESULT ")[2])
    return {**found, "requests_per_second": round(found["requests"] / found.pop("seconds"), 1)}


@dataclass(frozen=True)
class Sample:
    """One request of `at_rate`."""

    began: float
    """Seconds since the first one."""
    seconds: float
    status: int
    """Of HTTP; 0 where the connection failed."""


def at_rate(address: str, body: bytes, per_second: float, seconds: float, token: str | None = None) -> list[Sample]:
    """POST `body` so often, whether earlier requests were answered or not; waits for all answers."""
    return asyncio.run(_at_rate(address, body, per_second, seconds, token))


async def _at_rate(address: str, body: bytes, per_second: float, seconds: float, token: str | None) -> list[Sample]:
    url = urlsplit(address)
    head = f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
    if token is not None:
        head += f"Authorization: Bearer {token}\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    client = _Client(url.hostname or "", url.port or 80, request)
    began = time.perf_counter()

    async def one() -> Sample:
        asked = time.perf_counter()
        status = await client.ask()
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


class _Client:
    """Sends one request again and again, over connections that are kept."""

    def __init__(self, host: str, port: int, request: bytes) -> None:
        self._host, self._port, self._request = host, port, request
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self) -> int:
        """The status of the answer, 0 where there is none."""
        try:
            if self._idle:
                reader, writer = self._idle.pop()
            else:
                reader, writer = await asyncio.open_connection(self._host, self._port)
            writer.write(self._request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = head.partition("content-length:")[2].partition("\r\n")[0]
            await reader.readexactly(int(length or 0))
        except (OSError, asyncio.IncompleteReadError):
            return 0
        if "connection: close" in head or not length:
            writer.close()
        else:
            self._idle.append((reader, writer))
        return int(head.split()[1])

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Requests by status, and percentiles of the latency (milliseconds) of each status."""
    statuses = Counter(sample.status for sample in samples)
    return {
        "requests": len(samples),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "latency_ms": {str(status): percentiles(samples, status) for status in sorted(statuses)},
    }


def percentiles(samples: Sequence[Sample], status: int = 200) -> dict[str, float]:
    """Of the latency in milliseconds of the requests that were answered so."""
    times = [1e3 * sample.seconds for sample in samples if sample.status == status]
    return {f"p{q}": round(float(np.percentile(times, q)), 2) for q in (50, 95, 99)} if times else {}
