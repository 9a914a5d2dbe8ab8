"""The embedded engine brings every row to the task of its partition, and SQL there sorts, joins and spills."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from benchmarks.preprocess_kills import ROWS, write_raw
from jobs.command import parse_command
from rayrec.common.errors import UserError
from rayrec.features.transforms import weighted_type
from rayrec.preprocessing import engine as engine_module
from rayrec.preprocessing.engine import EmbeddedEngine, ShuffleInput, partition_by_hash
from rayrec.preprocessing.spark import joined_messages, sent_message
from rayrec.preprocessing.sql import SqlShare, query, set_share
from rayrec.preprocessing.workspace import run_brief_tasks
from rayrec.sources.registry import preprocessing

NUMBERS = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.int32()))])


def numbered(first: int, last: int) -> pa.RecordBatch:
    numbers = range(first, last)
    columns = [pa.array(numbers), pa.array(map(str, numbers)), pa.array([[n] * (n % 3) for n in numbers])]
    return pa.RecordBatch.from_arrays([c.cast(t) for c, t in zip(columns, NUMBERS.types, strict=True)], schema=NUMBERS)


@given(st.lists(st.integers(0, 300), max_size=4), st.integers(1, 9), st.booleans())
@settings(max_examples=30, deadline=None)
def test_every_row_is_in_its_partition_once(sizes: list[int], partitions: int, is_whole: bool) -> None:
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    ranges = [*zip([0, *ends[:-1]], ends, strict=False)] if ends else []

    def produce(item: tuple[int, int]) -> Iterator[tuple[int | np.ndarray, pa.RecordBatch]]:
        rows = numbered(*item)
        yield (item[0] % partitions if is_whole else rows["n"].to_numpy() % partitions), rows

    def consume(partition: int, rows: Mapping[str, pa.Table]) -> tuple[int, pa.Table]:
        return partition, query("select * from numbers order by n", **rows).read_all()

    found = EmbeddedEngine(2).shuffle({"numbers": ShuffleInput(ranges, NUMBERS, produce)}, partitions, consume)
    assert [partition for partition, _ in found] == list(range(partitions))
    expected = numbered(0, sum(sizes)).to_pylist()
    first_of = {n: low for low, high in ranges for n in range(low, high)}
    for partition, rows in found:
        of_key = first_of if is_whole else {n: n for n in first_of}
        assert rows.to_pylist() == [row for row in expected if of_key[row["n"]] % partitions == partition]


def test_rows_are_cut_into_messages_and_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_BYTES_OF_A_MESSAGE", 100)
    monkeypatch.setattr(engine_module, "_BYTES_AT_ONCE", 1_000)
    schema = pa.schema([pa.field("n", pa.int64(), False), ("word", pa.string())])

    def produce(item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number in range(item, item + 100):
            words = pa.array(["a", None]).dictionary_encode()
            yield 1, pa.RecordBatch.from_arrays([pa.array([number, -number], pa.int32()), words], names=["n", "word"])

    def consume(_: int, rows: Mapping[str, pa.Table]) -> tuple[pa.Schema, list[int]]:
        return rows["words"].schema, sorted(rows["words"]["n"].to_pylist())

    found = EmbeddedEngine(3).shuffle({"words": ShuffleInput([0, 100], schema, produce)}, 2, consume)
    assert found == [(schema, []), (schema, sorted([*range(200), *range(-199, 1)]))]


def test_two_sources_are_joined_in_each_partition(tmp_path: Path) -> None:
    clicks = pa.schema([("user", pa.int64()), ("n", pa.int64())])
    users = pa.schema([("user", pa.int64()), ("age", pa.int64())])

    def of(schema: pa.Schema, rows: list[tuple[int, int]]) -> ShuffleInput[list[tuple[int, int]]]:
        def produce(item: list[tuple[int, int]]) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
            columns = [pa.array(column) for column in zip(*item, strict=True)]
            yield np.array([key % 3 for key, _ in item]), pa.RecordBatch.from_arrays(columns, schema=schema)

        return ShuffleInput([rows[:3], rows[3:]], schema, produce)

    def join(_: int, rows: Mapping[str, pa.Table]) -> list[tuple[int, int, int | None]]:
        found = query("select n, user, age from clicks left join users using (user) order by n", **rows).read_all()
        return [tuple(row.values()) for row in found.to_pylist()]

    sources = {
        "clicks": of(clicks, [(1, 0), (2, 1), (1, 2), (4, 3), (5, 4)]),
        "users": of(users, [(5, 50), (1, 10), (2, 20), (6, 60)]),
    }
    found = EmbeddedEngine(2).within(tmp_path).shuffle(sources, 3, join)
    assert found == [[], [(0, 1, 10), (2, 1, 10), (3, 4, None)], [(1, 2, 20), (4, 5, 50)]]
    assert not any(tmp_path.iterdir()), "files without names"


def test_what_has_no_room_in_memory_is_sorted_on_the_disk(tmp_path: Path) -> None:
    set_share(SqlShare(1, 2**27, tmp_path))
    numbers = np.random.default_rng(0).permutation(2_000_000)
    table = pa.table({"n": numbers, **{f"c{i}": numbers for i in range(15)}})  # 244 MiB
    first = last = -1
    for batch in query("select * from numbers order by n", numbers=table):
        first, last = last + 1, last + batch.num_rows
        assert batch["n"].to_numpy().tolist() == list(range(first, last + 1))
        assert batch["c14"].equals(batch["n"])
    assert last == 1_999_999


def test_values_too_long_for_the_memory_are_told(tmp_path: Path) -> None:
    set_share(SqlShare(1, 2**27, tmp_path))
    table = pa.table({"text": [f"{'x' * 2**25}{number}" for number in range(8)]})
    with pytest.raises(UserError, match=r"values too long .* 128.0 MiB of memory; give more"):
        query("from texts order by text", texts=table).read_all()


@pytest.mark.parametrize("ids", [pa.int32(), pa.int64()])
def test_encoded_rows_of_every_type_come_back(ids: pa.DataType) -> None:
    kinds = [pa.float32(), ids, pa.list_(ids), pa.list_(weighted_type(ids)), pa.list_(pa.float32(), 2)]
    schema = pa.schema(
        [pa.field(name, kind, False) for name, kind in zip(("y", "A", "a", "b.c", "é"), kinds, strict=True)]
    )
    weighted = [[], [(1, 0.5), (2, 0.0), (3, 1e-30)], [(2**31 - 1, 1.0)], [], [(0, 2.0), (0, 3.0)]]
    columns = [
        [0.0, -0.0, 1e-45, float("inf"), 3.0],
        [4, 3, 2, 1, 0],
        [[], [1, 2], [3], [], [4]],
        weighted,
        [[1, 2]] * 5,
    ]
    rows = pa.table([pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], schema=schema)
    numbered = rows.rename_columns([f"c{number}" for number in range(len(schema))])
    sent = numbered.schema

    def produce(place: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield 0, numbered.slice(place, 1).to_batches()[0]

    def consume(_: int, tables: Mapping[str, pa.Table]) -> pa.Table:
        return query("from rows order by c1", schema, **tables).read_all()

    (found,) = EmbeddedEngine(2).shuffle({"rows": ShuffleInput(range(5), sent, produce)}, 1, consume)
    expected = rows.take(list(range(4, -1, -1)))
    assert found.schema == schema
    assert found.equals(expected)
    assert found["y"].to_numpy().tobytes() == expected["y"].to_numpy().tobytes()


def test_texts_are_sorted_by_their_bytes() -> None:
    texts = pa.table({"text": ["\U0001f600", "\ufb01", "b", "é", "B", "", "a", "a\0", "z"]})
    found = query("select text from texts order by text", texts=texts).read_all()["text"].to_pylist()
    assert found == sorted(texts["text"].to_pylist(), key=str.encode)


@pytest.mark.parametrize("sql", ["select * from elsewhere", "from read_csv('/etc/passwd')", "install httpfs"])
def test_a_query_sees_its_tables_alone(sql: str) -> None:
    elsewhere = pa.table({"n": [1]})
    assert len(elsewhere) == 1
    import duckdb

    with pytest.raises(duckdb.Error):
        query(sql, other=elsewhere).read_all()


def test_mapped_rows_are_given_back() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("deleted")

    before = mapped()

    def produce(item: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        yield item, numbered(0, 1_000)

    def consume(_: int, rows: Mapping[str, pa.Table]) -> int:
        assert mapped() > before or not os.path.exists("/proc/self/maps")
        return sum(batch.num_rows for batch in query("select * from numbers", **rows))

    assert EmbeddedEngine(1).shuffle({"numbers": ShuffleInput([0, 1, 2], NUMBERS, produce)}, 3, consume) == [1_000] * 3
    assert mapped() == before


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 2**31 - 1))
def test_partitions_of_hashes_are_ascending_ranges(hashes: list[int], partitions: int) -> None:
    found = partition_by_hash(np.array(sorted(hashes)), partitions)
    assert found.tolist() == sorted(found.tolist())
    assert found.min() >= 0
    assert found.max() < partitions
    ends = partition_by_hash(np.array([-(2**63), 2**63 - 1]), partitions)
    assert ends.tolist() == [0, partitions - 1]


def test_results_are_in_the_order_of_the_items() -> None:
    release = threading.Event()

    def wait_or_release(item: int) -> int:
        assert release.wait(10) if item == 0 else release.set() is None
        return item * 10

    assert EmbeddedEngine(2).run([0, 1], wait_or_release) == [0, 10]
    assert run_brief_tasks(EmbeddedEngine(2), list(range(21)), str) == list(map(str, range(21)))
    assert run_brief_tasks(EmbeddedEngine(2), [], str) == []


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
        EmbeddedEngine(2).run(range(1_000), fail_or_wait)
    assert 1 in ended
    assert len(ended) < 999


def test_messages_are_given_back_when_they_are_sent() -> None:
    before = pa.total_allocated_bytes()
    for _ in range(10):
        sent_message(numbered(0, 10_000).serialize(), 0)
    assert pa.total_allocated_bytes() - before < numbered(0, 10_000).nbytes


def test_small_messages_are_joined_by_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayrec.preprocessing.spark._LEAST_MESSAGE", 3_000)
    sent = [(n % 2, numbered(n, n + (400 if n == 7 else 3))) for n in range(50)]
    messages = [sent_message(rows.serialize(), source) for source, rows in sent]
    got: list[list[pa.RecordBatch]] = [[], []]
    for source, message in joined_messages(messages, [NUMBERS, NUMBERS]):
        got[source].append(pa.ipc.read_record_batch(message, NUMBERS))
    assert sum(map(len, got)) < 20
    for source, found in enumerate(got):
        expected = [row for of, rows in sent if of == source for row in rows.to_pylist()]
        assert sorted(pa.Table.from_batches(found).to_pylist(), key=str) == sorted(expected, key=str)


class SentEngine(EmbeddedEngine):
    """Sends its functions to tasks as Spark does, and is as little to be sent itself as a session is."""

    def run(self, items: Sequence[Any], function: Callable[[Any], Any]) -> list[Any]:
        return super().run(items, cloudpickle.loads(cloudpickle.dumps(function)))

    def shuffle(
        self, sources: Mapping[str, ShuffleInput[Any]], partitions: int, consume: Callable[..., Any]
    ) -> list[Any]:
        sent = {
            name: replace(source, produce=cloudpickle.loads(cloudpickle.dumps(source.produce)))
            for name, source in sources.items()
        }
        # What threads of the embedded engine share is no part of what a job sends.
        return EmbeddedEngine(2).shuffle(sent, partitions, cloudpickle.loads(cloudpickle.dumps(consume)))

    def counter(self) -> Any:
        return SimpleNamespace(value=0, add=print)

    def __reduce__(self) -> Any:
        raise TypeError("a task refers to the engine")


@pytest.mark.parametrize("kind", ROWS)
def test_no_task_refers_to_the_engine(kind: str, tmp_path: Path) -> None:
    _, request, _ = parse_command(["preprocess", *write_raw(tmp_path, kind, 2_000), "--output", str(tmp_path / "out")])
    recipe = request.load_recipe()
    preprocessing(recipe, request.inputs(recipe), tmp_path / "out").run(SentEngine(2))
