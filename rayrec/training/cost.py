"""What a training step moves and computes, counted; and how long it should take, by a model with few constants.

Counted from the sharding plan and the network: bytes of the all-to-alls and the all-reduce, memory, operations.
Estimated: seconds = fixed + operations / (share of the peak) + memory traffic / (share of the bandwidth) + bytes sent /
(share of the links), nothing overlapping. `benchmarks/scaling.py` fits the constants and shows how far off it is.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rayrec.training.hardware import Accelerator, ArithmeticName
from rayrec.training.sharding import ShardPlacement, TablePlan

_ID_BYTES, _LENGTH_BYTES, _FLOAT_BYTES = 4, 4, 4
_TABLE_PASSES = 4
"""Of a looked-up row over memory in a step: read, its gradient written and read, the row written back (read for free)."""
_ACTIVATION_PASSES = 4
"""Of an activation that the backward pass needs: written, read, its gradient written and read."""

ARITHMETIC_SHARE = 0.50
MEMORY_SHARE = 0.50
LINK_SHARE = 0.70
FIXED_SECONDS = 2.0e-3


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends in a step; the most of any rank."""

    ids: int
    """Ids and lengths, to the shards that hold their rows."""
    pooled: int
    """Pooled embeddings, to the ranks that have the rows of the batch."""
    gradients: int
    """Their gradients, back."""
    all_reduce: int
    """Gradients of the dense network and of data-parallel tables, by a ring: each rank sends them about twice."""

    @property
    def total(self) -> int:
        return self.ids + self.pooled + self.gradients + self.all_reduce


@dataclass(frozen=True)
class DenseCost:
    """The dense network's, of one sample, forward and backward; its parameters."""

    parameters: int
    operations: float
    activations: float
    """Elements that the backward pass needs."""


def dense_cost(network: nn.Module, numeric: int, width: int) -> DenseCost:
    """Run a few samples of zeros through a dense network on the meta device, and count.

    `numeric` features and pooled embeddings of `width` go in.
    """
    samples = 8
    network = copy.deepcopy(network).to_empty(device="cpu")
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    dense = torch.zeros(samples, numeric)
    pooled = torch.zeros(samples, width, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(dense, pooled).sum().backward()
    return DenseCost(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        operations=counter.get_total_flops() / samples,
        activations=sum(saved.values()) / samples,
    )


def step_traffic(
    plan: TablePlan, batch: int, ids_per_row: Mapping[str, float], dense_parameters: int, pooled_bytes: int = 4
) -> Traffic:
    """Bytes that the busiest rank sends for a global `batch` of rows; `ids_per_row` by table.

    `pooled_bytes`: of an element of a pooled embedding on the way.
    """
    ranks = plan.world_size
    away = (ranks - 1) / ranks
    # A rank sends the ids of its rows to all shards; of a table split by rows each id goes to one shard.
    sent_ids = sum(
        (ids_per_row.get(s.table, 1.0) * _ID_BYTES * s.rows / _rows(plan, s) + _LENGTH_BYTES) * batch / ranks * away
        for s in plan.shards
        if s.sharding != "data_parallel"
    )
    sent_pooled = [0.0] * ranks
    replicated = 0
    for shard in plan.shards:
        if shard.sharding == "data_parallel":
            replicated += shard.rows * shard.columns if shard.rank == 0 else 0
        else:
            sent_pooled[shard.rank] += batch * shard.columns * pooled_bytes * away
    pooled = max(sent_pooled)
    return Traffic(
        ids=round(sent_ids),
        pooled=round(pooled),
        # What a rank received it sends back as gradients: all columns of its own rows; by rows, from every shard.
        gradients=round(sum(sent_pooled) / ranks),
        all_reduce=round(2 * away * _FLOAT_BYTES * (dense_parameters + replicated)),
    )


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by what they are spent on."""

    fixed: float
    arithmetic: float
    memory: float
    communication: float

    @property
    def total(self) -> float:
        return self.fixed + self.arithmetic + self.memory + self.communication


def step_time(
    accelerator: Accelerator,
    precision: ArithmeticName,
    *,
    plan: TablePlan,
    batch: int,
    ids_per_row: Mapping[str, float],
    dense: DenseCost,
    workers_per_node: int,
) -> StepTime:
    """The estimate for a step of a global `batch`, on machines of `workers_per_node` accelerators."""
    ranks = plan.world_size
    half = precision in {"bf16", "fp16"}
    local_rows = batch / ranks
    activations = dense.activations * local_rows * (2 if half else 4) * _ACTIVATION_PASSES
    table_bytes = [0.0] * ranks
    for shard in plan.shards:
        rows_read = batch * ids_per_row.get(shard.table, 1.0) * shard.rows / _rows(plan, shard)
        if shard.sharding == "data_parallel":
            rows_read = local_rows * ids_per_row.get(shard.table, 1.0)
        table_bytes[shard.rank] += rows_read * shard.columns * _FLOAT_BYTES * _TABLE_PASSES
    traffic = step_traffic(plan, batch, ids_per_row, dense.parameters)
    # Of what a rank sends to all others, the part for other machines takes the network.
    outside = (ranks - min(ranks, workers_per_node)) / max(1, ranks - 1)
    seconds_by_byte = outside / accelerator.network + (1 - outside) / accelerator.link
    return StepTime(
        fixed=FIXED_SECONDS,
        arithmetic=dense.operations * local_rows / (ARITHMETIC_SHARE * accelerator.arithmetic[precision]),
        memory=(activations + max(table_bytes)) / (MEMORY_SHARE * accelerator.memory_bandwidth),
        communication=traffic.total * seconds_by_byte / LINK_SHARE if ranks > 1 else 0.0,
    )


def memory_by_rank(plan: TablePlan, batch: int, dense: DenseCost, activation_bytes: int = 4) -> list[int]:
    """Bytes on each rank: tables with optimizer state, the dense network with gradient and two moments, activations."""
    rows = batch / plan.world_size
    fixed = 4 * _FLOAT_BYTES * dense.parameters + dense.activations * rows * activation_bytes * 2
    return [round(tables + fixed) for tables in plan.bytes_by_rank()]


def _rows(plan: TablePlan, shard: ShardPlacement) -> int:
    """Rows of the shard's whole table."""
    return max(s.row + s.rows for s in plan.shards if s.table == shard.table)


def as_json(value: Any) -> dict[str, float]:
    """The fields of one of these."""
    return dict(vars(value))
