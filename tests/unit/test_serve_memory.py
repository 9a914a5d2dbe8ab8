"""Requests wait for memory instead of adding up, and who sends too slowly is turned out for those who wait."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve import memory as memory_module
from serve.memory import Memory
from serve.requests import RequestError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "PATIENCE_SECONDS", 0.02)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))


async def _arrive(memory: Memory, size: int, then: Awaitable[object]) -> None:
    """Receive a body of `size` bytes, the last of which comes `then`."""
    with memory.hold() as share, share.arriving():
        await share.grow(size)
        await then


def test_the_next_one_waits_until_there_is_room() -> None:
    async def test() -> None:
        memory, order = Memory(10), []

        async def work(name: str, size: int) -> None:
            with memory.hold() as share:
                await share.grow(size)
                order.append(name)
                await asyncio.sleep(0.1)
                order.append(f"{name} ends")

        await asyncio.gather(work("a", 6), work("b", 6), work("c", 4))
        assert order[:2] == ["a", "a ends"]
        assert order[2:4] == ["b", "c"]  # in the order in which they asked
        assert memory.held == 0

    run(test)


def test_the_oldest_and_the_smallest_take_turns() -> None:
    async def test() -> None:
        memory, order = Memory(10), []

        async def work(size: int) -> None:
            with memory.hold() as share:
                await share.grow(size)
                order.append(size)
                await asyncio.sleep(0)

        with memory.hold() as share:
            await share.grow(10)
            works = [asyncio.create_task(work(size)) for size in (9, 8, 7, 1, 6, 2)]
            await asyncio.sleep(0.01)
        await asyncio.gather(*works)
        assert order == [9, 1, 8, 2, 7, 6]

    run(test)


def test_one_that_gave_up_keeps_nobody_waiting() -> None:
    async def test() -> None:
        memory = Memory(10)
        with memory.hold() as share:
            await share.grow(6)
            with memory.hold() as large:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(large.grow(9), 0.05)
                with memory.hold() as small:
                    await asyncio.wait_for(small.grow(4), 0.05)
                    assert memory.held == 10

    run(test)


def test_a_share_alone_may_exceed_the_limit() -> None:
    """Otherwise a body of the largest size that is allowed could wait for ever."""

    async def test() -> None:
        memory = Memory(10)
        with memory.hold() as share:
            await share.grow(6)
            await share.grow(6)
            assert memory.held == 12
            share.shrink(3)
            assert memory.held == 3
        assert memory.held == 0

    run(test)


def test_slow_ones_are_turned_out_for_those_who_wait_the_largest_first() -> None:
    async def test() -> None:
        memory, never = Memory(10), asyncio.Event()
        small, large = (asyncio.create_task(_arrive(memory, size, never.wait())) for size in (3, 7))
        await asyncio.sleep(0.1)
        assert memory.held == 10  # nobody waits: both may take their time
        await _arrive(memory, 2, asyncio.sleep(0))
        with pytest.raises(RequestError) as refused:
            await large
        assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
        assert not small.done() and memory.held == 3
        small.cancel()
        with pytest.raises(asyncio.CancelledError):
            await small
        assert memory.held == 0 and not memory._arriving

    run(test)


def test_who_waited_for_memory_has_all_the_time_to_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        memory, sent = Memory(10), asyncio.Event()
        with memory.hold() as share:
            await share.grow(10)
            arriving = [asyncio.create_task(_arrive(memory, 6, sent.wait())) for _ in range(2)]
            await asyncio.sleep(0.3)
        monkeypatch.setattr(memory_module, "PATIENCE_SECONDS", 0.25)
        await asyncio.sleep(0)
        assert memory.held == 6
        memory._turn_out_slow()
        assert memory.held == 6
        sent.set()
        await asyncio.gather(*arriving)

    run(test)


def test_who_sends_fast_may_take_long() -> None:
    async def test() -> None:
        memory, sent = Memory(10), asyncio.Event()

        async def large() -> None:
            with memory.hold() as share, share.arriving():
                await share.grow(9)
                share.arrived = 2**30
                await sent.wait()

        works = [asyncio.create_task(large()), asyncio.create_task(_arrive(memory, 5, asyncio.sleep(0)))]
        await asyncio.sleep(0.15)
        assert not any(work.done() for work in works)
        sent.set()
        await asyncio.gather(*works)

    run(test)


def test_who_needs_no_more_does_not_wait_behind_others() -> None:
    async def test() -> None:
        memory = Memory(10)
        with memory.hold() as share:
            await share.grow(6)
            waiting = asyncio.create_task(_arrive(memory, 5, asyncio.sleep(0)))
            await asyncio.sleep(0)
            await asyncio.wait_for(share.grow(0), 0.01)
            assert not waiting.done()
        await waiting

    run(test)


def test_what_has_arrived_is_never_turned_out() -> None:
    async def test() -> None:
        memory, done = Memory(10), asyncio.Event()

        async def slow_answer() -> None:
            with memory.hold() as share:
                with share.arriving():
                    await share.grow(9)
                await done.wait()

        answer = asyncio.create_task(slow_answer())
        waiting = asyncio.create_task(_arrive(memory, 5, asyncio.sleep(0)))
        await asyncio.sleep(0.15)
        assert not answer.done() and not waiting.done()
        done.set()
        await asyncio.gather(answer, waiting)

    run(test)


def test_a_time_limit_stays_one() -> None:
    """Also of a request that is turned out at the same moment."""

    async def test() -> None:
        memory, never = Memory(10), asyncio.Event()

        async def limited() -> None:
            async with asyncio.timeout(0.1):
                await _arrive(memory, 9, never.wait())

        with pytest.raises(TimeoutError):
            await limited()
        assert memory.held == 0

    run(test)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=20))
def test_the_limit_holds_and_all_are_answered(sizes: list[tuple[int, int]]) -> None:
    async def test() -> None:
        memory, most = Memory(10), []

        async def work(size: int, pause: int) -> None:
            with memory.hold() as share:
                with share.arriving():
                    for _ in range(size):
                        await share.grow(1)
                        most.append((memory.held, share.held))
                        await asyncio.sleep(0)
                await asyncio.sleep(pause / 1000)

        done = await asyncio.gather(*(work(*size) for size in sizes), return_exceptions=True)
        assert all(result is None or isinstance(result, RequestError) for result in done)
        assert all(held <= max(10, own) for held, own in most)
        assert memory.held == 0

    run(test)
