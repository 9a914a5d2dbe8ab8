"""What tasks and threads stream is bit for bit what the same plan takes from memory, and what plain pyarrow reads."""

import dataclasses
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
import pytest
import ray
import torch

from rayrec.common.errors import UserError
from rayrec.config.train import IngestConfig
from rayrec.ingest import loader
from rayrec.ingest.batches import InMemorySplit
from rayrec.ingest.broker import SharedEpoch, start_broker
from rayrec.ingest.interactions import Positives
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.models.common.batch import Batch
from tests.builders import make_dataset, users_and_items, write_dataset
from tests.expected_batches import expected_rows, padded, rows_of

pytestmark = pytest.mark.usefixtures("ray_cluster")

STREAM = IngestConfig(read_streams=4, prefetch_batches=2)

DATASETS = {
    "plain": {"rows": 1_200},
    "everything": {"rows": 1_200, "multi_hot": 2, "weight": True, "group": True},
    "tiny row groups": {"rows": 200, "rows_per_row_group": 3, "rows_per_part": 31},
    "one row": {"rows": 1, "multi_hot": 1},
}


@pytest.fixture(params=[True, False], ids=["tasks", "threads"])
def open_batches(request):
    return partial(loader.open_batches, by_ray_data=request.param)


def assert_same(one: Batch, other: Batch) -> None:
    for field in dataclasses.fields(Batch):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "sparse":
            assert mine.keys() == theirs.keys()
            assert torch.equal(mine.values(), theirs.values()) and torch.equal(mine.lengths(), theirs.lengths())
        elif mine is not None or theirs is not None:
            assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), field.name


@pytest.mark.parametrize("arguments", DATASETS.values(), ids=DATASETS.keys())
def test_streamed_batches_equal_those_from_memory_and_from_pyarrow(tmp_path, open_batches, arguments):
    dataset = make_dataset(tmp_path / "data", **arguments)
    store = InMemorySplit.read(dataset, "train")
    for rank in range(2):
        order = {"global_batch_size": 64, "rank": rank, "world_size": 2, "seed": 7, "epoch": 2, "drop_last": False}
        plan = BatchOrder(row_groups=row_groups_of(dataset.split("train").parts), read_streams=4, **order)
        with (
            open_batches(dataset, "train", STREAM, **order) as streamed,
            open_batches(dataset, "train", STREAM, store=store, **order) as stored,
        ):
            for one, other, table in zip(streamed, stored, expected_rows(dataset, plan), strict=True):
                assert_same(one, other)
                assert rows_of(dataset, one) == padded(dataset, table, one.size)
        assert streamed.wait_seconds > 0


def test_streamed_whole_groups_equal_those_from_memory(tmp_path, open_batches):
    dataset = make_dataset(tmp_path / "data", 1_200, multi_hot=1, group_sizes=(3, 9, 1, 4), rows_per_row_group=50)
    store = InMemorySplit.read(dataset, "train")
    for rank in range(2):
        order = {"global_batch_size": 64, "rank": rank, "world_size": 2, "seed": 7, "drop_last": False}
        with (
            open_batches(dataset, "train", STREAM, whole_groups=True, **order) as streamed,
            open_batches(dataset, "train", STREAM, whole_groups=True, store=store, **order) as stored,
        ):
            for one, other in zip(streamed, stored, strict=True):
                assert_same(one, other)


@pytest.mark.parametrize("world_size", [2, 3, 6])
def test_ranks_that_share_get_the_same_batches(tmp_path, open_batches, world_size):
    """More ranks than lanes, each a thread, and one more epoch that all leave early."""
    groups = {} if world_size == 3 else {"group_sizes": (3, 9, 1, 4)}
    dataset = make_dataset(tmp_path / "data", 1_200, multi_hot=1, rows_per_row_group=50, **groups)
    brokers = [start_broker(f"{tmp_path}", world_size) for _ in range(world_size)]
    store = InMemorySplit.read(dataset, "train")
    order = {"global_batch_size": 64, "world_size": world_size, "seed": 7, "drop_last": False}
    order |= {"whole_groups": bool(groups)}

    def load(rank, epoch, most):
        shared = SharedEpoch(brokers[rank], epoch)
        with open_batches(dataset, "train", STREAM, shared=shared, rank=rank, **order) as batches:
            return list(itertools.islice(batches, most))

    with ThreadPoolExecutor(world_size) as threads:
        assert all(
            len(found) == 2 for found in threads.map(load, range(world_size), [0] * world_size, [2] * world_size)
        )
        for rank, found in enumerate(threads.map(load, range(world_size), [1] * world_size, [None] * world_size)):
            with open_batches(dataset, "train", STREAM, store=store, rank=rank, **order) as stored:
                for one, other in zip(found, stored, strict=True):
                    assert_same(one, other)
    assert ray.get(brokers[0].held.remote()) == 0, "the broker keeps nothing that all have left"


def test_resuming_streams_the_rest_of_the_epoch(tmp_path, open_batches):
    dataset = make_dataset(tmp_path / "data", 1_500)
    order = {"global_batch_size": 100, "drop_last": True}
    with (
        open_batches(dataset, "train", STREAM, **order) as whole,
        open_batches(dataset, "train", STREAM, start_batch=9, **order) as rest,
    ):
        for one, other in zip(list(whole)[9:], rest, strict=True):
            assert_same(one, other)


def test_leaving_early_ends_the_execution(tmp_path, open_batches):
    dataset = make_dataset(tmp_path / "data", 20_000, rows_per_row_group=50)
    before = {thread.name for thread in threading.enumerate()}
    for _ in range(3):
        with open_batches(dataset, "train", STREAM, global_batch_size=20, drop_last=True) as batches:
            next(iter(batches))
    names = {thread.name for thread in threading.enumerate()} - before
    assert not [name for name in names if name.startswith(("StreamingExecutor", "rayrec-"))]


def test_a_missing_part_is_named_where_the_batches_are_consumed(tmp_path, open_batches):
    dataset = make_dataset(tmp_path / "data", 100)
    next((tmp_path / "data" / "train").iterdir()).unlink()
    with (
        open_batches(dataset, "train", STREAM, global_batch_size=10, drop_last=True) as batches,
        pytest.raises(UserError, match=r"part-00000\.parquet: missing") as caught,
    ):
        list(batches)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("in_memory", [False, True])
def test_streamed_positives_are_the_rows_in_the_order_of_the_parts(tmp_path, in_memory):
    schema = users_and_items(5_001, 101)
    users, items = torch.arange(5_000, dtype=torch.int32), torch.arange(5_000, dtype=torch.int32) % 101
    table = pa.table({"user": users.numpy(), "item": items.numpy(), "label": torch.ones(5_000).numpy()})
    dataset = write_dataset(tmp_path / "data", schema, {"train": table}, rows_per_part=900, rows_per_row_group=130)
    positives = Positives.read(dataset, "train", torch.device("cpu"), in_memory=in_memory, world_size=2)
    assert torch.equal(positives.users, users) and torch.equal(positives.items, items)
