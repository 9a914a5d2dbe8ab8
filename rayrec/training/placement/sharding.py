"""The sharding plan: which worker holds which part of which embedding table.

TorchRec's planner chooses, within what the recipe and the optimizer allow. It plans as for an accelerator with the
given memory on every device: its CPU mode never offers row-wise sharding, which CPU workers need as much.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn, optim
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import (
    KernelConfig,
    PlannerError,
    PlannerErrorType,
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
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.units import format_bytes
from rayrec.config.train import Sharding, ShardingConfig, TrainConfig
from rayrec.internals.torchrec import set_planned_optimizer
from rayrec.models.common.tables import COLUMN_GRAIN, EmbeddingTable, build_embeddings

Kernel = Literal["fused", "dense"]
"""TorchRec's kernels: `fused` updates the batch's rows within the backward pass; `dense` leaves a gradient of the whole
shard, which a torch optimizer takes (`rayrec.training.optimizers.tables`)."""

_FUSED = {"sgd", "adagrad", "rowwise_adagrad", "adam", "lamb"}
# Row-wise Adagrad keeps a moment for a row of each column shard, which other plans could not load; in a dense kernel
# (RMSprop, FTRL) TorchRec puts column shards of one table that lie on one worker behind each other.
_BY_COLUMNS = {"sgd", "adagrad"}
# A data-parallel table is updated by torch's optimizer, which is the fused one's rule, or the only one; but Adam and
# LAMB also move rows that are not in the batch.
_REPLICATED = {"sgd", "adagrad", "rowwise_adagrad", "rmsprop", "ftrl"}
# Memory kept free of tables: activations, buffers of the all-to-alls, fragmentation.
_RESERVED_SHARE = 0.15


@dataclass(frozen=True)
class TableRule:
    """What one table may have under its optimizer."""

    optimizer: str
    """The kind of the optimizer."""
    automatic: tuple[Sharding, ...]
    """The planner's choices: shardings under which predictions and resumed runs are the same."""
    on_request: tuple[Sharding, ...]
    """A recipe's choices: dense Adam, too, which `TrainConfig` gives to all tables or to none."""

    def kernel(self, sharding: Sharding) -> Kernel:
        return "fused" if sharding != "data_parallel" and self.optimizer in _FUSED else "dense"

    def row_bytes(self, columns: int, sharding: Sharding) -> int:
        """Bytes of one row of a shard in float32: weights, optimizer state, the gradient that a dense kernel leaves."""
        moments = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": columns, "rmsprop": columns}
        gradient = columns if self.kernel(sharding) == "dense" else 0
        return 4 * (columns + moments.get(self.optimizer, 2 * columns) + gradient)


def table_rule(table: EmbeddingTable, train: TrainConfig) -> TableRule:
    """The rule of a table under the optimizer of its part."""
    kind = train.by_part[train.trained_part(table.part)].embedding_optimizer.kind
    automatic: list[Sharding] = ["table_wise", "row_wise"]
    if kind in _BY_COLUMNS:
        automatic.append("column_wise")
    if kind in _REPLICATED:
        automatic.append("data_parallel")
    return TableRule(kind, tuple(automatic), (*automatic, "data_parallel") if kind == "adam" else tuple(automatic))


@dataclass(frozen=True)
class ShardPlacement:
    """One shard: rows [row, row + rows) and columns [column, column + columns) of `table` on `rank`."""

    table: str
    sharding: Sharding
    kernel: Kernel
    rank: int
    row: int
    rows: int
    column: int
    columns: int
    bytes: int
    """Weights, optimizer state, and the gradient of the whole shard where its kernel has one."""


@dataclass(frozen=True)
class ShardingPlan:
    """Every shard of every table, in the order of the model's tables."""

    world_size: int
    shards: tuple[ShardPlacement, ...]

    def bytes_by_rank(self) -> list[int]:
        return [sum(s.bytes for s in self.shards if s.rank == rank) for rank in range(self.world_size)]

    def tables_by(self, kernel: Kernel) -> set[str]:
        """Names of the tables that a kernel computes."""
        return {s.table for s in self.shards if s.kernel == kernel}

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


def plan_sharding(
    tables: Sequence[EmbeddingTable],
    train: TrainConfig,
    *,
    world_size: int,
    local_world_size: int,
    memory_per_worker: int,
    batch_size: int,
) -> ShardingPlan:
    """Place every one of a model's tables on `world_size` workers.

    `memory_per_worker` in bytes, `batch_size` rows a worker. Deterministic, so that ranks may each call it. Raises
    UserError where the tables do not fit and ConfigError where the recipe asks for what cannot be done.
    """
    by_name = {table.name: table for table in tables}
    rules = {table.name: table_rule(table, train) for table in tables}
    unknown = sorted(set(train.sharding.tables) - set(by_name))
    if unknown:
        raise ConfigError(f"train.sharding.tables.{unknown[0]}: no such table; the model has {', '.join(by_name)}")
    constraints = {}
    for table in tables:
        allowed = _sharding(table, train.sharding, rules[table.name], world_size)
        constraints[table.name] = ParameterConstraints(
            sharding_types=list(allowed),
            # Others keep tables in host memory. The planner knows `dense` for data-parallel tables alone.
            compute_kernels=["fused", "dense"],
            min_partition=_columns_per_shard(table.columns, world_size) if allowed == ("column_wise",) else None,
        )
    trainer = TrainerConfig(world_size=world_size, local_world_size=local_world_size, hbm_cap_bytes=memory_per_worker)
    planner = EmbeddingShardingPlanner(
        topology=TopologyFactory.create_topology(
            trainer_config=trainer, kernel_config=KernelConfig(compute_device="cuda")
        ),
        batch_size=batch_size,
        storage_reservation=FixedPercentageStorageReservation(_RESERVED_SHARE),
        constraints=constraints,
        debug=False,
    )
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the planner warns on the root logger about every data-parallel table
    try:
        plan = planner.plan(_with_optimizers(tables, rules), [EmbeddingBagCollectionSharder()])
    except PlannerError as error:
        if error.error_type not in {PlannerErrorType.INSUFFICIENT_STORAGE, PlannerErrorType.PARTITION}:
            raise
        raise _too_large(tables, rules, world_size, memory_per_worker) from None
    finally:
        logging.disable(previous)
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
            rule = rules[name]
            size = rows * rule.row_bytes(columns, kind)
            shards.append(ShardPlacement(name, kind, rule.kernel(kind), rank, row, rows, column, columns, size))
    order = list(by_name)
    shards.sort(key=lambda s: (order.index(s.table), s.row, s.column, s.rank))
    result = ShardingPlan(world_size, tuple(shards))
    if max(result.bytes_by_rank()) > memory_per_worker:
        raise _too_large(tables, rules, world_size, memory_per_worker)
    return result


def torchrec_plan(
    plan: ShardingPlan, embeddings: EmbeddingBagCollection, device: torch.device, local_world_size: int
) -> TorchRecPlan:
    """The same plan as TorchRec takes it, for `EmbeddingTables(embeddings)`."""
    generators = {
        table.name: _generator([s for s in plan.shards if s.table == table.name])
        for table in embeddings.embedding_bag_configs()
    }
    module_plan = construct_module_sharding_plan(
        embeddings,
        generators,
        EmbeddingBagCollectionSharder(),
        local_size=local_world_size,
        world_size=plan.world_size,
        device_type=device.type,
    )
    return TorchRecPlan({"embeddings": module_plan})


def _sharding(table: EmbeddingTable, config: ShardingConfig, rule: TableRule, world_size: int) -> tuple[Sharding, ...]:
    """The planner's choices for a table. Raises ConfigError where the recipe asks for a sharding it cannot have."""
    wanted = config.tables.get(table.name, config.default)
    if wanted not in rule.on_request and wanted == "column_wise" and table.dim == 1 and table.name not in config.tables:
        # One column cannot be split: the default is meant for the other tables.
        wanted = "auto"
    if wanted == "auto":
        return ("table_wise",) if world_size == 1 else rule.automatic
    if wanted not in rule.on_request:
        raise ConfigError(
            f"train.sharding: table '{table.name}' cannot be {wanted} under its optimizer '{rule.optimizer}'; "
            f"use one of {', '.join(rule.on_request)}, or another optimizer"
        )
    return (wanted,)


def _columns_per_shard(columns: int, world_size: int) -> int:
    """Columns of the widest equal column shards, at most one a worker, in multiples of the grain."""
    grains = columns // COLUMN_GRAIN
    shards = max(n for n in range(1, world_size + 1) if grains % n == 0)
    return columns // shards


def _with_optimizers(tables: Sequence[EmbeddingTable], rules: dict[str, TableRule]) -> EmbeddingTables:
    """The tables on the meta device, as the planner takes the size of optimizer state: in multiples of the weights."""
    embeddings = build_embeddings(tables, torch.device("meta"))
    for table in tables:
        rule = rules[table.name]
        more = rule.row_bytes(table.columns, rule.automatic[0]) / (4 * table.columns) - 1
        stands_for = optim.SGD if more < 0.5 else optim.Adagrad if more < 1.5 else optim.Adam
        set_planned_optimizer(embeddings.embedding_bags[table.name].weight, stands_for)
    return EmbeddingTables(embeddings)


def _too_large(
    tables: Sequence[EmbeddingTable], rules: dict[str, TableRule], world_size: int, memory_per_worker: int
) -> UserError:
    need = sum(t.rows * rules[t.name].row_bytes(t.columns, rules[t.name].automatic[0]) for t in tables)
    return UserError(
        f"the embedding tables need {format_bytes(need)} with optimizer state; {world_size} workers of "
        f"{format_bytes(memory_per_worker)} cannot hold them; give more --workers or memory, smaller tables "
        "(preprocess.frequency_limit, preprocess.max_table_size, model.embedding_dim), or fewer sharding overrides"
    )


def _generator(shards: list[ShardPlacement]) -> ParameterShardingGenerator:
    kernel = shards[0].kernel
    match shards[0].sharding:
        case "table_wise":
            return table_wise(rank=shards[0].rank, compute_kernel=kernel)
        case "row_wise":
            return row_wise(compute_kernel=kernel)
        case "column_wise":
            return column_wise(ranks=[s.rank for s in shards], compute_kernel=kernel)
        case "data_parallel":
            return data_parallel()
