"""Ranks that share what they decode: each row group once, the same batches, and nobody waits for ever."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.features.schema import Schema
from rayrec.ingest.batch_order import BatchOrder, Units
from rayrec.ingest.batches import assemble
from rayrec.ingest.reader import PackedRows
from rayrec.ingest.reads import InMemorySplit, arrange
from tests.builders import make_schema
from tests.unit.test_batch_order import make_units, plans

SCHEMA: Schema = make_schema(numeric=0, categorical=0)


def ranks_of(world_size: int, **arguments: Any) -> list[BatchOrder]:
    return [BatchOrder(world_size=world_size, rank=rank, **arguments) for rank in range(world_size)]


@pytest.mark.parametrize(
    ("row_groups", "world_size"),
    [*itertools.product([5, 150, 1_000], [1, 2, 3, 8, 16, 24, 32, 64, 100, 128]), (1_000, 384)],
)
def test_a_row_group_is_decoded_once_at_any_number_of_workers(row_groups: int, world_size: int) -> None:
    units = make_units(*[(100,) * 9 + (37,)] * -(-row_groups // 10))
    orders = ranks_of(world_size, units=units, global_batch_size=2_048, drop_last=False)
    decoded = [[unit for _, unit in order.decoded(shares=True)] for order in orders]
    assert sorted(itertools.chain(*decoded)) == list(range(len(units)))
    # Nobody decodes more than twice the share of one: the ranks of a lane take turns.
    assert max(map(len, decoded)) <= 2 * len(units) / world_size + 3


def test_without_sharing_it_is_decoded_by_each_that_needs_it() -> None:
    """What sharing saves with the default's 16 lanes."""
    units = make_units(*[(1_000,) * 20] * 20)
    for world_size, times in ((16, 1.04), (32, 2), (64, 4), (128, 8)):
        orders = ranks_of(world_size, units=units, global_batch_size=4_096)
        decoded = sum(len(order.decoded(shares=False)) for order in orders)
        assert decoded / len(units) == pytest.approx(times, rel=0.05)


def first_needs(order: BatchOrder) -> dict[int, int]:
    """The batch in which a rank first needs each row group, from the slices of its batches."""
    found: dict[int, int] = {}
    for batch in range(order.start_batch, order.num_batches):
        for piece in order.slices(batch):
            found.setdefault(order.read(piece.read).unit, batch)
    return found


@given(plans, st.sampled_from([1, 2, 3, 5, 8, 13]), st.data())
@settings(max_examples=80)
def test_one_rank_decodes_a_row_group_for_all_that_need_it(
    arguments: Any, world_size: int, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, BatchOrder(**arguments).num_batches))
    orders = ranks_of(world_size, start_batch=start, **arguments)
    needs = [first_needs(order) for order in orders]
    decoded = Counter(unit for order in orders for _, unit in order.decoded(shares=True))
    assert decoded == Counter({unit for needed in needs for unit in needed}), "each once"
    for order, needed in zip(orders, needs, strict=True):
        assert {unit: batch for batch, unit in order.decoded(shares=False)} == needed
        for batch, unit in order.decoded(shares=True):
            others = [other[unit] for other in needs if unit in other and other is not needed]
            assert order.takers(unit) == len(others)
            assert batch == min([*others, *([needed[unit]] if unit in needed else [])])


class Board:
    """Where the ranks of a test, a thread each, hand each other row groups."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.offers: dict[int, list[Any]] = {}

    def offer(self, unit: int, rows: PackedRows, takers: int) -> None:
        with self.changed:
            assert unit not in self.offers, "offered once"
            self.offers[unit] = [rows, takers]
            self.changed.notify_all()

    def take(self, unit: int) -> PackedRows:
        with self.changed:
            assert self.changed.wait_for(lambda: unit in self.offers, timeout=60), "a rank waits for ever"
            self.offers[unit][1] -= 1
            assert self.offers[unit][1] >= 0, "taken by those that said so"
            return self.offers[unit][0]


def split_of(units: Units, groups: list[np.ndarray] | None) -> InMemorySplit:
    """Rows with nothing but a label, that of row r of row group u is u + r / 1,000, and a group."""
    packed = []
    for unit, count in enumerate(units.rows.tolist()):
        label = (unit + np.arange(count) / 1_000).astype(np.float32)
        no_dense, no_ids = np.empty((count, 0), np.float32), np.empty((0, count), np.int32)
        packed.append(PackedRows(label, no_dense, no_ids, (), None, None if groups is None else groups[unit]))
    return InMemorySplit(tuple(packed))


def decode(order: BatchOrder, split: InMemorySplit, *, shares: bool) -> Iterator[PackedRows]:
    """What the tasks of a rank decode."""
    for _, unit in order.decoded(shares=shares):
        rows = split.packed[unit]
        yield rows.take(order.row_order.rows(unit, len(rows), 0, len(rows), rows.group))


def labels(
    order: BatchOrder, reads: Iterator[Iterator[PackedRows]], step: Callable[[], Any] = int
) -> list[list[float]]:
    """The labels of each batch; `step` is called after each, as training waits for all ranks."""
    found = []
    for batch in assemble(SCHEMA, order, reads, pin_memory=False):
        found.append(batch.label[batch.weight > 0].tolist())
        step()
    return found


def check_shared_batches(orders: list[BatchOrder], groups: list[np.ndarray] | None = None) -> None:
    """Ranks in lockstep, which read nothing ahead, get what each gets by itself and from memory."""
    board, together = Board(), threading.Barrier(len(orders))
    split = split_of(orders[0].units, groups)
    found: dict[int, Any] = {}

    def run(order: BatchOrder) -> None:
        try:
            reads = arrange(order, decode(order, split, shares=True), board)
            found[order.rank] = labels(order, reads, lambda: together.wait(60))
        except BaseException:
            together.abort()
            raise

    threads = [threading.Thread(target=run, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for order in orders:
        alone = labels(order, arrange(order, decode(order, split, shares=False), None))
        assert found[order.rank] == alone == labels(order, split.reads(order)), order.rank
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
    columns = [np.repeat(np.arange(7) + 7 * unit, lengths) for unit in range(6)]
    orders = ranks_of(
        world_size,
        units=make_units(*[(sum(lengths),) * 3] * 2),
        global_batch_size=size,
        read_streams=streams,
        shuffle=shuffle,
        drop_last=False,
        longest_group=max(lengths),
    )
    check_shared_batches(orders, columns)


def test_a_terabyte_split_is_shared_by_a_thousand_ranks() -> None:
    """Criteo Terabyte's 128 thousand row groups, read in the last twentieth of an epoch."""
    units = make_units(*[(32_768,) * 128] * 1000)
    order = BatchOrder(units=units, global_batch_size=65_536, world_size=1_024, rank=300, start_batch=60_000)
    own = order.decoded(shares=True)
    assert len(own) == pytest.approx(len(units) / 1_024 * 4 / 64, rel=0.5)
    assert order.num_reads == pytest.approx(64 * len(own), rel=0.5)
