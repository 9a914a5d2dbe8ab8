"""The sharding plan: complete, within memory, as the recipe says."""

from dataclasses import replace
from typing import Any

import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.units import format_bytes, parse_bytes
from rayrec.config import TrainConfig
from rayrec.models.common.tables import EmbeddingTable, UniformByRows
from rayrec.training.placement.sharding import ShardingPlan, plan_sharding

# The cardinalities of Criteo Terabyte at frequency limit 15.
CRITEO = [
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4, 968, 15,
    8165896, 2675940, 7156453, 302516, 12022, 97, 35,
]  # fmt: skip
SMALL = [1000, 50, 7, 20000]


def _plan(
    rows: list[int], dim: int, workers: int, memory: str, optimizer: str = "sgd", wide: bool = False, **sharding: Any
) -> ShardingPlan:
    tables = [EmbeddingTable(f"C{i}", (f"C{i}",), n, dim, UniformByRows()) for i, n in enumerate(rows)]
    if wide:
        tables += [replace(table, name=f"{table.name}_wide", dim=1, part="wide") for table in tables]
    return plan_sharding(
        tables,
        TrainConfig.model_validate(
            {
                "sharding": sharding,
                "embedding_optimizer": {"kind": optimizer},
                "parts": {"wide": {"embedding_optimizer": {"kind": "ftrl"}}} if wide else {},
            }
        ),
        world_size=workers,
        local_world_size=workers,
        memory_per_worker=parse_bytes(memory),
        batch_size=1024,
    )


def _cells(plan: ShardingPlan, table: str) -> set[tuple[int, int]]:
    """Cells of a table by shard corner and size; asserts that no cell is covered twice."""
    cells: set[tuple[int, int]] = set()
    for shard in (s for s in plan.shards if s.table == table):
        block = {
            (r, c)
            for r in range(shard.row, shard.row + shard.rows)
            for c in range(shard.column, shard.column + shard.columns)
        }
        if shard.sharding != "data_parallel":
            assert not cells & block
        cells |= block
    return cells


@pytest.mark.parametrize("sharding", ["auto", "table_wise", "row_wise", "column_wise", "data_parallel"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_cell_lies_somewhere_once(workers: int, sharding: str) -> None:
    plan = _plan([50, 7, 9], 8, workers, "1GB", default=sharding)
    for table, rows in (("C0", 50), ("C1", 7), ("C2", 9)):
        assert len(_cells(plan, table)) == rows * 8
    if sharding == "data_parallel":
        assert len(plan.shards) == 3 * workers
    assert len(plan.bytes_by_rank()) == workers


def test_overrides_win_table_by_table() -> None:
    plan = _plan(SMALL, 16, 2, "1GB", default="table_wise", tables={"C0": "row_wise", "C3": "column_wise"})
    kinds = {s.table: s.sharding for s in plan.shards}
    assert kinds == {"C0": "row_wise", "C1": "table_wise", "C2": "table_wise", "C3": "column_wise"}


@pytest.mark.parametrize(
    ("workers", "memory", "fits"), [(1, "80GB", True), (8, "3GB", True), (2, "12GB", True), (2, "8GB", False)]
)
def test_tables_of_criteo_terabyte(workers: int, memory: str, fits: bool) -> None:
    if not fits:
        with pytest.raises(UserError, match=r"need 15.6 GiB .* 2 workers of 7.5 GiB cannot hold them"):
            _plan(CRITEO, 128, workers, memory)
        return
    plan = _plan(CRITEO, 128, workers, memory)
    assert max(plan.bytes_by_rank()) <= parse_bytes(memory)
    assert sum(plan.bytes_by_rank()) >= sum(CRITEO) * 512


def test_a_table_beyond_one_worker_is_split() -> None:
    plan = _plan([40_000_000, 100], 64, 4, "4GB")
    assert {s.rank for s in plan.shards if s.table == "C0"} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("optimizer", "sharding", "message"),
    [
        ("rowwise_adagrad", {"default": "column_wise"}, "'C0' cannot be column_wise under its optimizer 'rowwise_"),
        ("rmsprop", {"tables": {"C1": "column_wise"}}, "'C1' cannot be column_wise .* use one of table_wise, row_wise"),
        ("sgd", {"wide": True, "tables": {"C1_wide": "column_wise"}}, "'C1_wide' cannot be column_wise .* 'ftrl'"),
        ("lamb", {"tables": {"C1": "data_parallel"}}, "'C1' cannot be data_parallel"),
        ("sgd", {"tables": {"C9": "row_wise"}}, r"tables\.C9: no such table; the model has C0, C1, C2, C3"),
    ],
)
def test_what_cannot_be_done_is_refused(optimizer: str, sharding: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _plan(SMALL, 16, 2, "1GB", optimizer, **sharding)


@pytest.mark.parametrize(("dim", "columns"), [(8, [4, 4]), (10, [12]), (1, [4]), (19, [20]), (30, [16, 16])])
def test_columns_are_stored_and_cut_in_fours(dim: int, columns: list[int]) -> None:
    plan = _plan([100], dim, 2, "1GB", default="column_wise")
    assert [shard.columns for shard in plan.shards] == columns


@pytest.mark.parametrize("sharding", ["auto", "table_wise", "row_wise", "column_wise", "data_parallel"])
def test_wide_tables_have_a_kernel_and_a_sharding_of_their_own(sharding: str) -> None:
    plan = _plan(SMALL, 16, 2, "1GB", default=sharding, wide=True)
    by_part = {part: [s for s in plan.shards if s.table.endswith("_wide") == (part == "wide")] for part in ("", "wide")}
    assert len({s.table for s in by_part["wide"]}) == len({s.table for s in by_part[""]}) == len(SMALL)
    assert {s.kernel for s in by_part["wide"]} == {"dense"} and {s.columns for s in by_part["wide"]} == {4}
    assert {s.kernel for s in by_part[""] if s.sharding != "data_parallel"} <= {"fused"}
    if sharding == "column_wise":
        assert {s.sharding for s in by_part[""]} == {"column_wise"}
        assert "column_wise" not in {s.sharding for s in by_part["wide"]}
    elif sharding != "auto":
        assert {s.sharding for s in plan.shards} == {sharding}


@pytest.mark.parametrize(
    ("optimizer", "sharding", "floats"),
    [
        ("sgd", "table_wise", 16),
        ("sgd", "data_parallel", 2 * 16),
        ("adagrad", "row_wise", 2 * 16),
        ("adagrad", "data_parallel", 3 * 16),
        ("rowwise_adagrad", "table_wise", 16 + 1),
        ("adam", "table_wise", 3 * 16),
        ("rmsprop", "table_wise", 3 * 16),
    ],
)
def test_bytes_count_optimizer_state_and_whole_gradients(optimizer: str, sharding: str, floats: int) -> None:
    plan = _plan([1000], 16, 2, "1GB", optimizer, wide=True, default="table_wise", tables={"C0": sharding})
    copies = 2 if sharding == "data_parallel" else 1
    assert sum(s.bytes for s in plan.shards if s.table == "C0") == 4 * 1000 * floats * copies
    assert sum(s.bytes for s in plan.shards if s.table == "C0_wide") == 4 * 1000 * 4 * 4  # FTRL: w, n, z, gradient


def test_the_planner_makes_room_for_optimizer_state() -> None:
    assert _plan([1_000_000], 64, 1, "400MB").bytes_by_rank() == [256_000_000]
    for optimizer in ("adagrad", "rmsprop"):
        with pytest.raises(UserError, match=r"need .* with optimizer state; 1 workers of 381.5 MiB cannot hold them"):
            _plan([1_000_000], 64, 1, "400MB", optimizer)


@pytest.mark.parametrize(
    ("text", "count", "shown"),
    [("80GB", 80 * 10**9, "74.5 GiB"), ("1.5 GiB", 3 * 2**29, "1.5 GiB"), ("512KB", 512_000, "500.0 KiB")],
)
def test_amounts_of_memory(text: str, count: int, shown: str) -> None:
    assert parse_bytes(text) == count
    assert format_bytes(count) == shown


@pytest.mark.parametrize("text", ["80", "80 gigs", "-1GB", ""])
def test_an_amount_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as 80GB"):
        parse_bytes(text)
