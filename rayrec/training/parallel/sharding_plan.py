"""The sharding plan: which worker holds which shard of which embedding table.

TorchRec's planner chooses, within what the recipe and the optimizer allow. It plans as for an accelerator with the
given memory on every device: its CPU mode never offers row-wise sharding, which CPU workers need as much.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
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
from torchrec.distributed.sharding_plan import placement
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardMetadata,
)
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.common.errors import ConfigError, UserError
from rayrec.common.text import format_bytes
from rayrec.config.train import Sharding, ShardingConfig, TrainConfig
from rayrec.internals.torchrec import set_planned_optimizer
from rayrec.models.common.embedding_tables import COLUMN_GRAIN, EmbeddingTable, build_embeddings
from rayrec.training.optimizers import FUSED_OPTIMIZERS

Kernel = Literal["fused", "fused_uvm_caching", "dense"]
"""TorchRec's kernels: `fused` updates the batch's rows within the backward pass; `fused_uvm_caching` does so, too, but
the shard is in the host's memory, and its GPU caches the rows that it needed last; `dense` leaves a gradient of the
whole shard, which a torch optimizer takes (`rayrec.training.optimizers`)."""

# Row-wise Adagrad keeps a moment for a row of each column shard, which other plans could not load; in a dense kernel
# (RMSprop, FTRL) TorchRec puts column shards of one table that lie on one worker behind each other.
_BY_COLUMNS = {"sgd", "adagrad"}
_OF_COLUMNS: tuple[Sharding, ...] = ("column_wise", "grid_shard")
_OF_NODES: tuple[Sharding, ...] = ("table_row_wise", "grid_shard")
_DOES_NOT_FIT = {
    PlannerErrorType.INSUFFICIENT_STORAGE,
    PlannerErrorType.PARTITION,
    PlannerErrorType.STRICT_CONSTRAINTS,  # all workers together have the memory, but no worker has it for its share
}
_CACHED_SHARE = 0.2
"""The share of a table in the host's memory that its GPU caches: what FBGEMM does and the planner counts on."""
# Memory kept free of tables: activations, buffers of the all-to-alls, fragmentation.
_RESERVED_SHARE = 0.15


@dataclass(frozen=True)
class TableRule:
    """Shardings and kernels that a table may have under its optimizer."""

    optimizer: str
    """The kind of the optimizer."""
    automatic: tuple[Sharding, ...]
    """The planner's choices: shardings under which predictions and resumed runs are the same."""
    on_request: tuple[Sharding, ...]
    """A recipe's choices: dense Adam, too, which `TrainConfig` gives to all tables or to none."""

    def kernel(self, sharding: Sharding) -> Kernel:
        return "fused" if sharding != "data_parallel" and self.optimizer in FUSED_OPTIMIZERS else "dense"

    def row_bytes(self, columns: int, sharding: Sharding) -> int:
        """Return the bytes of one row of a shard in float32: weights, optimizer state, the gradient that a dense kernel
        leaves.
        """
        moments = {"sgd": 0, "rowwise_adagrad": 1, "adagrad": columns, "rmsprop": columns}
        moments |= {"adam": 2 * columns, "ftrl": 2 * columns}
        gradient = columns if self.kernel(sharding) == "dense" else 0
        return 4 * (columns + moments[self.optimizer] + gradient)


def table_rule(table: EmbeddingTable, train: TrainConfig) -> TableRule:
    """Return the rule of a table under the optimizer of its part."""
    kind = train.by_part[train.trained_part(table.part)].embedding_optimizer.kind
    automatic: list[Sharding] = ["table_wise", "row_wise", "table_row_wise"]
    if kind in _BY_COLUMNS:
        automatic += _OF_COLUMNS
    # torch's optimizer updates a data-parallel table, by the fused one's rule where there is one. But torch's Adam also
    # moves rows that are not in the batch, so that the planner must not choose between the two.
    allowed = (*automatic, "data_parallel")
    return TableRule(kind, tuple(automatic) if kind == "adam" else allowed, allowed)


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
    """Weights, optimizer state, and the gradient of the whole shard where its kernel has one; of a shard in the host's
    memory its cache."""
    host_bytes: int = 0
    """Weights and optimizer state of a shard in the host's memory."""


@dataclass(frozen=True)
class ShardingPlan:
    """Every shard of every table, in the order of the model's tables."""

    world_size: int
    shards: tuple[ShardPlacement, ...]

    def bytes_by_rank(self) -> list[int]:
        """Return the bytes on the ranks' devices."""
        return [sum(s.bytes for s in self.shards if s.rank == rank) for rank in range(self.world_size)]

    def host_bytes_by_rank(self) -> list[int]:
        """Return the bytes in the memory of the ranks' machines, for tables that their GPUs have no room for."""
        return [sum(s.host_bytes for s in self.shards if s.rank == rank) for rank in range(self.world_size)]

    def tables_by(self, kernel: Kernel) -> set[str]:
        """Return the names of the tables that a kernel computes."""
        return {s.table for s in self.shards if s.kernel == kernel}

    def as_json(self) -> dict[str, object]:
        """Return the content of `plan.json`."""
        return {
            "world_size": self.world_size,
            "bytes_by_rank": self.bytes_by_rank(),
            "host_bytes_by_rank": self.host_bytes_by_rank(),
            "shards": [vars(shard) for shard in self.shards],
        }


class EmbeddingTables(nn.Module):
    """A parent for the collection: TorchRec plans and shards children of a module, not the module itself."""

    def __init__(self, embeddings: EmbeddingBagCollection) -> None:
        super().__init__()
        self.embeddings = embeddings

    def forward(self, sparse: KeyedJaggedTensor) -> KeyedTensor:
        """Return the pooled embeddings by key; the order of the keys depends on the plan."""
        return self.embeddings(sparse)


def require_shardings(tables: Sequence[EmbeddingTable], train: TrainConfig) -> None:
    """Raise ConfigError where the recipe names a table that there is not, or a sharding that its optimizer forbids."""
    names = [table.name for table in tables]
    unknown = sorted(set(train.sharding.tables) - set(names))
    if unknown:
        raise ConfigError(f"train.sharding.tables.{unknown[0]}: no such table; the model has {', '.join(names)}")
    for table in tables:
        rule = table_rule(table, train)
        wanted = _wanted(table, train.sharding, rule)
        if wanted != "auto" and wanted not in rule.on_request:
            raise ConfigError(
                f"train.sharding: table '{table.name}' cannot be {wanted} under its optimizer '{rule.optimizer}'; "
                f"use one of {', '.join(rule.on_request)}, or another optimizer"
            )


def plan_sharding(
    tables: Sequence[EmbeddingTable],
    train: TrainConfig,
    *,
    world_size: int,
    local_world_size: int,
    memory_per_worker: int,
    batch_size: int,
    host_memory_per_worker: int = 0,
) -> ShardingPlan:
    """Place every one of a model's tables on `world_size` workers, `local_world_size` of which share a node.

    `memory_per_worker` and `host_memory_per_worker` in bytes, `batch_size` rows a worker. The host's memory, which only
    workers with a GPU have beside their own, is used if the tables do not fit otherwise. Deterministic, so that ranks
    may each call it. Raises UserError where the tables do not fit and ConfigError where the recipe asks for what cannot
    be done.
    """
    require_shardings(tables, train)
    rules = {table.name: table_rule(table, train) for table in tables}

    # What each table may be: the sharding that the recipe names, or those that its optimizer suits.
    nodes = world_size // local_world_size if local_world_size > 1 and world_size % local_world_size == 0 else 1
    shardings = {t.name: _sharding(t, train.sharding, rules[t.name], world_size, nodes) for t in tables}

    # The workers, of which the planner has to know the memory; it estimates for GPUs, whatever they are.
    trainer = TrainerConfig(
        world_size=world_size,
        local_world_size=local_world_size,
        hbm_cap_bytes=memory_per_worker,
        ddr_cap_bytes=host_memory_per_worker or None,
    )
    topology = TopologyFactory.create_topology(
        trainer_config=trainer, kernel_config=KernelConfig(compute_device="cuda")
    )
    embeddings = _with_optimizers(tables, rules)

    def plan_with(kernels: list[str]) -> TorchRecPlan:
        constraints = {}
        for table in tables:
            allowed = shardings[table.name]
            shards = {"column_wise": world_size, "grid_shard": nodes}.get(allowed[0] if len(allowed) == 1 else "auto")
            constraints[table.name] = ParameterConstraints(
                sharding_types=list(allowed),
                compute_kernels=kernels if rules[table.name].optimizer in FUSED_OPTIMIZERS else ["fused", "dense"],
                min_partition=None if shards is None else _columns_per_shard(table.columns, shards),
            )
        planner = EmbeddingShardingPlanner(
            topology=topology,
            batch_size=batch_size,
            storage_reservation=FixedPercentageStorageReservation(_RESERVED_SHARE),
            constraints=constraints,
            debug=False,
        )
        return planner.plan(embeddings, [EmbeddingBagCollectionSharder()])

    # First all tables in the workers' own memory; only where they do not fit, some in that of the hosts, which is slow.
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)  # the planner warns on the root logger about every data-parallel table
    try:
        kernels = ["fused", "dense"]  # the planner knows `dense` for data-parallel tables alone
        try:
            plan = plan_with(kernels)
        except PlannerError as error:
            if not host_memory_per_worker or error.error_type not in _DOES_NOT_FIT:
                raise
            plan = plan_with([*kernels, "fused_uvm_caching"])
    except PlannerError as error:
        if error.error_type not in _DOES_NOT_FIT:
            raise
        raise _too_large(tables, rules, world_size, memory_per_worker, host_memory_per_worker, batch_size) from None
    finally:
        logging.disable(previous)

    # Its plan in our words, shard by shard. The planner has only estimated sizes, so they are counted here again.
    found = plan.plan["embeddings"]
    shards = [shard for t in tables for shard in _shards_of(t, rules[t.name], found[t.name], world_size)]
    result = ShardingPlan(world_size, tuple(shards))
    if max(result.bytes_by_rank()) > memory_per_worker or max(result.host_bytes_by_rank()) > host_memory_per_worker:
        raise _too_large(tables, rules, world_size, memory_per_worker, host_memory_per_worker, batch_size)
    return result


def _shards_of(
    table: EmbeddingTable, rule: TableRule, planned: ParameterSharding, world_size: int
) -> list[ShardPlacement]:
    """Return the shards of a table, by their place in it, as TorchRec's planner wants them."""
    kind: Sharding = planned.sharding_type
    if kind == "data_parallel":
        pieces = [(rank, (0, 0), table.shape) for rank in range(world_size)]
    else:
        spec = planned.sharding_spec
        pieces = [(s.placement.rank(), tuple(s.shard_offsets), tuple(s.shard_sizes)) for s in spec.shards]
    if kind in _OF_COLUMNS and len({column for _, (_, column), _ in pieces}) == 1:  # all columns in one piece
        kind = "table_wise" if kind == "column_wise" else "table_row_wise"
    in_host_memory = planned.compute_kernel == "fused_uvm_caching"
    kernel: Kernel = "fused_uvm_caching" if in_host_memory else rule.kernel(kind)
    shards = []
    for rank, (row, column), (rows, columns) in pieces:
        size = rows * rule.row_bytes(columns, kind)
        on_device, on_host = (round(size * _CACHED_SHARE), size) if in_host_memory else (size, 0)
        shards.append(ShardPlacement(table.name, kind, kernel, rank, row, rows, column, columns, on_device, on_host))
    return sorted(shards, key=lambda shard: (shard.row, shard.column, shard.rank))


def torchrec_plan(plan: ShardingPlan, device: torch.device, local_world_size: int) -> TorchRecPlan:
    """Return the same plan as TorchRec takes it, for `EmbeddingTables`."""
    module_plan = EmbeddingModuleShardingPlan()
    for name, of_table in groupby(plan.shards, key=lambda shard: shard.table):
        # By columns first: TorchRec takes the shards of a grid node by node.
        shards = sorted(of_table, key=lambda shard: (shard.column, shard.row, shard.rank))
        sharding = shards[0].sharding
        pieces = [
            ShardMetadata([s.row, s.column], [s.rows, s.columns], placement(device.type, s.rank, local_world_size))
            for s in shards
        ]
        module_plan[name] = ParameterSharding(
            sharding_type=sharding,
            compute_kernel=shards[0].kernel,
            ranks=[shard.rank for shard in shards],
            sharding_spec=None if sharding == "data_parallel" else EnumerableShardingSpec(pieces),
        )
    return TorchRecPlan({"embeddings": module_plan})


def _wanted(table: EmbeddingTable, config: ShardingConfig, rule: TableRule) -> Literal["auto"] | Sharding:
    """Return what the recipe says of a table."""
    wanted = config.tables.get(table.name, config.default)
    if wanted not in rule.on_request and wanted in _OF_COLUMNS and table.dim == 1 and table.name not in config.tables:
        # One column cannot be split: the default is meant for the other tables.
        return "auto"
    return wanted


def _sharding(
    table: EmbeddingTable, config: ShardingConfig, rule: TableRule, world_size: int, nodes: int
) -> tuple[Sharding, ...]:
    """Return the planner's choices for a table.

    Raises ConfigError where the recipe asks for a sharding that these workers cannot have.
    """
    wanted = _wanted(table, config, rule)
    if wanted == "auto":
        if world_size == 1:
            return ("table_wise",)
        return tuple(sharding for sharding in rule.automatic if nodes > 1 or sharding not in _OF_NODES)
    if wanted in _OF_NODES and nodes == 1:
        raise ConfigError(
            f"train.sharding: table '{table.name}' cannot be {wanted}, which needs several nodes with equally "
            "many workers, two or more; use row_wise or column_wise"
        )
    return (wanted,)


def _columns_per_shard(columns: int, world_size: int) -> int:
    """Return the columns of the widest equal column shards, at most one a worker, in multiples of the grain."""
    grains = columns // COLUMN_GRAIN
    shards = max(n for n in range(1, world_size + 1) if grains % n == 0)
    return columns // shards


def _with_optimizers(tables: Sequence[EmbeddingTable], rules: dict[str, TableRule]) -> EmbeddingTables:
    """Return the tables on the meta device, as the planner takes the size of optimizer state: in multiples of the
    weights.
    """
    embeddings = build_embeddings(tables, torch.device("meta"))
    for table in tables:
        rule = rules[table.name]
        more = rule.row_bytes(table.columns, rule.automatic[0]) / (4 * table.columns) - 1
        stands_for = optim.SGD if more < 0.5 else optim.Adagrad if more < 1.5 else optim.Adam
        set_planned_optimizer(embeddings.embedding_bags[table.name].weight, stands_for)
    return EmbeddingTables(embeddings)


def _too_large(
    tables: Sequence[EmbeddingTable],
    rules: dict[str, TableRule],
    world_size: int,
    memory_per_worker: int,
    host_memory_per_worker: int,
    batch_size: int,
) -> UserError:
    need = sum(t.rows * rules[t.name].row_bytes(t.columns, rules[t.name].automatic[0]) for t in tables)
    if need < memory_per_worker // 2:
        return UserError(
            f"train.global_batch_size: a worker of {format_bytes(memory_per_worker)} has no room for the looked-up "
            f"rows of a batch, {batch_size:,} a worker; lower it, or remove sharding overrides"
        )
    host = f" and {format_bytes(host_memory_per_worker)} of their machines" if host_memory_per_worker else ""
    return UserError(
        f"the embedding tables need {format_bytes(need)} with optimizer state; {world_size} workers of "
        f"{format_bytes(memory_per_worker)}{host} cannot hold them; give more --workers or memory, smaller tables "
        "(preprocess.frequency_limit, preprocess.max_table_size, model.embedding_dim), or fewer sharding overrides"
    )
