"""Threads that run tasks, and rows that are shuffled and sorted in memory."""

import threading
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from rayrec.common.errors import UserError
from rayrec.preprocessing.runners.thread_runner import ROWS_PER_BATCH, RowsInMemory, ThreadRunner
from rayrec.preprocessing.tasks import run_brief_tasks

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), ("count", pa.int64())])
COLUMNS = "key long, text string, count long"


def held(*rows: tuple[int | None, str | None, int]) -> RowsInMemory:
    """Return each row as the batch of a task of its own."""

    def read(row: tuple[int | None, str | None, int]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([value]) for value in row], schema=SCHEMA)

    return ThreadRunner(2).rows(rows, read, SCHEMA)


def as_they_are(_: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def test_results_are_in_the_order_of_the_items() -> None:
    release = threading.Event()

    def wait_or_release(item: int) -> int:
        assert release.wait(10) if item == 0 else release.set() is None
        return item * 10

    assert ThreadRunner(2).run([0, 1], wait_or_release) == [0, 10]
    assert run_brief_tasks(ThreadRunner(2), list(range(21)), str) == list(map(str, range(21)))
    assert run_brief_tasks(ThreadRunner(2), [], str) == []


def test_an_error_waits_for_those_that_run_and_leaves_out_the_rest() -> None:
    has_failed, ended = threading.Event(), []

    def fail_or_wait(item: int) -> None:
        if item == 0:
            has_failed.set()
            raise UserError("no")
        if item == 1:
            has_failed.wait(10)
        ended.append(item)

    with pytest.raises(UserError, match="no"):
        ThreadRunner(2).run(range(1_000), fail_or_wait)
    assert 1 in ended
    assert len(ended) < 999


def test_rows_are_sorted_as_spark_sorts_them() -> None:
    """Null first, texts by their bytes, not by their characters' UTF-16 codes."""
    rows = held((2, "\U0001f600", 1), (2, "\ufb01", 1), (None, "b", 1), (2, None, 1), (1, "a", 1), (1, "a", 2))
    found = rows.sort("key", "text", "count", descending=("count",)).results(as_they_are, COLUMNS)
    assert found == [(None, "b", 1), (1, "a", 2), (1, "a", 1), (2, None, 1), (2, "\ufb01", 1), (2, "\U0001f600", 1)]


def test_work_is_given_batches_of_one_size() -> None:
    rows = 2 * ROWS_PER_BATCH + 5
    schema = pa.schema([("n", pa.int64())])

    def read(start: int) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(np.arange(start, rows, 3))], schema=schema)

    def sizes(_: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"sizes": [[batch.num_rows for batch in batches]]})

    found = ThreadRunner(2).rows([0, 1, 2], read, schema).sort("n").results(sizes, "sizes array<int>")
    assert found == [([ROWS_PER_BATCH, ROWS_PER_BATCH, 5],)]
