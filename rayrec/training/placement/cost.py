"""Cost of a training step: counts of bytes and operations, and its time by a model with four constants.

Counted from the sharding plan and the network: bytes of the all-to-alls and the all-reduce, memory, operations.
Estimated: seconds = fixed + operations / (share of the peak) + memory traffic / (share of the bandwidth) + bytes sent /
(share of the links), nothing overlapping. `python -m benchmarks.scaling` shows how far off published figures it is.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rayrec.models.common.ranking import RankingModel
from rayrec.training.placement.hardware import Accelerator, ArithmeticName
from rayrec.training.placement.sharding import ShardingPlan

_ID_BYTES, _LENGTH_BYTES, _FLOAT_BYTES = 4, 4, 4
_ONE_ID = (1.0,)
_TABLE_PASSES = 4
"""How often a looked-up row crosses memory in a step: read; its gradient written and read; the new row written."""
_ACTIVATION_PASSES = 4
"""How often an activation for the backward pass crosses memory: written and read, its gradient written and read."""
_COPIES_OF_WEIGHTS = 4
"""The weights of the dense network, their gradient, two moments."""

# Chosen by hand, in round numbers, so that NVIDIA's published figures of DLRM (TensorFlow 2, DeepLearningExamples) on 1
# and 8 A100s come out; the others that it published were not used (benchmarks/scaling.py, docs/scaling.md).
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
    """The gradients of pooled embeddings, back to the shards."""
    all_reduce: int
    """Gradients of the dense network and of data-parallel tables, by a ring: each rank sends them about twice."""
    to_other_machines: int
    """Bytes of all these that go to other machines."""

    @property
    def total(self) -> int:
        return self.ids + self.pooled + self.gradients + self.all_reduce


@dataclass(frozen=True)
class DenseCost:
    """Operations and activations of the dense network."""

    parameters: int
    operations: float
    """Operations on one sample, forward and backward; a multiplication and an addition are two."""
    activations: float
    """Elements that the backward pass needs for one sample."""


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


@dataclass(frozen=True)
class StepEstimate:
    """The estimate of a training step."""

    batch: int
    """Rows of the global batch."""
    time: StepTime
    sent: Traffic
    memory_by_rank: list[int]

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.time.total

    def as_json(self) -> dict[str, object]:
        return {
            "samples_per_second": self.samples_per_second,
            "seconds": asdict(self.time),
            "sent_bytes": asdict(self.sent),
            "memory_by_rank": self.memory_by_rank,
        }


def estimate_step(
    accelerator: Accelerator,
    precision: ArithmeticName,
    *,
    model: RankingModel,
    plan: ShardingPlan,
    batch: int,
    workers_per_node: int,
) -> StepEstimate:
    """Return the estimate for a step of a global `batch` of `model` (on the meta device, say), sharded by `plan`."""
    schema = model.schema
    dense = dense_cost(model.dense_network, schema.dense_width, sum(output.table.dim for output in model.pooled))
    # As if every list were full.
    ids = {table.name: [float(schema.hotness.get(name, 1)) for name in table.features] for table in model.tables}
    time = step_time(
        accelerator, precision, plan=plan, batch=batch, ids_per_row=ids, dense=dense, workers_per_node=workers_per_node
    )
    sent = step_traffic(plan, batch, ids, dense.parameters, workers_per_node)
    return StepEstimate(batch, time, sent, memory_by_rank(plan, batch, dense))


def dense_cost(network: nn.Module, numeric: int, width: int) -> DenseCost:
    """Count what a dense network does with a few samples of zeros; it may be on the meta device.

    A matrix of `numeric` columns and pooled embeddings of `width` columns in all go in.
    """
    samples = 8
    # In float64: the counter knows torch's own products, and on a CPU those of float32 are not.
    network = copy.deepcopy(network).to_empty(device="cpu").double()
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    dense = torch.zeros(samples, numeric, dtype=torch.float64)
    pooled = torch.zeros(samples, width, dtype=torch.float64, requires_grad=True)
    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(dense, pooled).sum().backward()
    return DenseCost(
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        operations=counter.get_total_flops() / samples,
        activations=sum(saved.values()) / samples,
    )


def step_traffic(
    plan: ShardingPlan,
    batch: int,
    ids_per_row: Mapping[str, Sequence[float]],
    dense_parameters: int,
    workers_per_node: int,
) -> Traffic:
    """Return the bytes that the busiest rank sends for a global `batch` of rows, on machines of `workers_per_node`
    ranks.

    `ids_per_row`: for each table the ids that each of its features has in a row; one feature of 1 where it has none.
    """
    ranks, local = plan.world_size, min(plan.world_size, workers_per_node)
    away = (ranks - 1) / ranks
    # Of what a rank sends to all others, the part for other machines.
    outside = (ranks - local) / max(1, ranks - 1)
    rows = _rows_by_table(plan)
    # A rank sends the ids of its rows to all shards; of a table split by rows each id goes to one shard.
    sent_ids = sum(
        (ids * _ID_BYTES * s.rows / rows[s.table] + _LENGTH_BYTES) * batch / ranks * away
        for s in plan.shards
        if s.sharding != "data_parallel"
        for ids in ids_per_row.get(s.table, _ONE_ID)
    )
    sent_pooled, pooled_outside = [0.0] * ranks, [0.0] * ranks
    replicated = 0
    for shard in plan.shards:
        features = len(ids_per_row.get(shard.table, _ONE_ID))
        of_batch = features * batch * shard.columns * _FLOAT_BYTES
        if shard.sharding == "data_parallel":
            replicated += shard.rows * shard.columns if shard.rank == 0 else 0
        elif shard.sharding in {"table_row_wise", "grid_shard"}:
            # The ranks of a machine add up their sums, each for a part of the rows, and send these to the others.
            leaving = of_batch / local * (ranks - local) / ranks
            sent_pooled[shard.rank] += of_batch * (local - 1) / local + leaving
            pooled_outside[shard.rank] += leaving
        else:
            # Of a table split by rows every shard sends what it has of every sum.
            sent_pooled[shard.rank] += of_batch * away
            pooled_outside[shard.rank] += of_batch * away * outside
    busiest = max(range(ranks), key=sent_pooled.__getitem__)
    all_reduce = 2 * away * _FLOAT_BYTES * (dense_parameters + replicated)
    return Traffic(
        ids=round(sent_ids),
        pooled=round(sent_pooled[busiest]),
        # What a rank received it sends back as gradients: all columns of its own rows; by rows, to every shard.
        gradients=round(sum(sent_pooled) / ranks),
        all_reduce=round(all_reduce),
        to_other_machines=round(
            outside * (sent_ids + all_reduce) + pooled_outside[busiest] + sum(pooled_outside) / ranks
        ),
    )


def step_time(
    accelerator: Accelerator,
    precision: ArithmeticName,
    *,
    plan: ShardingPlan,
    batch: int,
    ids_per_row: Mapping[str, Sequence[float]],
    dense: DenseCost,
    workers_per_node: int,
) -> StepTime:
    """Return the estimate for a step of a global `batch`, on machines of `workers_per_node` accelerators."""
    ranks = plan.world_size
    element = 2 if precision in {"bf16", "fp16"} else 4
    local_rows = batch / ranks
    rows = _rows_by_table(plan)
    activations = dense.activations * local_rows * element * _ACTIVATION_PASSES
    table_bytes = [0.0] * ranks
    for shard in plan.shards:
        looked_up = local_rows if shard.sharding == "data_parallel" else batch * shard.rows / rows[shard.table]
        looked_up *= sum(ids_per_row.get(shard.table, _ONE_ID))
        table_bytes[shard.rank] += looked_up * shard.columns * _FLOAT_BYTES * _TABLE_PASSES
    sent = step_traffic(plan, batch, ids_per_row, dense.parameters, workers_per_node)
    sending = sent.to_other_machines / accelerator.network + (sent.total - sent.to_other_machines) / accelerator.link
    return StepTime(
        fixed=FIXED_SECONDS,
        arithmetic=dense.operations * local_rows / (ARITHMETIC_SHARE * accelerator.arithmetic[precision]),
        memory=(activations + max(table_bytes)) / (MEMORY_SHARE * accelerator.memory_bandwidth),
        communication=sending / LINK_SHARE,
    )


def memory_by_rank(plan: ShardingPlan, batch: int, dense: DenseCost) -> list[int]:
    """Return the bytes on each rank: tables with optimizer state, the dense network with its optimizer's, activations
    in fp32.
    """
    activations = 2 * _FLOAT_BYTES * dense.activations * batch / plan.world_size
    everywhere = _COPIES_OF_WEIGHTS * _FLOAT_BYTES * dense.parameters + activations
    return [round(tables + everywhere) for tables in plan.bytes_by_rank()]


def _rows_by_table(plan: ShardingPlan) -> dict[str, int]:
    rows: dict[str, int] = {}
    for shard in plan.shards:
        rows[shard.table] = max(rows.get(shard.table, 0), shard.row + shard.rows)
    return rows
