"""Threads of a training process on a CPU, which compute parts of a batch beside each other.

torch divides an operator among threads that wait for each other at its end, by spinning. A step has dozens of these
waits, and beside another busy process each of them lasts until the thread that was put off has its turn again: training
falls to a hundredth. So every operator here runs on one thread, and threads share out larger parts of the step: whoever
is free takes the next one, and a thread that is put off delays the step by one part at most. How the work is cut into
parts follows from the batch and the model, never from the number of threads, so neither do the results.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


class WorkerThreads:
    """`count` threads, which start when they are first needed; with one, work is done by the caller's own."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Simple queues, as a signal's exception can leave the lock of a `Queue` or a `Future` taken for ever.
        self._tasks: SimpleQueue[Any] | None = None

    def map(self, work: Callable[[T], R], parts: Iterable[T]) -> Iterator[R]:
        """Yield the result of `work` for each part, in their order, as soon as it is there; raise what it raised."""
        parts = list(parts)
        if self.count == 1 or len(parts) == 1:
            yield from map(work, parts)
            return
        if self._tasks is None:
            self._tasks = SimpleQueue()
            weakref.finalize(self, _end, self._tasks, self.count)
            for number in range(self.count):
                name = f"rayrec-train-{number}"
                threading.Thread(target=_compute, args=(self._tasks,), name=name, daemon=True).start()
        done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
        for number, part in enumerate(parts):
            self._tasks.put((work, number, part, done))
        results: dict[int, tuple[Any, BaseException | None]] = {}
        for number in range(len(parts)):
            while number not in results:
                finished, result, error = done.get()
                results[finished] = result, error
            result, error = results.pop(number)
            if error is not None:
                raise error
            yield result


def _compute(tasks: "SimpleQueue[Any]") -> None:
    torch.set_num_threads(1)
    while (task := tasks.get()) is not None:
        work, number, part, done = task
        try:
            done.put((number, work(part), None))
        except BaseException as error:  # raised again by the caller's thread
            done.put((number, None, error))
        del work, part, task  # and with them a batch, until the next one comes


def _end(tasks: "SimpleQueue[Any]", count: int) -> None:
    for _ in range(count):
        tasks.put(None)
