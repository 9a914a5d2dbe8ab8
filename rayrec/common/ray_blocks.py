"""Blocks of a Ray Data execution, which the consumer may leave at any block and which carry errors of users."""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rayrec.common import errors
from rayrec.common.errors import UserError
from rayrec.common.machine import available_cpus

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset

_BLOCKS_AHEAD = 4
_ERROR = "rayrec_user_error"
"""The column of a block that reports a UserError instead of rows."""


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


def stream_blocks(data: "RayDataset") -> Generator[pa.Table]:
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
            if _reports_error(block):
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


def _reports_error(block: pa.Table) -> bool:
    return _ERROR in block.column_names
