"""Requests that wait are scored together; one that fails, or leaves, changes nothing for the others."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from serve.batching import Batcher


class Doubler:
    """Doubles numbers, fails on negative ones, and can be held up; keeps the passes that it was given."""

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.threads: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def __call__(self, numbers: Sequence[int]) -> list[int]:
        self.passes.append(list(numbers))
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(20)
        if any(number < 0 for number in numbers):
            raise ValueError("negative")
        return [2 * number for number in numbers]


def batcher(doubler: Doubler, pool: ThreadPoolExecutor, **limits: float) -> Batcher[int, int]:
    chosen = {"max_requests": 8, "max_size": 1000, "small_size": 0, "wait_seconds": 0.0, **limits}
    return Batcher(doubler, pool, size=abs, **chosen)


def run(doubler: Doubler, first: int, later: list[int], **limits: float) -> list[object]:
    """Ask `first`; ask all of `later` while it is in work."""

    async def ask() -> list[object]:
        with ThreadPoolExecutor(1) as pool:
            score = batcher(doubler, pool, **limits)
            doubler.go.clear()
            asked = [asyncio.ensure_future(score(first))]
            while not doubler.passes:
                await asyncio.sleep(0.001)
            asked += [asyncio.ensure_future(score(number)) for number in later]
            await asyncio.sleep(0.01)
            doubler.go.set()
            return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(ask(), 20))


PASSES = {
    "all that waited": ({}, [2, 3, 4], [[1], [2, 3, 4]]),
    "no more requests than the limit": ({"max_requests": 2}, [2, 3, 4], [[1], [2, 3], [4]]),
    "no more rows than the limit": ({"max_size": 7}, [2, 3, 4, 1], [[1], [2, 3, 1], [4]]),
    "one request may be larger": ({"max_size": 7}, [50, 2], [[1], [50], [2]]),
    "the smallest and the oldest take turns": ({"max_size": 7}, [50, 60, 2, 3, 4], [[1], [50], [2, 3], [60], [4]]),
}


@pytest.mark.parametrize("case", PASSES)
def test_passes(case: str) -> None:
    limits, later, passes = PASSES[case]
    doubler = Doubler()
    assert run(doubler, 1, later, **limits) == [2, *(2 * number for number in later)]
    assert doubler.passes == passes


def test_only_large_passes_are_handed_to_the_pool() -> None:
    doubler = Doubler()

    async def ask() -> None:
        with ThreadPoolExecutor(1, "pool") as pool:
            score = batcher(doubler, pool, small_size=5)
            await asyncio.gather(score(2), score(3))
            await asyncio.gather(score(2), score(4))

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert doubler.passes == [[2, 3], [2, 4]]
    assert doubler.threads == [threading.current_thread().name, "pool_0"]


def test_one_that_fails_fails_alone() -> None:
    doubler = Doubler()
    answers = run(doubler, 1, [2, -3, 4])
    assert [answers[0], answers[1], answers[3]] == [2, 4, 8]
    assert isinstance(answers[2], ValueError)


def test_what_nobody_waits_for_is_not_scored() -> None:
    doubler = Doubler()

    async def ask() -> int:
        with ThreadPoolExecutor(1) as pool:
            score = batcher(doubler, pool)
            doubler.go.clear()
            first = asyncio.ensure_future(score(1))
            while not doubler.passes:
                await asyncio.sleep(0.001)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(score(2), 0.01)
            last = asyncio.ensure_future(score(3))
            await asyncio.sleep(0)
            doubler.go.set()
            await first
            return await last

    assert asyncio.run(asyncio.wait_for(ask(), 20)) == 6
    assert doubler.passes == [[1], [3]]


def test_it_serves_again_after_it_was_idle() -> None:
    doubler = Doubler()

    async def ask() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            score = batcher(doubler, pool, wait_seconds=0.005)
            return [await score(1), await score(2), *await asyncio.gather(score(3), score(4))]

    assert asyncio.run(asyncio.wait_for(ask(), 20)) == [2, 4, 6, 8]
    assert doubler.passes == [[1], [2], [3, 4]]
