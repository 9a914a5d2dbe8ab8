"""The sharding plan: which worker holds which part of which embedding table.

TorchRec's planner chooses, within what the recipe and the optimizer allow. Its estimates are those of an accelerator
with the given memory on every device: its CPU mode never offers row-wise sharding, which CPU workers need as much.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    KernelConfig,
    PlannerError,
    PlannerErrorType,
    Topology,
    TopologyFactory,
    TrainerConfig,
)
from torchrec.distributed.sharding_plan import (
    ParameterShardingGenerator,
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.units import format_bytes
from rayrec.config.train import EmbeddingOptimizerConfig, Sharding, TrainConfig
from rayrec.models.common.embeddings import build_embeddings
from rayrec.models.common.tables import COLUMN_GRAIN, EmbeddingTable

# Memory kept free of tables: activations, buffers of the all-to-alls, fragmentation.
_RESERVED_SHARE = 0.15


@dataclass(frozen=True)
class ShardPlacement:
    """One shard: rows [row, row + rows) and columns [column, column + columns) of `table` on `rank`."""

    table: str
    sharding: Sharding
    rank: int
    row: int
    rows: int
    column: int
    columns: int
    bytes: int
    """Weights and optimizer state."""


@dataclass(frozen=True)
class TablePlan:
    """Every shard of every table, by table in the model's order."""

    world_size: int
    shards: tuple[ShardPlacement, ...]

    def bytes_by_rank(self) -> list[int]:
        return [sum(s.bytes for s in self.shards if s.rank == rank) for rank in range(self.world_size)]

    def as_json(self) -> dict[str, object]:
        """The content of `plan.json`."""
        return {
            "world_size": self.world_size,
            "bytes_by_rank": self.bytes_by_rank(),
            "shards": [vars(shard) for shard in self.shards],
        }


class EmbeddingTables(nn.Module):
    """A parent for the collection: TorchRec plans and shards children of a module, not the module itself."""

    def __init__(self, embeddings: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, sparse: KeyedJaggedTensor) -> KeyedTensor:
        """Pooled embeddings by key; the order of the keys depends on the plan."""
        return self.embeddings(sparse)


def plan_tables(
    tables: Sequence[EmbeddingTable],
    train: TrainConfig,
    *,
    world_size: int,
    local_world_size: int,
    memory_per_worker: int,
    batch_size: int,
) -> TablePlan:
    """Place every one of a model's tables on `world_size` workers.

    `memory_per_worker` in bytes, `batch_size` rows a worker. Deterministic, so that ranks may each call it. Raises
    UserError where the tables do not fit and ConfigError where the recipe asks for what cannot be done.
    """
    by_name = {table.name: table for table in tables}
    sharding, optimizer = train.sharding, train.embedding_optimizer
    unknown = sorted(set(sharding.tables) - set(by_name))
    if unknown:
        raise ConfigError(f"train.sharding.tables.{unknown[0]}: no such table; the model has {', '.join(by_name)}")
    constraints = {}
    for name, table in by_name.items():
        wanted = sharding.tables.get(name, sharding.default)
        allowed = _choices(optimizer, world_size) if wanted == "auto" else [wanted]
        _check_supported(name, wanted, optimizer)
        constraints[name] = ParameterConstraints(
            sharding_types=list(allowed),
            # Others keep tables in host memory; `dense` is left for data-parallel tables alone.
            compute_kernels=["fused", "dense"],
            min_partition=_columns_per_shard(table.columns, world_size) if wanted == "column_wise" else None,
        )
    planner = EmbeddingShardingPlanner(
        topology=_topology(world_size, local_world_size, memory_per_worker),
        batch_size=batch_size,
        storage_reservation=FixedPercentageStorageReservation(_RESERVED_SHARE),
        constraints=constraints,
        debug=False,
    )
    try:
        with _quiet():
            plan = planner.plan(
                EmbeddingTables(build_embeddings(tables, torch.device("meta"))), [EmbeddingBagCollectionSharder()]
            )
    except PlannerError as error:
        if error.error_type not in {PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.PARTITION}:
            raise
        need = sum(table.rows * _row_bytes(optimizer, table.columns) for table in tables)
        raise UserError(
            f"the embedding tables need {format_bytes(need)} with optimizer state; {world_size} workers of "
            f"{format_bytes(memory_per_worker)} cannot hold them; give more --workers or memory, smaller tables "
            "(preprocess.frequency_limit, preprocess.max_table_size, model.embedding_dim), or fewer sharding overrides"
        ) from None
    shards = []
    for name, parameter in plan.plan["embeddings"].items():
        table = by_name[name]
        kind: Sharding = parameter.sharding_type
        if kind == "data_parallel":
            pieces = [(rank, (0, 0), table.shape) for rank in range(world_size)]
        else:
            spec = parameter.sharding_spec
            pieces = [(s.placement.rank(), tuple(s.shard_offsets), tuple(s.shard_sizes)) for s in spec.shards]
        if kind == "column_wise" and len(pieces) == 1:
            kind = "table_wise"
        for rank, (row, column), (rows, columns) in pieces:
            size = rows * _row_bytes(optimizer, columns)
            shards.append(ShardPlacement(name, kind, rank, row, rows, column, columns, size))
    order = list(by_name)
    shards.sort(key=lambda s: (order.index(s.table), s.row, s.column, s.rank))
    result = TablePlan(world_size, tuple(shards))
    _check_complete(result, tables)
    return result


def torchrec_plan(
    plan: TablePlan, embeddings: EmbeddingBagCollection, device: torch.device, local_world_size: int
) -> ShardingPlan:
    """The same plan as TorchRec takes it, for `EmbeddingTables(embeddings)`."""
    generators = {}
    for table in embeddings.embedding_bag_configs():
        shards = [s for s in plan.shards if s.table == table.name]
        generators[table.name] = _generator(shards)
    module_plan = construct_module_sharding_plan(
        embeddings,
        generators,
        EmbeddingBagCollectionSharder(),
        local_size=local_world_size,
        world_size=plan.world_size,
        device_type=device.type,
    )
    return ShardingPlan({"embeddings": module_plan})


def _automatic(optimizer: EmbeddingOptimizerConfig) -> list[Sharding]:
    """What the planner may choose from: only shardings under which predictions and resumed runs are the same.

    Data-parallel tables are updated by a dense optimizer, whose Adam and LAMB also move rows that the batch does not
    touch. Row-wise Adagrad keeps one moment a row and column shard, which other plans cannot load.
    """
    allowed: list[Sharding] = ["table_wise", "row_wise"]
    if optimizer.kind in {"sgd", "adagrad"}:
        allowed.append("column_wise")
    if optimizer.kind in {"sgd", "adagrad", "rowwise_adagrad"}:
        allowed.append("data_parallel")
    return allowed


def _on_request(optimizer: EmbeddingOptimizerConfig) -> list[Sharding]:
    """What a recipe may ask for: dense Adam, too, which `TrainConfig` gives to all tables or to none."""
    dense: list[Sharding] = ["data_parallel"] if optimizer.kind == "adam" else []
    return [*_automatic(optimizer), *dense]


def _choices(optimizer: EmbeddingOptimizerConfig, world_size: int) -> list[Sharding]:
    return ["table_wise"] if world_size == 1 else _automatic(optimizer)


@contextmanager
def _quiet() -> Iterator[None]:
    """The planner warns on the root logger of every data-parallel table."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)


def _check_supported(table: str, wanted: str, optimizer: EmbeddingOptimizerConfig) -> None:
    if wanted != "auto" and wanted not in _on_request(optimizer):
        raise ConfigError(
            f"train.sharding: table '{table}' cannot be {wanted} under embedding_optimizer '{optimizer.kind}'; "
            f"use one of {', '.join(_on_request(optimizer))}, or another optimizer"
        )


def _columns_per_shard(columns: int, world_size: int) -> int:
    """Widest equal column shards, at most one a worker, in multiples of the grain."""
    grains = columns // COLUMN_GRAIN
    shards = max(n for n in range(1, world_size + 1) if grains % n == 0)
    return columns // shards


def _topology(world_size: int, local_world_size: int, memory_per_worker: int) -> Topology:
    return TopologyFactory.create_topology(
        trainer_config=TrainerConfig(
            world_size=world_size,
            local_world_size=local_world_size,
            hbm_cap_bytes=memory_per_worker,
        ),
        kernel_config=KernelConfig(compute_device="cuda"),
    )


def _row_bytes(optimizer: EmbeddingOptimizerConfig, columns: int) -> int:
    """Bytes of one row of a shard, float32, with its optimizer state."""
    moments = {"sgd": 0, "adagrad": columns, "rowwise_adagrad": 1, "adam": 2 * columns, "lamb": 2 * columns}
    return 4 * (columns + moments[optimizer.kind])


def _generator(shards: list[ShardPlacement]) -> ParameterShardingGenerator:
    match shards[0].sharding:
        case "table_wise":
            return table_wise(rank=shards[0].rank, compute_kernel="fused")
        case "row_wise":
            return row_wise(compute_kernel="fused")
        case "column_wise":
            return column_wise(ranks=[s.rank for s in shards], compute_kernel="fused")
        case "data_parallel":
            return data_parallel()


def _check_complete(plan: TablePlan, tables: Sequence[EmbeddingTable]) -> None:
    """Every table must be in the plan, each of its cells once (data-parallel: once a rank)."""
    for table in tables:
        shards = [s for s in plan.shards if s.table == table.name]
        copies = plan.world_size if shards and shards[0].sharding == "data_parallel" else 1
        cells, wanted = sum(s.rows * s.columns for s in shards), table.rows * table.columns * copies
        assert cells == wanted, f"table {table.name}: the plan places {cells} of {wanted} cells"
