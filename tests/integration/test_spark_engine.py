"""Spark brings rows together as the embedded engine does; what it makes of tasks that fail, die or are cancelled."""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from rayrec.common.errors import UserError
from rayrec.features.hashes import hash_key
from rayrec.internals.ray_core import JAVA_DRIVERS, JAVA_LIBRARY, remove_java_libraries
from rayrec.preprocessing.engine import EmbeddedEngine, ShuffleInput
from rayrec.preprocessing.spark import SparkEngine
from rayrec.preprocessing.sql import query
from rayrec.preprocessing.workspace import user_errors
from rayrec.store.parquet import new_parquet

EVENTS = pa.schema([("user", pa.int64()), ("text", pa.string()), ("numbers", pa.list_(pa.float32(), 2))])
USERS = pa.schema([("user", pa.int64()), ("age", pa.int32())])
PARTITIONS = 7
SQL = """
select user, text, numbers, age, count(*) over (partition by user)::bigint as events
from events left join users using (user) order by user, text
"""


def events(item: int) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    random = np.random.default_rng(item)
    for _ in range(3):
        users = random.integers(0, 500, 4_000)
        texts = pa.array([f"{item} {n}" for n in random.integers(0, 10**9, 4_000)])
        numbers = pa.FixedSizeListArray.from_arrays(pa.array(random.random(8_000).astype(np.float32)), 2)
        rows = pa.RecordBatch.from_arrays([pa.array(users), texts, numbers], schema=EVENTS)
        yield hash_key(users) % PARTITIONS, rows


def users(item: int) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    of_item = np.arange(item, 400, 3)
    rows = pa.RecordBatch.from_arrays([pa.array(of_item), pa.array(of_item % 90).cast(pa.int32())], schema=USERS)
    yield hash_key(of_item) % PARTITIONS, rows


def join(partition: int, rows: Mapping[str, pa.Table]) -> tuple[int, pa.Table]:
    return partition, query(SQL, **rows).read_all()


def count(partition: int, rows: Mapping[str, pa.Table]) -> tuple[int, int]:
    return partition, rows["events"].num_rows


def test_both_engines_give_the_same_rows(spark: Any) -> None:
    sources = {"events": ShuffleInput(range(5), EVENTS, events), "users": ShuffleInput(range(3), USERS, users)}
    found = SparkEngine(spark).shuffle(sources, PARTITIONS, join)
    assert found == EmbeddedEngine(2).shuffle(sources, PARTITIONS, join)
    assert sum(len(rows) for _, rows in found) == 5 * 3 * 4_000


@pytest.mark.parametrize("items", [(), (0,)])
def test_partitions_without_rows_are_consumed(items: tuple[int, ...], spark: Any) -> None:
    def first(item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield 3, next(events(item))[1]

    expected = [(partition, 4_000 * len(items) * (partition == 3)) for partition in range(PARTITIONS)]
    assert SparkEngine(spark).shuffle({"events": ShuffleInput(items, EVENTS, first)}, PARTITIONS, count) == expected


@pytest.mark.parametrize("partitions", [1, 2, 31, 300])
def test_rows_go_to_their_partitions(partitions: int, spark: Any) -> None:
    """Spark writes up to 200 partitions in another way than more."""
    schema = pa.schema([("number", pa.int64())])

    def numbers(item: int) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        of_item = np.arange(item, 1_000, 3)
        yield of_item % partitions, pa.RecordBatch.from_arrays([pa.array(of_item)], schema=schema)

    def ordered(_: int, rows: Mapping[str, pa.Table]) -> list[int]:
        return sorted(rows["numbers"]["number"].to_pylist())

    found = SparkEngine(spark).shuffle({"numbers": ShuffleInput(range(3), schema, numbers)}, partitions, ordered)
    assert found == [list(range(p, 1_000, partitions)) for p in range(partitions)]


def test_cancelled_tasks_have_ended(spark: Any, tmp_path: Path) -> None:
    engine = SparkEngine(spark)

    def work(item: int) -> None:
        while True:
            (tmp_path / f"{item} {time.monotonic()}").touch()
            time.sleep(0.01)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(engine.run, range(engine.parallelism + 1), work)
        while len({path.name.split()[0] for path in tmp_path.iterdir()}) < engine.parallelism:
            time.sleep(0.1)
        engine.cancel()
        written = len(list(tmp_path.iterdir()))
        with pytest.raises(Exception, match="cancelled"):
            running.result()
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) == written
    assert engine.run([2, 3], str) == ["2", "3"]


def test_a_task_is_sent_its_own_item(spark: Any) -> None:
    """Each partition holds one item, in order, however small they are."""
    items = [(number, bytes([number % 256]) * 10_000) for number in range(200)]

    def look(item: tuple[int, bytes]) -> tuple[int, int, int]:
        from pyspark import TaskContext

        return item[0], len(item[1]), TaskContext.get().partitionId()

    found = SparkEngine(spark).run(items, look)
    assert found == [(number, 10_000, number) for number in range(200)]
    assert SparkEngine(spark).run([], lambda item: item) == []


def test_what_java_has_unpacked_is_removed(spark: Any) -> None:
    """A session's first process leaves a copy of Ray's library, and its executors leave another one.

    An upgrade may have changed where they are if this fails: adapt rayrec/internals/ray_core.py.
    """
    copies = [copy for copy in JAVA_DRIVERS.glob(f"*/{JAVA_LIBRARY}") if not copy.parent.name.startswith("session_")]
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    assert copies and (session / JAVA_LIBRARY).exists()
    newest = max(copies, key=lambda copy: copy.stat().st_mtime)
    os.utime(newest)
    remove_java_libraries()
    assert newest.exists()
    os.utime(newest, (0, 0))
    remove_java_libraries()
    assert not newest.parent.exists()


def test_full_disk_in_a_task_is_a_users_error(spark: Any) -> None:
    def fill(_: int) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="no space left"), user_errors():
        SparkEngine(spark).run([1], fill)


def test_task_killed_in_the_middle_of_a_file_runs_again(spark: Any, tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64())])

    def task(number: int) -> int:
        is_first_try = not (tmp_path / "tried").exists()
        with new_parquet(tmp_path / "files" / f"{number}.parquet", schema) as writer:
            writer.write_batch(pa.record_batch([pa.array([number])], schema=schema))
            if number == 1 and is_first_try:
                (tmp_path / "tried").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return number * 10

    assert SparkEngine(spark).run([0, 1, 2], task) == [0, 10, 20]
    assert sorted(p.name for p in (tmp_path / "files").glob("*.parquet")) == ["0.parquet", "1.parquet", "2.parquet"]
    assert pq.read_table(tmp_path / "files" / "1.parquet")["x"].to_pylist() == [1]
