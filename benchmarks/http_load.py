"""Load on an HTTP server: from clients that wait for their answers, or at a given rate."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jobs import benchmark_serve
from jobs.benchmark_serve import HttpClient, Post, TimedAnswer, load_of_clients


def json_post(url: str, body: bytes, token: str | None = None) -> Post:
    """Return a request whose body is JSON, with a token if the server asks for one."""
    authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
    return Post(url, body, {"Content-Type": "application/json", **authorization})


def of_clients(post: Post, clients: int, seconds: float) -> list[TimedAnswer]:
    """Send `post` for some seconds from `clients` clients, each of which waits for an answer before it asks again."""
    return load_of_clients(post, clients, lambda passed: passed >= seconds)


def at_rate(post: Post, per_second: float, seconds: float) -> list[TimedAnswer]:
    """Send `post` so often, whether earlier requests were answered or not; wait for all answers."""

    async def ask() -> list[TimedAnswer]:
        client, began = HttpClient(post), time.perf_counter()

        async def one() -> TimedAnswer:
            asked = time.perf_counter()
            status = (await client.ask()).status
            return TimedAnswer(asked - began, time.perf_counter() - asked, status)

        tasks = []
        for index in range(round(per_second * seconds)):
            wait = began + index / per_second - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one()))
        samples = await asyncio.gather(*tasks)
        client.close()
        return samples

    return asyncio.run(ask())


def summary(samples: Sequence[TimedAnswer]) -> dict[str, Any]:
    """Return the number of requests, that of each status, and percentiles of the latency (milliseconds) of each
    status.
    """
    statuses = Counter(sample.status for sample in samples)
    return {
        "requests": len(samples),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "latency_ms": {str(status): percentiles(samples, status) for status in sorted(statuses)},
    }


def percentiles(samples: Sequence[TimedAnswer], status: int = 200) -> dict[str, float]:
    """Return the percentiles of the latency, in milliseconds, of the requests that were answered with `status`."""
    return benchmark_serve.percentiles([sample.seconds for sample in samples if sample.status == status])
