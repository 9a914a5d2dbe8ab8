"""Blocks of a Ray Data execution that its consumer may leave at any block."""

import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from rayrec.common.errors import UserError

if TYPE_CHECKING:
    from ray.data import Dataset as RayDataset
    from ray.data._internal.execution.execution_callback import ExecutionCallback
    from ray.data._internal.execution.streaming_executor import StreamingExecutor

_BLOCKS_AHEAD = 4
_ERROR = "rayrec_user_error"


def stream_blocks(data: "RayDataset") -> Generator[pa.Table]:
    """The blocks, in the order of the execution. Closing the iterator ends the execution.

    What has not begun is then forgotten and what runs is waited for. Ray Data would cancel it, and a task that ends in
    the moment in which it is cancelled makes Ray abort the process that cancels: "Check failed: it !=
    submissible_tasks_.end()" in Ray's task_manager.cc, once in some hundred executions that were left early.

    Raises UserError as a task does that is wrapped in `reports_user_errors`.
    """
    leaving = _Leaving(uuid.uuid4().hex)
    data.context.custom_execution_callback_classes.append(leaving)
    blocks = iter(data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=_BLOCKS_AHEAD))
    try:
        for block in blocks:
            if _ERROR in block.column_names:
                raise UserError(block[_ERROR].drop_null()[0].as_py())
            yield block
    finally:
        _left.add(leaving.execution)
        # Nobody is there any more who would want to know how these tasks end.
        with suppress(Exception):
            for _ in blocks:
                pass
        blocks.close()
        _left.remove(leaving.execution)


_left: set[str] = set()
"""Executions of this process whose consumer has left and whose last tasks are waited for."""


@dataclass(frozen=True)
class _Leaving:
    """Makes the callback of one execution, as the classes do that Ray Data expects in its place.

    It travels in the context of every task, and so knows the execution by a name instead of holding an event.
    """

    execution: str

    def __call__(self) -> "ExecutionCallback":
        from ray.data._internal.execution.execution_callback import ExecutionCallback

        execution = self.execution

        class Forgetting(ExecutionCallback):
            def on_execution_step(self, executor: "StreamingExecutor") -> None:
                if execution in _left:
                    for state in executor._topology.values():
                        for queue in state.input_queues:
                            queue.clear()

        return Forgetting()


@dataclass(frozen=True)
class reports_user_errors:  # noqa: N801 - used as a function, a class for pickle
    """What a task does, with a UserError of it as its last block: an error that leaves a task cancels the others."""

    function: Callable[[pa.Table], Iterator[pa.Table]]

    def __call__(self, table: pa.Table) -> Iterator[pa.Table]:
        try:
            yield from self.function(table)
        except UserError as error:
            yield pa.table({_ERROR: [str(error)]})
