"""Runs tasks in the executors of a Spark session, which also moves rows between them."""

import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.internals.spark import frame_of_batches, has_running_tasks
from rayrec.preprocessing.engines.embedded import RowFile
from rayrec.preprocessing.engines.engine import Consume, Counter, Item, Result, Source, messages_by_partition
from rayrec.preprocessing.engines.sql import SqlShare, set_share
from rayrec.store.paths import cache_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MESSAGES_AT_ONCE = 16
"""Messages of shuffled rows that Spark hands to a task together."""
_LEAST_MESSAGE = 2**18
"""Bytes below which messages are joined where they arrive: each column of a message takes 450 bytes of memory there."""
_QUERY_MEMORY = 3 * 2**27
"""Bytes: half of what a session sets aside for the Python process of a task."""
_CANCEL_SECONDS = 20.0
_MESSAGES = pa.schema([("key", pa.int32()), ("source", pa.int32()), ("message", pa.binary())])
_RESULTS = pa.schema([("number", pa.int64()), ("result", pa.binary())])


@dataclass(frozen=True)
class SparkEngine:
    """The executors of a Spark session. Rows are opaque to it: what a task computes is the same in every engine."""

    session: "SparkSession"

    @property
    def parallelism(self) -> int:
        return self.session.sparkContext.defaultParallelism

    def within(self, scratch: Path) -> Self:
        """Return the engine itself: rows lie in Spark's folders of each node."""
        return self

    def run(self, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
        if not items:
            return []

        def run(task: tuple[int, Item]) -> Iterator[pa.RecordBatch]:
            _allow_queries()
            yield _result(task[0], function(task[1]))

        # Through a data frame, as all other tasks: Spark keeps Python workers for data frames and for RDDs apart.
        found = dict(_results(frame_of_tasks(self.session, list(enumerate(items)), run, _RESULTS)))
        return [found[number] for number in range(len(items))]

    def shuffle(self, sources: Mapping[str, Source[Any]], partitions: int, consume: Consume[Result]) -> list[Result]:
        """See the protocol. A row of Spark is an Arrow message of up to 2 MiB, so that rows cost the JVM nothing."""
        keys = keys_of_partitions(partitions)
        # What a task is sent must not grow with the items.
        schemas = {name: source.schema for name, source in sources.items()}
        functions = [(source.produce, source.schema) for source in sources.values()]

        def produce(task: tuple[int, Any]) -> Iterator[pa.RecordBatch]:
            _allow_queries()
            number, item = task
            function, schema = functions[number]
            held: list[tuple[int, pa.Buffer]] = []
            for message in messages_by_partition(function(item), schema, partitions):
                held.append(message)
                if len(held) == _MESSAGES_AT_ONCE:
                    yield _messages(number, held, keys)
                    held = []
            if held:
                yield _messages(number, held, keys)

        def finish(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            _allow_queries()
            context = TaskContext.get()
            assert context is not None
            # Messages of all sources come mixed, and a query may read one source before another, or twice.
            with ExitStack() as stack:
                files = [stack.enter_context(RowFile(schema, cache_root())) for schema in schemas.values()]
                for source, message in joined_messages(batches, list(schemas.values())):
                    files[source].append(0, message)
                rows = {name: file.table(0) for name, file in zip(schemas, files, strict=True)}
                yield _result(context.partitionId(), consume(context.partitionId(), rows))

        tasks = [(number, item) for number, source in enumerate(sources.values()) for item in source.items]
        produced = frame_of_tasks(self.session, tasks, produce, _MESSAGES)
        settings, usual = self.session.conf, self.session.conf.get(_BATCH_ROWS)
        assert usual is not None
        settings.set(_BATCH_ROWS, str(_MESSAGES_AT_ONCE))
        try:
            shuffled = produced.repartition(partitions, "key").mapInArrow(finish, spark_schema(_RESULTS))
            found = dict(_results(shuffled))
        finally:
            settings.set(_BATCH_ROWS, usual)
        # Spark leaves out the partitions of a shuffle in which there is no row at all.
        left = [partition for partition in range(partitions) if partition not in found]
        empty = {name: schema.empty_table() for name, schema in schemas.items()}
        found |= zip(left, self.run(left, lambda partition: consume(partition, empty)), strict=True)
        return [found[partition] for partition in range(partitions)]

    def counter(self) -> Counter:
        """Spark delivers what a task has added when the task ends."""
        return self.session.sparkContext.accumulator(0)

    def cancel(self) -> None:
        # A thread of its own has its own connection to Spark; that of an interrupted call still waits for an answer.
        canceller = threading.Thread(target=self._cancel, name="cancel-tasks")
        canceller.start()
        canceller.join()

    def _cancel(self) -> None:
        with suppress(Exception):  # Spark itself may be what failed
            self.session.sparkContext.cancelAllJobs()
            deadline = time.monotonic() + _CANCEL_SECONDS
            while time.monotonic() < deadline and has_running_tasks(self.session):
                time.sleep(0.1)


def frame_of_tasks(
    spark: "SparkSession",
    items: Sequence[Item],
    function: Callable[[Item], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> "DataFrame":
    """Return a data frame of the batches that `function` yields, with a partition for each item.

    A task is sent its own item and the function, so what `function` refers to must not grow with the items.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for item in batch.column(0).to_pylist():
                yield from function(pickle.loads(item))

    return frame_of_batches(spark, packed_items(items)).mapInArrow(run, spark_schema(schema))


def packed_items(items: Sequence[Any]) -> list[pa.RecordBatch]:
    """Return what the tasks of `items` are sent: a batch for each; one without rows if there are no items."""
    schema = pa.schema([("item", pa.binary())])
    batches = [pa.RecordBatch.from_arrays([pa.array([pickle.dumps(item)])], schema=schema) for item in items]
    return batches or [pa.RecordBatch.from_arrays([pa.array([], pa.binary())], schema=schema)]


def spark_schema(schema: pa.Schema) -> str:
    """Return the columns of a schema as Spark's DDL."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema).simpleString()


def keys_of_partitions(partitions: int) -> NDArray[np.int32]:
    """Return, for each partition, an integer that Spark's hash partitioning sends to it (Murmur3, with seed 42).

    Spark has no other way to say which partition a row belongs to.
    """
    keys = np.full(partitions, -1, np.int32)
    tried = 0
    while (keys < 0).any():
        candidates = np.arange(tried, tried + 8 * partitions + 64, dtype=np.uint32)
        word = _rotated(candidates * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        hashed = _rotated(word ^ np.uint32(42), 13) * np.uint32(5) + np.uint32(0xE6546B64)
        hashed ^= np.uint32(4)  # bytes that were hashed
        hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
        hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
        hashed ^= hashed >> np.uint32(16)
        keys[hashed.view(np.int32) % partitions] = candidates.view(np.int32)
        tried += len(candidates)
    return keys


def _rotated(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _messages(source: int, held: Sequence[tuple[int, pa.Buffer]], keys: NDArray[np.int32]) -> pa.RecordBatch:
    columns = [keys[[partition for partition, _ in held]], np.full(len(held), source, np.int32)]
    # Bytes: Arrow never gives back what a memoryview of its buffers refers to.
    arrays = [*map(pa.array, columns), pa.array([message.to_pybytes() for _, message in held], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=_MESSAGES)


def joined_messages(batches: Iterator[pa.RecordBatch], schemas: Sequence[pa.Schema]) -> Iterator[tuple[int, pa.Buffer]]:
    """Yield the messages of each source, of which small ones are joined.

    At billions of rows a task gets messages of a hundred rows from tens of thousands of others.
    """
    held: list[list[pa.RecordBatch]] = [[] for _ in schemas]
    sizes = [0] * len(schemas)
    for batch in batches:
        for source, value in zip(batch["source"].to_pylist(), batch["message"], strict=True):
            message = value.as_buffer()
            if message.size >= _LEAST_MESSAGE:
                yield source, message
                continue
            held[source].append(pa.ipc.read_record_batch(message, schemas[source]))
            sizes[source] += message.size
            if sizes[source] >= _LEAST_MESSAGE:
                yield source, pa.concat_batches(held[source]).serialize()
                held[source], sizes[source] = [], 0
    yield from ((source, pa.concat_batches(rows).serialize()) for source, rows in enumerate(held) if rows)


def _result(number: int, result: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([number]), pa.array([pickle.dumps(result)])], schema=_RESULTS)


def _results(frame: "DataFrame") -> Iterable[tuple[int, Any]]:
    return ((number, pickle.loads(result)) for number, result in frame.collect())


def _allow_queries() -> None:
    """Say what queries of this task, the only one of its Python process, may use."""
    set_share(SqlShare(1, _QUERY_MEMORY, cache_root()))
