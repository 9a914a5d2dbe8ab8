"""Shares out the memory that requests may hold, so that many at once wait for each other instead of adding up."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from serve.errors import RequestError

PATIENCE_SECONDS = 1.0
"""How long a request may keep others waiting for memory while it arrives."""


class Memory:
    """The bytes that the requests of a replica may hold together; belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        """Bytes held now."""
        self._arriving: set[Share] = set()
        self._waiting: deque[tuple[Share, int, asyncio.Future[None]]] = deque()
        """The shares that wait, and for how many bytes, in the order in which they began to wait."""

    @contextmanager
    def hold(self) -> Iterator["Share"]:
        """A share for the block, which is empty at first."""
        share = Share(self)
        try:
            yield share
        finally:
            share.shrink(0)

    def _fits(self, share: "Share", count: int) -> bool:
        return self.held == share.held or self.held + count <= self.most

    def _hand_out(self) -> None:
        """Give those who wait what has become free, in their order."""
        while self._waiting and self._fits(*self._waiting[0][:2]):
            share, count, given = self._waiting.popleft()
            share.held += count
            self.held += count
            given.set_result(None)

    def _turn_out_slow(self) -> None:
        """Make room for the first of those who wait."""
        latest = time.monotonic() - PATIENCE_SECONDS
        first = self._waiting[0][0]
        slow = {share for share in self._arriving if share is not first and share.held and share.began < latest}
        while slow and self._waiting and self._waiting[0][0] is first:
            slow.remove(largest := max(slow, key=lambda share: share.held))
            largest.turn_out()


class Share:
    """What one request holds of the memory."""

    def __init__(self, memory: Memory) -> None:
        self.held = 0
        """Bytes that the request holds."""
        self.began = 0.0
        self._memory = memory
        self._task: asyncio.Task[object] | None = None
        self._is_turned_out = False

    async def grow(self, count: int) -> None:
        """Hold `count` more bytes, as soon as they are free. A share that nobody is beside may exceed the limit."""
        memory = self._memory
        entry = self, count, asyncio.get_running_loop().create_future()
        memory._waiting.append(entry)
        try:
            memory._hand_out()
            while not entry[2].done():
                if memory._waiting[0] is entry:
                    memory._turn_out_slow()
                await asyncio.wait({entry[2]}, timeout=PATIENCE_SECONDS)
        finally:
            if not entry[2].done():
                memory._waiting.remove(entry)
                memory._hand_out()

    def shrink(self, held: int) -> None:
        """Hold `held` bytes from now on, which is no more than before."""
        self._memory.held -= self.held - held
        self.held = held
        self._memory._hand_out()

    @asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Receive the request within the block.

        Raises RequestError 503 if others wait for memory meanwhile and it comes too slowly: otherwise clients that send
        half of their bodies and no more would keep all others out.
        """
        self._task, self.began = asyncio.current_task(), time.monotonic()
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
