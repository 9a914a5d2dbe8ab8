"""Ranks that share what they decode: each row group once, the same batches, and nobody waits for ever."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.features.schema import Schema
from rayrec.ingest.batches import InMemorySplit, assemble
from rayrec.ingest.order import BatchOrder, RowGroup
from rayrec.ingest.packed_rows import PackedRows
from rayrec.ingest.row_groups import share
from tests.builders import make_schema
from tests.unit.test_order import make_row_groups, plans

SCHEMA: Schema = make_schema(numeric=0, categorical=0)


def ranks_of(world_size: int, **arguments: Any) -> list[BatchOrder]:
    return [BatchOrder(world_size=world_size, rank=rank, **arguments) for rank in range(world_size)]


@pytest.mark.parametrize(
    ("row_groups", "world_size"),
    [*itertools.product([5, 150, 1_000], [1, 2, 3, 8, 16, 24, 32, 64, 100, 128]), (1_000, 384)],
)
def test_a_row_group_is_decoded_once_at_any_number_of_workers(row_groups: int, world_size: int) -> None:
    groups = make_row_groups(*[(100,) * 9 + (37,)] * -(-row_groups // 10))
    orders = ranks_of(world_size, row_groups=groups, global_batch_size=2_048, drop_last=False)
    decoded = [[need.row_group for need in order.needs if need.decoder == order.rank] for order in orders]
    assert sorted(itertools.chain(*decoded)) == list(range(len(groups)))
    # Nobody decodes more than twice the share of one: the ranks of a lane take turns.
    assert max(map(len, decoded)) <= 2 * len(groups) / world_size + 3


def batches_of_row_groups(order: BatchOrder) -> dict[int, list[int]]:
    """The batches for which a rank takes rows of each row group."""
    found: dict[int, list[int]] = {}
    for batch in range(order.start_batch, order.num_batches):
        for piece in order.slices(batch):
            found.setdefault(piece.row_group, []).append(batch)
    return found


@given(plans, st.sampled_from([1, 2, 3, 5, 8, 13]), st.data())
@settings(max_examples=80)
def test_one_rank_decodes_a_row_group_for_all_that_need_it(
    arguments: Any, world_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, BatchOrder(**arguments).num_batches))
    orders = ranks_of(world_size, start_batch=start, **arguments)
    by_rank = [{need.row_group: need for need in order.needs} for order in orders]
    assert [len(needs) for needs in by_rank] == [len(order.needs) for order in orders], "each once"
    decoded = {number for rank, needs in enumerate(by_rank) for number, need in needs.items() if need.decoder == rank}
    assert decoded == {number for needs in by_rank for number in needs}
    for rank, (order, needs) in enumerate(zip(orders, by_rank, strict=True)):
        for number, need in needs.items():
            assert rank in need.ranks and need.decoder in need.ranks
            assert list(need.ranks) == [other for other, theirs in enumerate(by_rank) if number in theirs]
            assert by_rank[need.decoder][number].first_batch <= need.first_batch, "the decoder has it first"
        for number, batches in batches_of_row_groups(order).items():
            assert needs[number].first_batch <= batches[0] and batches[-1] <= needs[number].last_batch


class Board:
    """Where the ranks of a test, a thread each, hand each other row groups."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.offers: dict[int, list[Any]] = {}

    def offer(self, row_group: int, rows: PackedRows, takers: int) -> None:
        with self.changed:
            assert row_group not in self.offers, "offered once"
            self.offers[row_group] = [rows, takers]
            self.changed.notify_all()

    def take(self, row_group: int) -> PackedRows:
        with self.changed:
            assert self.changed.wait_for(lambda: row_group in self.offers, timeout=60), "a rank waits for ever"
            self.offers[row_group][1] -= 1
            assert self.offers[row_group][1] >= 0, "taken by those that said so"
            return self.offers[row_group][0]


def split_of(row_groups: Sequence[RowGroup], groups: list[np.ndarray] | None) -> InMemorySplit:
    """Rows with nothing but a label, that of row r of row group u is u + r / 1,000, and a group."""
    packed = []
    for number, (_, _, count) in enumerate(row_groups):
        label = (number + np.arange(count) / 1_000).astype(np.float32)
        no_dense, no_ids = np.empty((count, 0), np.float32), np.empty((0, count), np.int32)
        packed.append(PackedRows(label, no_dense, no_ids, (), None, None if groups is None else groups[number]))
    return InMemorySplit(tuple(packed))


def decode(order: BatchOrder, split: InMemorySplit) -> Iterator[PackedRows]:
    """What the tasks of a rank decode for all."""
    for need in order.needs:
        if need.decoder == order.rank:
            rows = split.packed[need.row_group]
            yield rows.take(order.row_order.rows(need.row_group, len(rows), rows.group))


def labels(order: BatchOrder, row_groups: Iterator[PackedRows], step: Callable[[], Any] = int) -> list[list[float]]:
    """The labels of each batch; `step` is called after each, as training waits for all ranks."""
    found = []
    for batch in assemble(SCHEMA, order, row_groups, pin_memory=False):
        found.append(batch.label[batch.weight > 0].tolist())
        step()
    return found


def check_shared_batches(orders: list[BatchOrder], groups: list[np.ndarray] | None = None) -> None:
    """Ranks in lockstep, which read nothing ahead, get what each gets from memory."""
    board, lockstep = Board(), threading.Barrier(len(orders))
    split = split_of(orders[0].row_groups, groups)
    found: dict[int, Any] = {}

    def run(order: BatchOrder) -> None:
        try:
            row_groups = share(order, decode(order, split), board)
            found[order.rank] = labels(order, row_groups, lambda: lockstep.wait(60))
        except BaseException:
            lockstep.abort()
            raise

    threads = [threading.Thread(target=run, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for order in orders:
        assert found[order.rank] == labels(order, split.row_groups(order)), order.rank
    assert all(left == 0 for _, left in board.offers.values()), "all that was offered was taken"


@given(plans, st.sampled_from([1, 2, 3, 5, 8, 13]), st.data())
@settings(max_examples=40)
def test_shared_batches_are_the_same(arguments: Any, world_size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, BatchOrder(**arguments).num_batches))
    check_shared_batches(ranks_of(world_size, start_batch=start, **arguments))


@given(st.sampled_from([2, 3, 8]), st.integers(1, 40), st.integers(1, 12), st.sampled_from(["none", "rows"]))
@settings(max_examples=25)
def test_shared_batches_of_whole_groups_are_the_same(world_size: int, size: int, streams: int, shuffle: Any) -> None:
    lengths = [3, 1, 4, 1, 5, 2, 2]
    columns = [np.repeat(np.arange(7) + 7 * number, lengths) for number in range(6)]
    orders = ranks_of(
        world_size,
        row_groups=make_row_groups(*[(sum(lengths),) * 3] * 2),
        global_batch_size=size,
        read_streams=streams,
        shuffle=shuffle,
        drop_last=False,
        longest_group=max(lengths),
    )
    check_shared_batches(orders, columns)


def test_a_terabyte_split_is_shared_by_a_thousand_ranks() -> None:
    """Criteo Terabyte's 128 thousand row groups, read in the last twentieth of an epoch."""
    groups = make_row_groups(*[(32_768,) * 128] * 1000)
    order = BatchOrder(row_groups=groups, global_batch_size=65_536, world_size=1_024, rank=300, start_batch=60_000)
    own = [need for need in order.needs if need.decoder == order.rank]
    assert len(own) == pytest.approx(len(groups) / 1_024 * 4 / 64, rel=0.5)
    assert len(order.needs) == pytest.approx(64 * len(own), rel=0.5)
