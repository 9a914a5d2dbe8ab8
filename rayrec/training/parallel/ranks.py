"""One process of a training: its place among the ranks, what it may use, and its threads.

On a CPU, torch divides an operator among threads that wait for each other at its end, by spinning. A step has dozens of
these waits, and beside another busy process each of them lasts until the thread that was put off has its turn again:
training falls to a hundredth. So every operator here runs on one thread, and threads share out micro-batches: a free
thread takes the next one, and a thread that is put off delays the step by one of them at most. How a batch is cut
follows from the batch and the model, never from the number of threads, so neither do the results.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from rayrec.common.machine import available_cpus, available_memory, keep_freed_memory
from rayrec.common.text import parse_bytes
from rayrec.config.train import ShardingConfig

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RankContext:
    """One process among `world_size`, of which `local_world_size` run on its machine."""

    rank: int
    world_size: int
    local_world_size: int
    device: torch.device
    reads_by_ray_data: bool = False
    """Tell that tasks of Ray Data read the rows of datasets, instead of threads of this process."""

    def prepare_process(self) -> None:
        """Let operators run on one thread, on a CPU (see `WorkerThreads`), and the process keep the memory it frees."""
        if self.device.type == "cpu":
            torch.set_num_threads(1)
            keep_freed_memory()

    def threads(self, wanted: int | None) -> int:
        """Return the threads of this process: `wanted` (`train.threads`), or its share of the machine's."""
        if self.device.type != "cpu":
            return 1
        return wanted or max(1, available_cpus() // self.local_world_size)

    def memory_per_worker(self, config: ShardingConfig) -> int:
        """Return the bytes that every worker may use: what the recipe says, or what the smallest worker has. A
        collective.
        """
        if config.memory_per_worker is not None:
            return parse_bytes(config.memory_per_worker)
        if self.device.type == "cuda":
            own = torch.cuda.get_device_properties(self.device).total_memory
        else:
            own = available_memory() // self.local_world_size
        return min(_of_all_ranks(own))

    def host_memory_per_worker(self) -> int:
        """Return the bytes of its machine that every worker may use for tables beside its GPU's; 0 on CPUs. A
        collective.

        Half of what is free: rows that are read need memory, too.
        """
        if self.device.type != "cuda":
            return 0
        return min(_of_all_ranks(available_memory() // (2 * self.local_world_size)))

    def workers_per_node(self) -> int:
        """Return the number of workers on a node, the same on every rank, as TorchRec needs it: 1 where
        machines have different numbers. A collective.
        """
        sizes = set(_of_all_ranks(self.local_world_size))
        return sizes.pop() if len(sizes) == 1 else 1


class WorkerThreads:
    """`count` threads, which start when they are first needed; with one, work is done by the caller's own."""

    def __init__(self, count: int) -> None:
        self.count = count
        # Simple queues, as a signal's exception can leave the lock of a `Queue` or a `Future` taken for ever.
        self._tasks: SimpleQueue[Any] | None = None

    def map(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Yield the result of `work` for each item, in their order, as soon as it is there; raise what it raised."""
        items = list(items)
        if self.count == 1 or len(items) == 1:
            yield from map(work, items)
            return
        if self._tasks is None:
            self._tasks = SimpleQueue()
            weakref.finalize(self, _end, self._tasks, self.count)
            for number in range(self.count):
                name = f"rayrec-train-{number}"
                threading.Thread(target=_compute, args=(self._tasks,), name=name, daemon=True).start()
        done: SimpleQueue[tuple[int, R | None, BaseException | None]] = SimpleQueue()
        for number, item in enumerate(items):
            self._tasks.put((work, number, item, done))
        results: dict[int, tuple[Any, BaseException | None]] = {}
        for number in range(len(items)):
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
        work, number, item, done = task
        try:
            done.put((number, work(item), None))
        except BaseException as error:  # raised again by the caller's thread
            done.put((number, None, error))
        del work, item, task  # and with them a batch, until the next one comes


def _end(tasks: "SimpleQueue[Any]", count: int) -> None:
    for _ in range(count):
        tasks.put(None)


def _of_all_ranks(value: int) -> list[int]:
    values = [0] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
