"""The plan of an epoch: every row once, the same global batches at any world size, resumable, little read twice."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rayrec.ingest.dataset import PartInfo
from rayrec.ingest.order import BatchOrder, RowGroup, row_groups_of

Row = tuple[int, int]
"""(row group, row within it)"""


def make_row_groups(*parts: tuple[int, ...]) -> list[RowGroup]:
    return row_groups_of(
        [
            PartInfo(path=f"train/part-{i}.parquet", rows=sum(groups), row_groups=groups, bytes=0, sha256="")
            for i, groups in enumerate(parts)
        ]
    )


def execute(plan: BatchOrder) -> list[list[Row]]:
    """The rows of each batch of one rank, from row groups that arrive one by one and are held while they are needed."""
    batches = []
    for batch in range(plan.start_batch, plan.num_batches):
        held = {need.row_group for need in plan.needs if need.first_batch <= batch <= need.last_batch}
        rows: list[Row] = []
        for number, start, stop in plan.slices(batch):
            assert number in held, "a row group is there while batches need it"
            count = plan.row_groups[number].rows
            assert 0 <= start < stop <= count
            inside = np.arange(count)[plan.row_order.rows(number, count, None)]
            rows += [(number, row) for row in inside[start:stop].tolist()]
        assert len(rows) == plan.local_rows(batch)
        batches.append(rows)
    firsts = [need.first_batch for need in plan.needs]
    assert firsts == sorted(firsts), "they arrive in the order of the batches"
    return batches


def global_batches(world_size: int, **arguments) -> list[list[Row]]:
    ranks = [execute(BatchOrder(world_size=world_size, rank=rank, **arguments)) for rank in range(world_size)]
    return [[row for part in parts for row in part] for parts in zip(*ranks, strict=True)]


plans = st.fixed_dictionaries(
    {
        "row_groups": st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=5)
        .filter(lambda parts: sum(map(sum, parts)) > 0)
        .map(lambda parts: make_row_groups(*map(tuple, parts))),
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
    groups = arguments["row_groups"]
    assert set(counts) <= {(number, row) for number, group in enumerate(groups) for row in range(group.rows)}
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
    arguments = {"row_groups": make_row_groups(*[(50,) * 4] * 5), "global_batch_size": 64, "read_streams": 4}
    first = global_batches(1, seed=1, epoch=0, **arguments)
    assert first == global_batches(1, seed=1, epoch=0, **arguments)
    assert first != global_batches(1, seed=1, epoch=1, **arguments)
    assert first != global_batches(1, seed=2, epoch=0, **arguments)
    unshuffled = global_batches(1, shuffle="none", **arguments)
    assert unshuffled == global_batches(1, shuffle="none", seed=5, epoch=5, **arguments)


def test_one_unshuffled_stream_is_the_order_of_the_files():
    groups = make_row_groups((5, 3), (4,))
    batches = global_batches(1, row_groups=groups, global_batch_size=5, read_streams=1, shuffle="none", drop_last=False)
    rows = [(number, row) for number in range(3) for row in range(groups[number].rows)]
    assert batches == [rows[:5], rows[5:10], rows[10:]]


def test_a_batch_mixes_as_many_row_groups_as_there_are_streams():
    batches = global_batches(1, row_groups=make_row_groups(*[(100,) * 8] * 8), global_batch_size=64, read_streams=16)
    assert all(len({number for number, _ in batch}) >= 16 for batch in batches)


def test_a_terabyte_split_is_planned_in_time():
    # Criteo Terabyte: 4.2 billion rows in 128 thousand row groups, 64 thousand batches.
    groups = make_row_groups(*[(32_768,) * 128] * 1000)
    plan = BatchOrder(row_groups=groups, global_batch_size=65_536, world_size=8, rank=3, start_batch=60_000)
    assert plan.num_batches == 64_000
    assert sum(stop - start for _, start, stop in plan.slices(63_999)) == plan.local_rows(63_999)
    used = sum(plan.local_rows(batch) for batch in range(60_000, 64_000))
    assert len(plan.needs) * 32_768 <= 1.01 * used
