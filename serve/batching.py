"""Joins the requests that wait for the same model into one pass.

Requests that arrive during a pass gather, and the next pass takes them all: an idle server scores a request at once, a
busy one in batches as large as the load makes them. A small pass is run in the event loop: to hand it to a thread, and
to share Python's lock with it, takes as long as the pass, and requests that arrive meanwhile gather all the same.
`wait_seconds` makes an idle server wait for more requests. Where not all fit into a pass, the smallest go first, and
every other pass begins with the oldest: a client that sends many large requests at once delays those who ask for a few
rows by two passes, and still gets half of them.

Why not `@serve.batch` of Ray Serve: it rejects a single request larger than a batch, sends a request that no longer
fits into one back to the end of the queue, and fails every request of a batch together with a bad one.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
AnswerT = TypeVar("AnswerT")

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Batcher(Generic[RequestT, AnswerT]):
    """Calls `answer` with the waiting requests, one pass after the other; belongs to one event loop."""

    answer: Callable[[Sequence[RequestT]], Sequence[AnswerT]]
    executor: Executor
    _: KW_ONLY
    size: Callable[[RequestT], int]
    max_requests: int
    max_size: int
    """The largest sum of the `size` of a pass's requests; one request alone may be larger."""
    small_size: int
    """A pass whose requests have no larger sum of `size` is run in the event loop, not in `executor`."""
    wait_seconds: float
    _waiting: list[tuple[RequestT, asyncio.Future[AnswerT]]] = field(init=False, default_factory=list)
    """Requests in their order of arrival."""
    _oldest_is_next: bool = field(init=False, default=True)
    _passes: asyncio.Task[None] | None = field(init=False, default=None)

    async def __call__(self, request: RequestT) -> AnswerT:
        """Return the answer to one request. Raises what `answer` raises for this request alone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AnswerT] = loop.create_future()
        self._waiting.append((request, future))
        if self._passes is None:
            self._passes = loop.create_task(self._run_passes())
        return await future

    async def _run_passes(self) -> None:
        try:
            if self.wait_seconds:
                await asyncio.sleep(self.wait_seconds)
            while taken := self._take():
                await self._answer_together(taken)
        finally:
            # Nothing awaits between the empty queue and this, so no request can slip in unseen.
            self._passes = None

    def _take(self) -> list[tuple[RequestT, asyncio.Future[AnswerT]]]:
        # The others' clients went away, or their time is up.
        waiting = [(request, future) for request, future in self._waiting if not future.done()]
        if len(waiting) == 1:
            self._waiting = []
            return waiting
        # The smallest first; every other time behind the oldest, whatever its size.
        order = sorted(range(len(waiting)), key=lambda index: self.size(waiting[index][0]))
        if self._oldest_is_next and waiting:
            order.remove(0)
            order.insert(0, 0)
        taken, size = set[int](), 0
        for index in order[: self.max_requests]:
            size += self.size(waiting[index][0])
            if taken and size > self.max_size:
                break
            taken.add(index)
        if len(taken) < len(waiting):
            self._oldest_is_next = not self._oldest_is_next
        self._waiting = [one for index, one in enumerate(waiting) if index not in taken]
        return [waiting[index] for index in sorted(taken)]

    async def _answer_together(self, taken: list[tuple[RequestT, asyncio.Future[AnswerT]]]) -> None:
        requests = [request for request, _ in taken]
        try:
            if sum(map(self.size, requests)) <= self.small_size:
                answers = self.answer(requests)
            else:
                answers = await asyncio.get_running_loop().run_in_executor(self.executor, self.answer, requests)
        except Exception as error:
            # Of several, each is tried alone, so that only the bad one fails.
            if len(taken) == 1:
                _, future = taken[0]
                if not future.done():
                    future.set_exception(error)
                return
            logger.warning("a batch of %d requests failed (%s); trying each request alone", len(taken), error)
            for one in taken:
                await self._answer_together([one])
            return
        for (_, future), answer in zip(taken, answers, strict=True):
            if not future.done():
                future.set_result(answer)
