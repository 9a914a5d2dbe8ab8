"""Runs tasks in the executors of a Spark session, which also moves rows between them."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from rayrec.preprocessing.engine import Consume, Counter, Item, Result, RowFile, ShuffleInput, messages_by_partition
from rayrec.preprocessing.sql import SqlShare, set_share
from rayrec.store.paths import cache_root

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

_LEAST_MESSAGE = 2**18
"""Bytes below which messages are joined where they arrive: each column of a message takes 450 bytes of memory there."""
_QUERY_MEMORY = 3 * 2**27
"""Bytes: half of what a session sets aside for the Python process of a task."""
_CANCEL_SECONDS = 20.0
_SOURCE_BYTES = 2


@dataclass(frozen=True)
class SparkEngine:
    """The executors of a Spark session. Rows are opaque to it: what a task computes is the same in every engine.

    It uses RDDs of bytes alone. A data frame would have Spark's planner and its compiler of queries loaded and run on
    every node, which took longer than the work of a stage of a million rows.
    """

    session: "SparkSession"

    @property
    def parallelism(self) -> int:
        return self.session.sparkContext.defaultParallelism

    def within(self, scratch: Path) -> Self:
        """Return the engine itself: rows lie in Spark's folders of each node."""
        return self

    def run(self, items: Sequence[Item], function: Callable[[Item], Result]) -> list[Result]:
        def run(item: Item) -> Result:
            _allow_queries()
            return function(item)

        return self._tasks(items).map(run).collect() if items else []

    def shuffle(
        self, sources: Mapping[str, ShuffleInput[Any]], partitions: int, consume: Consume[Result]
    ) -> list[Result]:
        """See the protocol. What Spark moves are Arrow messages of up to 2 MiB, so that rows cost the JVM nothing."""
        # What a task is sent must not grow with the items.
        schemas = {name: source.schema for name, source in sources.items()}
        functions = [(source.produce, source.schema) for source in sources.values()]

        def produce(task: tuple[int, Any]) -> Iterator[tuple[int, bytes]]:
            _allow_queries()
            number, item = task
            function, schema = functions[number]
            for partition, message in messages_by_partition(function(item), schema, partitions):
                yield partition, sent_message(message, number)

        def finish(partition: int, pairs: Iterable[tuple[int, bytes]]) -> Iterator[Result]:
            _allow_queries()
            messages = (message for _, message in pairs)
            # Messages of all sources come mixed, and a query may read one source before another, or twice.
            with ExitStack() as stack:
                files = [stack.enter_context(RowFile(schema, cache_root())) for schema in schemas.values()]
                for source, message in joined_messages(messages, list(schemas.values())):
                    files[source].append(0, message)
                rows = {name: file.table(0) for name, file in zip(schemas, files, strict=True)}
                yield consume(partition, rows)

        tasks = [(number, item) for number, source in enumerate(sources.values()) for item in source.items]
        moved = self._tasks(tasks).flatMap(produce).partitionBy(partitions, int)
        return moved.mapPartitionsWithIndex(finish).collect()

    def _tasks(self, items: Sequence[Item]) -> "RDD[Item]":
        """Return a partition for each item, of which a task is sent only its own."""
        return self.session.sparkContext.parallelize(list(items), max(1, len(items)))

    def counter(self) -> Counter:
        """Spark delivers what a task has added when the task ends."""
        return self.session.sparkContext.accumulator(0)

    def cancel(self) -> None:
        # A thread of its own has its own connection to Spark; that of an interrupted call still waits for an answer.
        canceller = threading.Thread(target=self._cancel, name="cancel-tasks", daemon=True)
        canceller.start()
        canceller.join(_CANCEL_SECONDS)

    def _cancel(self) -> None:
        with suppress(Exception):  # Spark itself may be what failed
            self.session.sparkContext.cancelAllJobs()
            # Spark tells of a job's end, not of its tasks'. In barrier mode tasks start together, once a core is free
            # for each.
            cores = self._tasks(range(self.parallelism))
            cores.barrier().mapPartitions(lambda _: ()).collect()


def sent_message(message: pa.Buffer, source: int) -> bytes:
    """Return a message with the number of its source at the end."""
    return b"".join((message, source.to_bytes(_SOURCE_BYTES, "big")))


def joined_messages(messages: Iterable[bytes], schemas: Sequence[pa.Schema]) -> Iterator[tuple[int, pa.Buffer]]:
    """Yield sent messages without the number of their source, and that number; small ones are joined.

    At billions of rows a task gets messages of a hundred rows from tens of thousands of others.
    """
    held: list[list[pa.RecordBatch]] = [[] for _ in schemas]
    sizes = [0] * len(schemas)
    for content in messages:
        source = int.from_bytes(content[-_SOURCE_BYTES:], "big")
        message = pa.py_buffer(content).slice(0, len(content) - _SOURCE_BYTES)
        if message.size >= _LEAST_MESSAGE:
            yield source, message
            continue
        held[source].append(pa.ipc.read_record_batch(message, schemas[source]))
        sizes[source] += message.size
        if sizes[source] >= _LEAST_MESSAGE:
            yield source, pa.concat_batches(held[source]).serialize()
            held[source], sizes[source] = [], 0
    yield from ((source, pa.concat_batches(rows).serialize()) for source, rows in enumerate(held) if rows)


def _allow_queries() -> None:
    """Say what queries of this task, the only one of its Python process, may use."""
    set_share(SqlShare(1, _QUERY_MEMORY, cache_root()))
