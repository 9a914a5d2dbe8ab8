"""The Ray session that a command works in: how large it is, what it has no room for, and blocks from Ray Data.

Ray itself is imported inside functions: whether there is a session is asked by commands that need none.
"""

import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rayrec.common import errors
from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus
from rayrec.common.process import in_background
from rayrec.common.progress import Progress
from rayrec.common.text import format_bytes
from rayrec.internals.ray_core import Resources, Room, look_for_room

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset

_BLOCKS_AHEAD = 4
"""Blocks that wait for the consumer."""
_ERROR = "rayrec_user_error"
"""The column of a block that reports a UserError instead of rows."""
_LOOK_SECONDS = 2.0
"""Pause between two looks at what waits for resources."""
_PATIENCE_SECONDS, _REPEAT_SECONDS = 5.0, 30.0
"""How long something waits before it is said, since resources that are given back come at once; and said again."""
_ANSWER_SECONDS = 5.0
"""How long the cluster's head may take to say it."""


def session_size() -> tuple[int, int]:
    """Count the nodes with CPUs of the Ray session that this process has, and these CPUs; none without a session.

    A session on one machine may declare more CPUs than it may use; those that it may use count.
    """
    ray = sys.modules.get("ray")  # no session without it, and it takes half a second to import
    if ray is None or not ray.is_initialized():
        return 0, 0
    found = (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    cpus = [count for count in found if count]
    return len(cpus), available_cpus() if len(cpus) == 1 else sum(cpus)


@contextmanager
def waits_shown(progress: Progress, look: Callable[[float], Room] = look_for_room) -> Iterator[None]:
    """Show during the block, which has a Ray session, what its job waits for: workers of Ray Train, executors of Spark,
    actors of Ray Data, trials, replicas; and which nodes were lost.
    """
    watch = _Watch(progress)

    def run(ended: threading.Event) -> None:
        while not ended.wait(_LOOK_SECONDS):
            with suppress(Exception):  # the head does not answer for a while, which is for others to say
                watch.take(look(_ANSWER_SECONDS), time.monotonic())

    with in_background(run, "rayrec-waits"):
        yield


class _Watch:
    """Passes on what changes between two looks."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._nodes: dict[str, str] = {}
        self._since: float | None = None
        self._say_at = 0.0
        self._has_said = False

    def take(self, room: Room, now: float) -> None:
        """Take in the state of the cluster at a time, in seconds."""
        lost = [address for node, address in self._nodes.items() if node not in room.nodes]
        self._nodes = dict(room.nodes)
        if lost:
            what = "a node was" if len(lost) == 1 else f"{len(lost)} nodes were"
            self._progress.message(f"{what} lost ({', '.join(sorted(lost))}); {_free(room, ['CPU'])}")
        if not room.waiting:
            if self._has_said and self._since is not None:
                self._progress.message(f"resources are free again after {now - self._since:.0f} s")
            self._since, self._has_said = None, False
            return
        if self._since is None:
            self._since, self._say_at = now, now + _PATIENCE_SECONDS
        if now >= self._say_at:
            wanted = sorted({name for _, resources in room.waiting for name, _ in resources})
            workers = ", ".join(_workers(count, resources) for count, resources in room.waiting)
            self._progress.message(f"waiting for resources for {workers}; {_free(room, wanted)}")
            self._say_at, self._has_said = now + _REPEAT_SECONDS, True


def _workers(count: int, resources: Resources) -> str:
    of_each = " and ".join(_amount(name, amount) for name, amount in resources)
    return f"{count} worker{'' if count == 1 else 's'} of {of_each or 'no resources'}"


def _free(room: Room, names: list[str]) -> str:
    """Say what is free of the named resources, over all nodes."""
    free = ", ".join(f"{_amount(name, room.free.get(name, 0))}" for name in names)
    return f"free: {free} on {len(room.nodes)} node{'' if len(room.nodes) == 1 else 's'}"


def _amount(name: str, amount: float) -> str:
    if name == "memory":
        return f"{format_bytes(amount)} of memory"
    return f"{amount:g} {name}{'s' if name in {'CPU', 'GPU'} and amount != 1 else ''}"


def stream_blocks(data: "RayDataset") -> "Generator[pa.Table]":
    """Yield the blocks, in the order of the execution. Closing the iterator ends the execution.

    Work that has not begun is then forgotten, and running tasks are waited for. Ray Data would cancel them, and a task
    that ends at the moment in which it is cancelled makes Ray abort the process that cancels: "Check failed: it !=
    submissible_tasks_.end()" in Ray's task_manager.cc, once in some hundred executions that were left early.

    Raises the UserError that a `ReportingTask` or `ReportingWorker` met.
    """
    from rayrec.internals.ray_data import AbandonableExecution

    execution = AbandonableExecution.of(data.context)
    blocks = iter(data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=_BLOCKS_AHEAD))
    try:
        for block in blocks:
            if _ERROR in block.column_names:
                kind, text = block[_ERROR].drop_null()[0].as_py()
                raise getattr(errors, kind)(text)
            yield block
    finally:
        with execution.abandoned():
            # The consumer has left, so nobody needs to know how the last tasks end.
            with suppress(Exception):
                for _ in blocks:
                    pass
            blocks.close()


@dataclass(frozen=True)
class ReportingTask:
    """A function for tasks that reports its UserError as its last block: an error that leaves a task cancels others."""

    function: Callable[[pa.Table], Iterator[pa.Table]]

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        try:
            yield from self.function(table)
        except UserError as error:
            yield _error_block(error)


class ReportingWorker:
    """A worker of actors, `worker(**arguments)`, that reports its UserErrors as blocks."""

    def __init__(self, worker: Callable[..., Callable[[pa.Table], pa.Table]], arguments: dict[str, Any]) -> None:
        self._error: pa.Table | None = None
        try:
            self._worker = worker(**arguments)
        except UserError as error:
            self._error = _error_block(error)

    def __call__(self, table: pa.Table) -> pa.Table:
        if self._error is not None:
            return self._error
        try:
            return self._worker(table)
        except UserError as error:
            return _error_block(error)


def _error_block(error: UserError) -> pa.Table:
    return pa.table({_ERROR: [[type(error).__name__, str(error)]]})
