"""The private parts of Ray Data that rayrec uses are still what it takes them for."""

import inspect

from rayrec.internals.ray_data import AbandonableExecution

GONE = "an upgrade has changed a private part of Ray Data: adapt rayrec/internals/ray_data.py"


def test_a_callback_can_forget_the_work_that_has_not_begun() -> None:
    from ray.data import DataContext
    from ray.data._internal.execution.execution_callback import ExecutionCallback
    from ray.data._internal.execution.streaming_executor import StreamingExecutor
    from ray.data._internal.execution.streaming_executor_state import OpBufferQueue, OpState

    context = DataContext.get_current().copy()
    execution = AbandonableExecution.of(context)
    assert context.custom_execution_callback_classes[-1] is execution, GONE
    callback = execution()
    assert isinstance(callback, ExecutionCallback) and hasattr(ExecutionCallback, "on_execution_step"), GONE
    executor = inspect.getsource(StreamingExecutor)
    assert "self._topology[" in executor and "callback.on_execution_step(self)" in executor, GONE
    assert "self.input_queues" in inspect.getsource(OpState) and hasattr(OpBufferQueue, "clear"), GONE

    class State:
        input_queues = [[1, 2], [3]]

    class Executor:
        _topology = {"map": State()}

    callback.on_execution_step(Executor())
    assert State.input_queues == [[1, 2], [3]]
    with execution.abandoned():
        callback.on_execution_step(Executor())
    assert State.input_queues == [[], []]
