"""Ranks hear of a node's end at the same step, soon, and without asking each other at every step."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.training.loop import worker
from rayrec.training.loop.worker import PreemptionWatch

CPU = torch.device("cpu")


class Ranks:
    """Threads that stand for ranks: each has a clock of its own, and an all-reduce waits for all."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._barrier = threading.Barrier(count, timeout=20)
        self._lock, self._given = threading.Lock(), list[torch.Tensor]()
        self._local = threading.local()
        self.asked = 0

    def run(self, steps: list[list[float]], told_at: dict[int, list[int]]) -> list[list[int]]:
        """The steps at which each rank hears news; `steps`: seconds by rank, `told_at`: when its nodes become known."""

        def rank(index: int) -> list[int]:
            self._local.now, step = 0.0, 0
            watch = PreemptionWatch(lambda: sum(step >= told for told in told_at.get(index, [])), CPU)
            heard = []
            for step, seconds in enumerate(steps[index], start=1):
                self._local.now += seconds
                if watch.is_announced():
                    heard.append(step)
            return heard

        with ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(rank, range(self._count)))

    def clock(self) -> float:
        now: float = getattr(self._local, "now", 0.0)
        return now

    def all_reduce(self, values: torch.Tensor, operation: object) -> None:
        assert operation is torch.distributed.ReduceOp.MAX
        with self._lock:
            self._given.append(values.clone())
        if self._barrier.wait() == 0:
            self.asked += 1
        largest = torch.stack(self._given[-self._count :]).amax(0)
        self._barrier.wait()
        values.copy_(largest)


@contextmanager
def ranks(count: int) -> Iterator[Ranks]:
    made = Ranks(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker.time, "perf_counter", made.clock)
        patch.setattr(worker.dist, "all_reduce", made.all_reduce)
        yield made


def test_every_rank_hears_each_node_once() -> None:
    """Rank 1 is told of a node, rank 0 of the same one later, then rank 0 alone of another."""
    steps = [[1.0] * 40, [1.0] * 40]
    with ranks(2) as made:
        first, second = made.run(steps, {0: [12, 25], 1: [10]})
    assert first == second
    assert [10 <= first[0] <= 12, 25 <= first[1] <= 27, len(first)] == [True, True, 2]


def test_fast_steps_ask_every_two_seconds() -> None:
    with ranks(1) as made:
        ((heard,),) = made.run([[0.01] * 10_000], {0: [5_000]})
    assert 5_000 <= heard <= 5_200
    assert 50 <= made.asked <= 60, "100 s, and the first ones closer to each other"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_ranks_with_other_clocks_ask_at_the_same_steps(data: st.DataObject) -> None:
    """Whatever their steps take; if they did not, one of them would wait for ever."""
    count, length = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 200))
    seconds = st.lists(st.floats(1e-4, 5.0), min_size=length, max_size=length)
    steps = [data.draw(seconds) for _ in range(count)]
    told = {data.draw(st.integers(0, count - 1)): [data.draw(st.integers(1, length))]}
    with ranks(count) as made:
        heard = made.run(steps, told)
    assert all(found == heard[0] for found in heard)
    assert len(heard[0]) <= 1 and all(step >= told_at[0] for step in heard[0] for told_at in told.values())
