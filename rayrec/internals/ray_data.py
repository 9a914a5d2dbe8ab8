"""Private parts of Ray Data: how an execution forgets the work that has not begun."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from ray.data import DataContext
    from ray.data._internal.execution.execution_callback import ExecutionCallback
    from ray.data._internal.execution.streaming_executor import StreamingExecutor

_abandoned: set[str] = set()
"""Executions of this process whose consumer has left and whose running tasks are waited for."""


@dataclass(frozen=True)
class AbandonableExecution:
    """Stands for one execution, and makes its callback where Ray Data expects a class of callbacks.

    It is pickled with every task, so it knows the execution by a name instead of holding an event.
    """

    name: str

    @classmethod
    def of(cls, context: "DataContext") -> "AbandonableExecution":
        """Make the next execution with `context` abandonable."""
        execution = cls(uuid4().hex)
        context.custom_execution_callback_classes.append(execution)
        return execution

    @contextmanager
    def abandoned(self) -> Iterator[None]:
        """Let the execution begin no work within the block and ends with the tasks that run."""
        _abandoned.add(self.name)
        try:
            yield
        finally:
            _abandoned.remove(self.name)

    def __call__(self) -> "ExecutionCallback":
        from ray.data._internal.execution.execution_callback import ExecutionCallback

        name = self.name

        class ForgettingCallback(ExecutionCallback):
            def on_execution_step(self, executor: "StreamingExecutor") -> None:
                if name in _abandoned:
                    for state in executor._topology.values():
                        for queue in state.input_queues:
                            queue.clear()

        return ForgettingCallback()
