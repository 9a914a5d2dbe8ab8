"""Threads that share out the parts of a training step."""

import gc
import threading
import time

import pytest

from rayrec.common.errors import UserError
from rayrec.training.parallel.ranks import WorkerThreads


def test_parts_are_computed_beside_each_other_and_come_in_order() -> None:
    both_run = threading.Barrier(2, timeout=10)

    def meet(part: int) -> int:
        both_run.wait()
        return part * 10

    threads = WorkerThreads(2)
    assert list(threads.map(meet, [1, 2])) == [10, 20]
    assert list(threads.map(lambda part: time.sleep(0.02 if part == 0 else 0) or part, range(20))) == list(range(20))
    assert list(WorkerThreads(1).map(lambda part: part * 10, [1, 2, 3])) == [10, 20, 30]


def test_an_error_of_a_part_is_raised_and_the_threads_go_on() -> None:
    def refuse_odd(part: int) -> int:
        if part % 2:
            raise UserError(f"part {part}")
        return part

    threads = WorkerThreads(2)
    with pytest.raises(UserError, match="part 1"):
        list(threads.map(refuse_odd, range(4)))
    assert list(threads.map(refuse_odd, [0, 2])) == [0, 2]


def test_threads_end_with_their_owner() -> None:
    before = set(threading.enumerate())
    threads = WorkerThreads(3)
    list(threads.map(str, range(5)))
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    del threads
    gc.collect()
    for thread in started:
        thread.join(10)
    assert not any(thread.is_alive() for thread in started)
