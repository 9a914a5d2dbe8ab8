"""Runs Python functions as tasks, of Spark or in threads, with progress and with errors that a user can read."""

import errno
import gc
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Union

import pyarrow as pa

from rayrec.common import errors
from rayrec.common.background import in_background
from rayrec.common.errors import DiskFullError, UserError
from rayrec.common.progress import Progress
from rayrec.internals.spark import frame_of_batches, has_running_tasks, java
from rayrec.preprocessing.threads import HeldRows, ThreadCounter, Threads, Work, partition_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
Workers = Union["SparkSession", Threads]
"""What runs tasks: Spark's executors, or for small inputs threads of this process."""
Rows = Union["DataFrame", HeldRows]
"""Rows that tasks make and that are brought together."""

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_POLL_SECONDS = 0.5
_CANCEL_SECONDS = 20.0
_USER_ERROR = re.compile(rf"^{re.escape(errors.__name__)}\.(\w+): (.+)$", re.MULTILINE)
DISK_FULL = "no space left on the disk of the output or of Spark's temporary files (SPARK_LOCAL_DIRS); free some"


class Counter(Protocol):
    """Counts rows from within tasks."""

    def add(self, term: int) -> None: ...


@contextmanager
def counted_rows(workers: Workers, progress: Progress, stage: str, total: int | None = None) -> Iterator[Counter]:
    """A stage of the work: hold a counter that its tasks add rows to, and pass its growth on to `progress`.

    Spark delivers what a task has added when the task ends. An exception that a task raised for the user leaves the
    block as that UserError.
    """
    progress.stage(stage, total)
    counter = ThreadCounter() if isinstance(workers, Threads) else workers.sparkContext.accumulator(0)

    def watch(ended: threading.Event) -> None:
        shown = 0
        is_last = False
        while not is_last:
            is_last = ended.wait(_POLL_SECONDS)
            rows = counter.value
            # Tasks that ran again after a failure count twice.
            grown = (rows if total is None else min(rows, total)) - shown
            if grown > 0:
                progress.advance(grown)
                shown += grown

    with in_background(watch, f"progress-{stage}"), user_errors():
        yield counter


@contextmanager
def user_errors() -> Iterator[None]:
    """Raise UserError for a failure, here or in a Spark task, that the user can fix; other errors pass unchanged."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error)
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left on device" in text:
            raise DiskFullError(DISK_FULL) from error
        if found := _USER_ERROR.search(text):
            raise getattr(errors, found[1])(found[2]) from error
        raise


@contextmanager
def no_tasks_left_behind(workers: Workers) -> Iterator[None]:
    """Wait for the tasks of a block that ends with an error, because they write to folders that the caller removes."""
    try:
        yield
    except BaseException:
        if isinstance(workers, Threads):  # which wait for their calls
            raise
        # A thread of its own has its own connection to Spark; that of an interrupted call still waits for an answer.
        canceller = threading.Thread(target=_cancel_tasks, args=(workers,), name="cancel-tasks")
        canceller.start()
        canceller.join()
        raise


def _cancel_tasks(spark: "SparkSession") -> None:
    with suppress(Exception):  # Spark itself may be what failed
        spark.sparkContext.cancelAllJobs()
        deadline = time.monotonic() + _CANCEL_SECONDS
        while time.monotonic() < deadline and has_running_tasks(spark):
            time.sleep(0.1)


def parallelism(workers: Workers) -> int:
    """How many tasks run at once."""
    return workers.count if isinstance(workers, Threads) else workers.sparkContext.defaultParallelism


def shuffle_partitions(workers: Workers) -> int:
    """The most partitions that rows are brought together in."""
    if isinstance(workers, Threads):
        return 4 * workers.count
    return int(workers.conf.get("spark.sql.shuffle.partitions") or 1)


def run_tasks(workers: Workers, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """Run a task for each item; returns the results, small ones, in the order of the items."""
    if not items:
        return []
    if isinstance(workers, Threads):
        return workers.run(items, function)

    def run(item: Item) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(function(item))])], names=["result"])

    # Through a data frame, as all other tasks: Spark keeps Python workers for data frames and for RDDs apart.
    found = frame_of_tasks(workers, items, run, pa.schema([("result", pa.binary())])).collect()
    return [pickle.loads(result) for (result,) in found]


def run_brief_tasks(workers: Workers, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
    """As `run_tasks`, for items that mostly take a moment: each task of Spark, which takes longer, does several."""
    count = min(len(items), 4 * parallelism(workers))
    groups = [items[first::count] for first in range(count)]
    found = run_tasks(workers, groups, lambda group: [function(item) for item in group])
    return [found[place % count][place // count] for place in range(len(items))]


def rows_of_tasks(
    workers: Workers, items: Sequence[Item], function: Callable[[Item], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> Rows:
    """The batches that `function` yields for each item, to be brought together."""
    if isinstance(workers, Threads):
        return HeldRows.of_tasks(workers, items, function, schema)
    return frame_of_tasks(workers, items, function, schema)


def frame_of_tasks(
    spark: "SparkSession",
    items: Sequence[Item],
    function: Callable[[Item], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> "DataFrame":
    """A data frame of the batches that `function` yields, with a partition for each item.

    A task is sent its own item and the function, so what `function` refers to must not grow with the items.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item in batch.column(0).to_pylist():
                yield from function(pickle.loads(item))

    return frame_of_batches(spark, packed_items(items)).mapInArrow(run, spark_schema(schema))


def packed_items(items: Sequence[Any]) -> list[pa.RecordBatch]:
    """What the tasks of `items` are sent: a batch for each; one without rows if there are no items."""
    schema = pa.schema([("item", pa.binary())])
    batches = [pa.RecordBatch.from_arrays([pa.array([pickle.dumps(item)])], schema=schema) for item in items]
    return batches or [pa.RecordBatch.from_arrays([pa.array([], pa.binary())], schema=schema)]


def spark_schema(schema: pa.Schema) -> str:
    """The columns of a schema as Spark's DDL."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).simpleString()


def sorted_rows(rows: Rows, deal: Callable[["DataFrame"], "DataFrame"], columns: Sequence[str]) -> Rows:
    """The rows sorted within each partition, to which Spark deals them by `deal`; held rows stay where they are."""
    if isinstance(rows, HeldRows):
        return rows.sorted_by(*columns)
    return deal(rows).sortWithinPartitions(*columns)


def results_of(rows: Rows, work: Work, columns: str, batch_rows: int | None = None) -> list[tuple[Any, ...]]:
    """The small rows that `work` yields for the batches of each partition; `columns`: theirs, as Spark's DDL.

    `batch_rows`: the most rows of a batch that Spark hands over, for rows that are large.
    """
    if isinstance(rows, HeldRows):
        return rows.results(work)
    settings, usual = rows.sparkSession.conf, rows.sparkSession.conf.get(_BATCH_ROWS)
    assert usual is not None
    settings.set(_BATCH_ROWS, batch_rows or usual)
    try:
        return collect_rows(rows.mapInArrow(work, columns))
    finally:
        settings.set(_BATCH_ROWS, usual)


def collect_rows(frame: "DataFrame") -> list[tuple[Any, ...]]:
    """The rows of a small data frame."""
    return [tuple(row) for row in frame.collect()]


def reclaim_shuffles(spark: "SparkSession") -> None:
    """Let Spark remove the shuffle files of data frames that are gone; by itself it does so twice an hour."""
    gc.collect()
    java(spark).java.lang.System.gc()


def partition_number() -> int:
    """The number of the current task's partition."""
    if (number := partition_here()) is not None:
        return number
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()
