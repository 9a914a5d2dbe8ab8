"""The plan of an epoch: every row once, the same global batches at any world size, resumable, little read twice."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.ingest.batch_order import BatchOrder, Units
from rayrec.ingest.dataset import PartInfo

Row = tuple[int, int]
"""(unit, row within the unit)"""


def make_units(*parts: tuple[int, ...]) -> Units:
    return Units.of(
        [
            PartInfo(path=f"train/part-{i}.parquet", rows=sum(groups), row_groups=groups, bytes=0, sha256="")
            for i, groups in enumerate(parts)
        ]
    )


def execute(plan: BatchOrder) -> list[list[Row]]:
    """The rows of each batch of one rank, following the plan as a consumer does: reads arrive one by one, in order."""
    batches = []
    current: dict[int, tuple[int, list[Row]]] = {}
    arrived = 0
    for batch in range(plan.start_batch, plan.num_batches):
        rows: list[Row] = []
        for piece in plan.slices(batch):
            if piece.lane not in current or current[piece.lane][0] != piece.read:
                assert piece.read == arrived, "reads are needed in the plan's order"
                read = plan.read(arrived)
                count = int(plan.units.rows[read.unit])
                inside = np.arange(count)[plan.row_order.rows(read.unit, count, read.start, read.stop, None)]
                current[piece.lane] = arrived, [(read.unit, row) for row in inside.tolist()]
                arrived += 1
            read_rows = current[piece.lane][1]
            assert 0 <= piece.start < piece.stop <= len(read_rows)
            rows += read_rows[piece.start : piece.stop]
        assert len(rows) == plan.local_rows(batch)
        batches.append(rows)
    assert arrived == plan.num_reads, "nothing is read in vain"
    return batches


def global_batches(world_size: int, **arguments) -> list[list[Row]]:
    ranks = [execute(BatchOrder(world_size=world_size, rank=rank, **arguments)) for rank in range(world_size)]
    return [[row for part in parts for row in part] for parts in zip(*ranks, strict=True)]


plans = st.fixed_dictionaries(
    {
        "units": st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=5)
        .filter(lambda parts: sum(map(sum, parts)) > 0)
        .map(lambda parts: make_units(*map(tuple, parts))),
        "global_batch_size": st.integers(1, 40),
        "read_streams": st.integers(1, 12),
        "shuffle": st.sampled_from(["none", "row_groups", "rows"]),
        "seed": st.integers(-(2**63), 2**63),
        "epoch": st.integers(0, 3),
        "drop_last": st.booleans(),
    }
)


@given(plans, st.sampled_from([1, 2, 3, 4, 8]))
@settings(max_examples=100)
def test_every_row_is_in_exactly_one_batch(arguments, world_size):
    plan = BatchOrder(**arguments)
    batches = global_batches(world_size, **arguments)
    assert [len(batch) for batch in batches] == [plan.row_count(b) for b in range(plan.num_batches)]
    counts = Counter(row for batch in batches for row in batch)
    units = arguments["units"]
    assert set(counts) <= {(unit, row) for unit in range(len(units)) for row in range(units.rows[unit])}
    assert set(counts.values()) <= {1}
    assert len(counts) == plan.total_rows - plan.rows_dropped
    if arguments["drop_last"]:
        assert plan.rows_dropped == plan.total_rows % arguments["global_batch_size"]
    else:
        assert plan.rows_dropped == 0


@given(plans, st.sampled_from([2, 3, 4, 8]))
@settings(max_examples=100)
def test_global_batches_do_not_depend_on_the_world_size(arguments, world_size):
    assert global_batches(world_size, **arguments) == global_batches(1, **arguments)


@given(plans, st.sampled_from([1, 2, 3, 4, 8]))
@settings(max_examples=100)
def test_ranks_agree_on_padded_sizes(arguments, world_size):
    ranks = [BatchOrder(world_size=world_size, rank=rank, **arguments) for rank in range(world_size)]
    for batch in range(ranks[0].num_batches):
        (size,) = {plan.local_size(batch) for plan in ranks}
        rows = [plan.local_rows(batch) for plan in ranks]
        assert sum(rows) == ranks[0].row_count(batch)
        assert max(rows) == size
        assert size - min(rows) <= 1


@given(plans, st.sampled_from([1, 2, 3]), st.data())
@settings(max_examples=80)
def test_resuming_is_cutting_the_plan(arguments, world_size, data):
    plan = BatchOrder(world_size=world_size, rank=world_size - 1, **arguments)
    start = data.draw(st.integers(0, plan.num_batches))
    resumed = BatchOrder(world_size=world_size, rank=world_size - 1, start_batch=start, **arguments)
    assert execute(resumed) == execute(plan)[start:]


def test_an_epoch_has_its_own_order_and_a_seed_repeats_it():
    arguments = {"units": make_units(*[(50,) * 4] * 5), "global_batch_size": 64, "read_streams": 4}
    first = global_batches(1, seed=1, epoch=0, **arguments)
    assert first == global_batches(1, seed=1, epoch=0, **arguments)
    assert first != global_batches(1, seed=1, epoch=1, **arguments)
    assert first != global_batches(1, seed=2, epoch=0, **arguments)
    unshuffled = global_batches(1, shuffle="none", **arguments)
    assert unshuffled == global_batches(1, shuffle="none", seed=5, epoch=5, **arguments)


def test_one_unshuffled_stream_is_the_order_of_the_files():
    units = make_units((5, 3), (4,))
    batches = global_batches(1, units=units, global_batch_size=5, read_streams=1, shuffle="none", drop_last=False)
    rows = [(unit, row) for unit in range(3) for row in range(units.rows[unit])]
    assert batches == [rows[:5], rows[5:10], rows[10:]]


def test_a_batch_mixes_as_many_row_groups_as_there_are_streams():
    batches = global_batches(1, units=make_units(*[(100,) * 8] * 8), global_batch_size=64, read_streams=16)
    assert all(len({unit for unit, _ in batch}) >= 16 for batch in batches)


@pytest.mark.parametrize(
    ("world_size", "limit"),
    # 15 of 400 row groups are cut by a lane's end; with 3 ranks two lanes of 16 are read by two ranks each.
    [(1, 1.04), (2, 1.04), (4, 1.04), (8, 1.04), (3, 1.04 + 2 / 16)],
)
def test_few_row_groups_are_decoded_twice(world_size, limit):
    units = make_units(*[(1000,) * 20] * 20)
    decoded = 0
    for rank in range(world_size):
        plan = BatchOrder(units=units, global_batch_size=4096, world_size=world_size, rank=rank)
        decoded += sum(units.rows[plan.read(i).unit] for i in range(plan.num_reads))
    assert decoded <= limit * plan.total_rows


def test_a_terabyte_split_is_planned_from_arrays():
    # Criteo Terabyte: 4.2 billion rows in 128 thousand row groups, 64 thousand batches.
    units = make_units(*[(32_768,) * 128] * 1000)
    plan = BatchOrder(units=units, global_batch_size=65_536, world_size=8, rank=3, start_batch=60_000)
    assert plan.num_batches == 64_000
    assert sum(piece.stop - piece.start for piece in plan.slices(63_999)) == plan.local_rows(63_999)
    used = sum(plan.local_rows(batch) for batch in range(60_000, 64_000))
    reads = np.array([plan.read(i) for i in range(plan.num_reads)])
    assert (reads[:, 2] - reads[:, 1]).sum() == used
    assert len(reads) * 32_768 <= 1.01 * used
