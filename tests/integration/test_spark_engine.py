"""Spark brings rows together as the embedded engine does, and sends each to the partition that it is for."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rayrec.features.hashes import hash_key
from rayrec.internals.spark import moved_to_partitions
from rayrec.preprocessing.engines.embedded import EmbeddedEngine
from rayrec.preprocessing.engines.engine import ShuffleInput
from rayrec.preprocessing.engines.spark import SparkEngine
from rayrec.preprocessing.engines.sql import query

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
def test_bytes_go_to_their_partitions(partitions: int, spark: Any) -> None:
    """Spark writes up to 200 partitions in another way than more."""
    numbered = spark.sparkContext.parallelize(range(1_000), 3).map(lambda n: (n % partitions, str(n).encode()))
    found = moved_to_partitions(numbered, partitions).glom().collect()
    expected = [sorted(str(n).encode() for n in range(1_000) if n % partitions == p) for p in range(partitions)]
    assert [sorted(of_partition) for of_partition in found] == expected
