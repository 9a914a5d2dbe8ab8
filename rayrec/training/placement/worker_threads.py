"""Threads of a training process on a CPU, which compute parts of a batch beside each other.

torch divides an operator among threads that wait for each other at its end, by spinning. A step has dozens of these
waits, and beside another busy process each of them lasts until the thread that was put off has its turn again: training
falls to a hundredth. So every operator here runs on one thread, and threads share out larger parts of the step: whoever
is free takes the next one, and a thread that is put off delays the step by one part at most. How the work is cut into
parts follows from the batch and the model, never from the number of threads, so neither do the results.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class WorkerThreads:
    """`count` threads, which start when they are first needed; with one, work is done by the caller's own."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[T], R], parts: Iterable[T]) -> Iterator[R]:
        """Yield the result of `work` for each part, in their order, as soon as it is there."""
        parts = list(parts)
        if self.count == 1 or len(parts) == 1:
            return map(work, parts)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count, "rayrec-train", initializer=partial(torch.set_num_threads, 1))
        return self._pool.map(work, parts)
