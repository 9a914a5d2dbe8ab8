"""Threads that share out the parts of a training step."""

import threading

from rayrec.training.placement.worker_threads import WorkerThreads


def test_parts_are_computed_beside_each_other_and_come_in_order() -> None:
    both_run = threading.Barrier(2, timeout=10)

    def meet(part: int) -> int:
        both_run.wait()
        return part * 10

    assert list(WorkerThreads(2).map(meet, [1, 2])) == [10, 20]
    assert list(WorkerThreads(1).map(lambda part: part * 10, [1, 2, 3])) == [10, 20, 30]
