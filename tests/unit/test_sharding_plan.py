"""The sharding plan: complete, within memory, as the recipe says."""

from dataclasses import replace
from typing import Any

import pytest

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.text import format_bytes, parse_bytes
from rayrec.config import TrainConfig
from rayrec.models.common.embedding_tables import EmbeddingTable, UniformByRows
from rayrec.training.parallel.sharding_plan import ShardingPlan, plan_sharding

# The cardinalities of Criteo Terabyte at frequency limit 15.
CRITEO = [
    7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4, 968, 15,
    8165896, 2675940, 7156453, 302516, 12022, 97, 35,
]  # fmt: skip
SMALL = [1000, 50, 7, 20000]


def _plan(
    rows: list[int],
    dim: int,
    workers: int,
    memory: str,
    optimizer: str = "sgd",
    wide: bool = False,
    per_node: int | None = None,
    host_memory: str = "0GB",
    **sharding: Any,
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
        local_world_size=per_node or workers,
        memory_per_worker=parse_bytes(memory),
        host_memory_per_worker=parse_bytes(host_memory),
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
        ("adam", {"tables": {"C1": "column_wise"}}, "'C1' cannot be column_wise"),
        ("sgd", {"tables": {"C1": "table_row_wise"}}, "'C1' cannot be table_row_wise, which needs several nodes"),
        ("sgd", {"default": "grid_shard", "per_node": 1}, "'C0' cannot be grid_shard, which needs several nodes"),
        ("rowwise_adagrad", {"default": "grid_shard", "per_node": 1}, "'C0' cannot be grid_shard under its optimizer"),
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


def test_what_gpus_have_no_room_for_lies_in_the_memory_of_their_machine() -> None:
    rows = [40_000_000, 30_000_000, 1000]
    with pytest.raises(UserError, match=r"need 16.7 GiB .*; 1 workers of 7.5 GiB cannot hold them"):
        _plan(rows, 64, 1, "8GB")
    plan = _plan(rows, 64, 1, "8GB", host_memory="40GB")
    kernels = {shard.table: shard.kernel for shard in plan.shards}
    assert kernels["C0"] == "fused_uvm_caching" and kernels["C2"] == "fused"
    assert plan.tables_by("fused") | plan.tables_by("fused_uvm_caching") == {"C0", "C1", "C2"}
    for shard in plan.shards:
        size = shard.rows * 64 * 4
        cached = shard.kernel == "fused_uvm_caching"
        assert (shard.bytes, shard.host_bytes) == ((size // 5, size) if cached else (size, 0))
    assert plan.bytes_by_rank()[0] <= parse_bytes("8GB")
    with pytest.raises(UserError, match=r"1 workers of 7.5 GiB and 4.7 GiB of their machines cannot hold them"):
        _plan(rows, 64, 1, "8GB", host_memory="5GB")


def test_a_whole_table_that_no_worker_can_hold() -> None:
    with pytest.raises(UserError, match=r"need 4.8 GiB .*; 2 workers of 3.7 GiB cannot .* fewer sharding ov"):
        _plan([20_000_000], 64, 2, "4GB", default="table_wise")
    (shard,) = _plan([20_000_000], 64, 2, "4GB", default="table_wise", host_memory="10GB").shards
    assert shard.kernel == "fused_uvm_caching"


def test_the_memory_of_machines_is_used_by_no_table_that_fits() -> None:
    for rows, workers in (([40_000_000, 1000], 4), (SMALL, 1)):
        assert _plan(rows, 64, workers, "8GB", host_memory="40GB") == _plan(rows, 64, workers, "8GB")


def test_a_whole_gradient_needs_the_gpu() -> None:
    """Of a kernel that leaves one there is no variant for tables in the host's memory."""
    with pytest.raises(UserError, match="cannot hold them"):
        _plan([4_000_000], 64, 1, "2GB", "ftrl", host_memory="40GB")


@pytest.mark.parametrize("sharding", ["auto", "table_row_wise", "grid_shard"])
def test_tables_on_several_nodes(sharding: str) -> None:
    rows = [400, 300, 7]
    plan = _plan(rows, 256, 4, "1GB", per_node=2, default=sharding)
    for table, count in enumerate(rows):
        assert len(_cells(plan, f"C{table}")) == count * 256
        shards = [s for s in plan.shards if s.table == f"C{table}"]
        nodes = [{s.rank // 2 for s in shards if s.column == column} for column in {s.column for s in shards}]
        if sharding != "auto":
            assert {s.sharding for s in shards} == {sharding}
            assert all(len(node) == 1 for node in nodes), "one node holds all rows of its columns"
            assert len({node.pop() for node in nodes}) == (2 if sharding == "grid_shard" else 1)


def test_the_planner_keeps_rows_of_a_table_on_one_node() -> None:
    """Links between nodes are slow, so what one worker cannot hold is split over the workers beside it."""
    rows = [40_000_000, 30_000_000, 10_000_000, 1000]
    plan = _plan(rows, 128, 16, "8GB", per_node=8)
    split = {s.table for s in plan.shards if s.sharding == "table_row_wise"}
    assert "C0" in split
    for table in split:
        assert len({s.rank // 8 for s in plan.shards if s.table == table}) == 1
    assert not {s.sharding for s in _plan(rows, 128, 16, "8GB").shards} & {"table_row_wise", "grid_shard"}


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
