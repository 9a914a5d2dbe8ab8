"""Executions of Ray Data that are left before their end."""

import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.common.ray import ReportingTask, stream_blocks
from rayrec.inference.batch.pool import ScoringPool

pytestmark = pytest.mark.usefixtures("ray_cluster")

TASKS = 200
RUNNING = 2


@contextmanager
def blocks_of(folder: Path, bad: int | None = None, slow_from: int = TASKS):
    """An execution of many tasks, each of which leaves a file and gives two blocks.

    Tasks from `slow_from` on are slow until the consumer leaves, so that not all have begun by then.
    """
    left = folder.with_name("left")
    left = folder.with_name("left")
    import ray
    from ray.data import TaskPoolStrategy

    def work(task: pa.Table):
        (number,) = task["number"].to_pylist()
        (folder / str(number)).touch()
        for _ in range(20):
            if number >= slow_from and not left.exists():
                time.sleep(0.01)
        if number == bad:
            raise UserError(f"task {number}; do better")
        yield from [task] * 2

    data = ray.data.from_blocks([pa.table({"number": [number]}) for number in range(TASKS)])
    data.context.execution_options.preserve_order = True
    data.context.target_max_block_size = 1
    data = data.map_batches(
        ReportingTask(work), batch_size=None, batch_format="pyarrow", compute=TaskPoolStrategy(size=RUNNING)
    )
    with closing(stream_blocks(data)) as blocks:
        try:
            yield blocks
        finally:
            left.touch()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where tasks leave their files."""
    made = tmp_path / "begun"
    made.mkdir()
    return made


def executors() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("StreamingExecutor")]


def test_all_blocks_come_in_order(folder):
    with blocks_of(folder) as blocks:
        numbers = [number for block in blocks for number in block["number"].to_pylist()]
    assert numbers == [number for number in range(TASKS) for _ in range(2)]
    assert not executors()


def test_what_has_not_begun_is_forgotten_when_the_consumer_leaves(folder):
    with blocks_of(folder, slow_from=TASKS // 4) as blocks:
        next(blocks)
    assert not executors()
    begun = {int(file.name) for file in folder.iterdir()}
    assert 0 in begun and len(begun) < TASKS / 2


def test_a_user_error_of_a_task_is_raised_in_its_place_and_ends_the_execution(folder):
    numbers = []
    with blocks_of(folder, bad=3, slow_from=TASKS // 4) as blocks, pytest.raises(UserError) as caught:
        for block in blocks:
            numbers += block["number"].to_pylist()
    assert str(caught.value) == "task 3; do better"
    assert numbers == [0, 0, 1, 1, 2, 2]
    assert not executors()
    assert len(list(folder.iterdir())) < TASKS / 2


class Worker:
    def __init__(self, fails: str) -> None:
        self.fails = fails
        if fails == "start":
            raise UserError("worker at its start; do better")

    def __call__(self, number: int) -> int:
        if self.fails == "work" and number == 3:
            raise UserError("worker at task 3; do better")
        return number


@pytest.mark.parametrize("place", ["ray", "process"])
@pytest.mark.parametrize(("fails", "message"), [("start", "worker at its start"), ("work", "worker at task 3")])
def test_a_user_error_of_a_pool_is_raised_in_its_place(fails, message, place):
    numbers = []
    with pytest.raises(UserError) as caught:
        numbers.extend(ScoringPool(place).run(range(5), Worker, {"fails": fails}))
    assert str(caught.value) == f"{message}; do better"
    assert numbers == ([] if fails == "start" else [0, 1, 2])
