"""Shares out the memory that requests may hold, so that many at once wait for each other instead of adding up."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rayrec.common.machine import give_back_freed_memory
from serve.requests import RequestError

PATIENCE_SECONDS = 1.0
"""How long a request may keep others waiting for memory while it arrives, however little of it has come."""

_LEAST_RATE = 2**20
"""Bytes a second of a request that may keep others waiting for longer."""

_LARGE = 2**20
"""Bytes of a request that leaves much behind in the allocator."""


class Memory:
    """Shares out `most` bytes among the requests of a replica; belongs to one event loop.

    Of the requests that wait, the one that will hold the least and the one that has waited longest are next in turn, so
    that neither small requests wait for many large ones nor large ones for ever.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        """Bytes held now."""
        self._arriving: set[Share] = set()
        self._waiting: list[_Wait] = []
        """The shares that wait, in the order in which they began to."""
        self._oldest_is_next = True
        self._gives_back = False

    def hold(self) -> "Share":
        """Return a share for a `with` block, which is empty at first and again after it."""
        return Share(self)

    def _fits(self, share: "Share", count: int) -> bool:
        return self.held == share.held or self.held + count <= self.most

    def _next(self) -> "_Wait":
        """Return the one of those who wait that is served next."""
        if self._oldest_is_next:
            return self._waiting[0]
        return min(self._waiting, key=lambda wait: wait.share.held + wait.count)

    def _hand_out(self) -> None:
        """Give those who wait what has become free, in their order."""
        while self._waiting and self._fits((wait := self._next()).share, wait.count):
            if len(self._waiting) > 1:
                self._oldest_is_next = not self._oldest_is_next
            self._waiting.remove(wait)
            self._hold(wait.share, wait.count)
            wait.given.set_result(None)

    def _hold(self, share: "Share", count: int) -> None:
        if not share.held:
            share.began = time.monotonic()
        share.held += count
        self.held += count

    def _give_back_soon(self) -> None:
        """Give to the system what large requests leave behind: in the allocator it would add up in pieces."""
        if self._gives_back:
            return
        loop = asyncio.get_running_loop()

        def give_back() -> None:
            self._gives_back = False
            loop.run_in_executor(None, give_back_freed_memory)

        self._gives_back = True
        # Some of them still hold their bodies while their answers are sent.
        loop.call_later(1.0, give_back)

    def _turn_out_slow(self) -> None:
        """Turn out those of which little comes, or who wait for more, until there is room for the first who waits."""
        first, now = self._next(), time.monotonic()
        waiting = {wait.share for wait in self._waiting}

        def is_slow(share: Share) -> bool:
            seconds = now - share.began
            return seconds > PATIENCE_SECONDS and (share in waiting or share.arrived < seconds * _LEAST_RATE)

        slow = {share for share in self._arriving if share is not first.share and share.held and is_slow(share)}
        while slow and self._waiting and self._next() is first:
            slow.remove(largest := max(slow, key=lambda share: share.held))
            largest.turn_out()


class Share:
    """Share of the memory that one request holds."""

    def __init__(self, memory: Memory) -> None:
        self.held = 0
        """Bytes that the request holds."""
        self.began = 0.0
        """The moment, on the monotonic clock, at which the request began to hold memory."""
        self.arrived = 0
        """Bytes of the request that have come since, as far as that is known."""
        self._memory = memory
        self._task: asyncio.Task[object] | None = None
        self._is_turned_out = False

    def __enter__(self) -> "Share":
        return self

    def __exit__(self, *_: object) -> None:
        self.shrink(0)

    async def grow(self, count: int) -> None:
        """Hold `count` more bytes, as soon as they are free. A share that nobody is beside may exceed the limit."""
        if count == 0:
            return
        memory = self._memory
        if not memory._waiting and memory._fits(self, count):
            memory._hold(self, count)
            return
        wait = _Wait(self, count, asyncio.get_running_loop().create_future())
        memory._waiting.append(wait)
        try:
            memory._hand_out()
            while not wait.given.done():
                if memory._next() is wait:
                    memory._turn_out_slow()
                await asyncio.wait({wait.given}, timeout=PATIENCE_SECONDS)
        finally:
            if not wait.given.done():
                memory._waiting.remove(wait)
                memory._hand_out()

    def shrink(self, held: int) -> None:
        """Hold `held` bytes from now on, which is no more than before."""
        if self.held - held >= _LARGE:
            self._memory._give_back_soon()
        self._memory.held -= self.held - held
        self.held = held
        self._memory._hand_out()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Receive the request within the block.

        Raises RequestError 503 if others wait for memory meanwhile and it comes too slowly: otherwise clients that send
        half of their bodies and no more would keep all others out.
        """
        self._task = asyncio.current_task()
        self._memory._arriving.add(self)
        try:
            yield
        except asyncio.CancelledError:
            if not self._is_turned_out or (self._task is not None and self._task.uncancel() > 0):
                raise
            message = "the request arrives too slowly while others wait for memory; send it faster, or try again"
            raise RequestError(503, message, {"Retry-After": "1"}) from None
        finally:
            self._memory._arriving.discard(self)

    def turn_out(self) -> None:
        """End the receiving of this request and free what it holds."""
        self._is_turned_out = True
        self._memory._arriving.discard(self)
        if self._task is not None:
            self._task.cancel()
        self.shrink(0)


@dataclass(eq=False)
class _Wait:
    """A share that waits for `count` more bytes; `given` is done when it holds them."""

    share: Share
    count: int
    given: asyncio.Future[None]
