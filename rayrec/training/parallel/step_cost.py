"""What a training step costs on a cluster: counts of bytes and operations, and its time by a model of four constants.

Counted from the sharding plan and the network: bytes of the all-to-alls and the all-reduce, memory, operations.
Estimated: seconds = fixed + operations / (share of the peak) + memory traffic / (share of the bandwidth) + bytes sent /
(share of the links), nothing overlapping. `python -m benchmarks.scaling` shows how far off published figures it is.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from rayrec.models.common.ranking import RankingModel
from rayrec.training.parallel.accelerators import Accelerator, ArithmeticName
from rayrec.training.parallel.sharding_plan import ShardingPlan, ShardPlacement

_ID_BYTES, _LENGTH_BYTES, _FLOAT_BYTES = 4, 4, 4
_ONE_ID = (1.0,)
_TABLE_PASSES = 4
"""How often a looked-up row crosses memory in a step: read; its gradient written and read; the new row written."""
_ACTIVATION_PASSES = 4
"""How often an activation for the backward pass crosses memory: written and read, its gradient written and read."""
_COPIES_OF_WEIGHTS = 4
"""The weights of the dense network, their gradient, two moments."""
_COUNTED_SAMPLES = 8

# Chosen by hand, in round numbers, so that NVIDIA's published figures of DLRM (TensorFlow 2, DeepLearningExamples) on 1
# and 8 A100s come out; the others that it published were not used (benchmarks/scaling.py, docs/scaling.md).
_ARITHMETIC_SHARE = 0.50
_MEMORY_SHARE = 0.50
_LINK_SHARE = 0.70
_FIXED_SECONDS = 2.0e-3


@dataclass(frozen=True)
class SentBytes:
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

    @classmethod
    def of(cls, network: nn.Module, numeric: int, width: int) -> "DenseCost":
        """Count what a dense network does with a few samples of zeros; it may be on the meta device.

        A matrix of `numeric` columns and pooled embeddings of `width` columns in all go in.
        """
        # In float64: the counter knows torch's own products, and on a CPU those of float32 are not.
        network = copy.deepcopy(network).to_empty(device="cpu").double()
        weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
        saved: dict[int, int] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
            return tensor

        dense = torch.zeros(_COUNTED_SAMPLES, numeric, dtype=torch.float64)
        pooled = torch.zeros(_COUNTED_SAMPLES, width, dtype=torch.float64, requires_grad=True)
        counter = FlopCounterMode(display=False)
        with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            network(dense, pooled).sum().backward()
        return cls(
            parameters=sum(parameter.numel() for parameter in network.parameters()),
            operations=counter.get_total_flops() / _COUNTED_SAMPLES,
            activations=sum(saved.values()) / _COUNTED_SAMPLES,
        )


@dataclass(frozen=True)
class StepCost:
    """A training step on a global batch of rows, by a sharding plan, on machines of equally many ranks."""

    plan: ShardingPlan
    batch: int
    """Rows of the global batch."""
    dense: DenseCost
    ids_per_row: Mapping[str, Sequence[float]]
    """For each table the ids that each of its features has in a row; one feature of 1 where it has none."""
    workers_per_node: int

    @classmethod
    def of(cls, model: RankingModel, plan: ShardingPlan, batch: int, workers_per_node: int) -> "StepCost":
        """Return the cost for `model`, which may be on the meta device; as if every list of ids were full."""
        schema = model.schema
        dense = DenseCost.of(model.dense_network, schema.dense_width, sum(output.table.dim for output in model.pooled))
        ids = {table.name: [float(schema.hotness.get(name, 1)) for name in table.features] for table in model.tables}
        return cls(plan, batch, dense, ids, workers_per_node)

    @cached_property
    def sent(self) -> SentBytes:
        """The bytes that the busiest rank sends."""
        ranks, local = self.plan.world_size, min(self.plan.world_size, self.workers_per_node)
        away = (ranks - 1) / ranks
        # Of what a rank sends to all others, the part for other machines.
        outside = (ranks - local) / max(1, ranks - 1)
        # A rank sends the ids of its rows to all shards; of a table split by rows each id goes to one shard.
        sent_ids = sum(
            (ids * _ID_BYTES * self._share_of_rows(shard) + _LENGTH_BYTES) * self.batch / ranks * away
            for shard in self.plan.shards
            if shard.sharding != "data_parallel"
            for ids in self._ids(shard)
        )
        sent_pooled, pooled_outside = [0.0] * ranks, [0.0] * ranks
        replicated = 0
        for shard in self.plan.shards:
            of_batch = len(self._ids(shard)) * self.batch * shard.columns * _FLOAT_BYTES
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
        all_reduce = 2 * away * _FLOAT_BYTES * (self.dense.parameters + replicated)
        return SentBytes(
            ids=round(sent_ids),
            pooled=round(sent_pooled[busiest]),
            # What a rank received it sends back as gradients: all columns of its own rows; by rows, to every shard.
            gradients=round(sum(sent_pooled) / ranks),
            all_reduce=round(all_reduce),
            to_other_machines=round(
                outside * (sent_ids + all_reduce) + pooled_outside[busiest] + sum(pooled_outside) / ranks
            ),
        )

    def seconds(self, accelerator: Accelerator, precision: ArithmeticName) -> dict[str, float]:
        """Estimate the seconds of a step by what they are spent on; their sum is the step's."""
        ranks = self.plan.world_size
        local_rows = self.batch / ranks
        element = 2 if precision in {"bf16", "fp16"} else 4
        activations = self.dense.activations * local_rows * element * _ACTIVATION_PASSES
        table_bytes = [0.0] * ranks
        for shard in self.plan.shards:
            rows = local_rows if shard.sharding == "data_parallel" else self.batch * self._share_of_rows(shard)
            table_bytes[shard.rank] += rows * sum(self._ids(shard)) * shard.columns * _FLOAT_BYTES * _TABLE_PASSES
        outside, inside = self.sent.to_other_machines, self.sent.total - self.sent.to_other_machines
        return {
            "fixed": _FIXED_SECONDS,
            "arithmetic": self.dense.operations * local_rows / (_ARITHMETIC_SHARE * accelerator.arithmetic[precision]),
            "memory": (activations + max(table_bytes)) / (_MEMORY_SHARE * accelerator.memory_bandwidth),
            "communication": (outside / accelerator.network + inside / accelerator.link) / _LINK_SHARE,
        }

    @property
    def memory_by_rank(self) -> list[int]:
        """Bytes on each rank: tables with optimizer state, the dense network with its own, activations in float32."""
        activations = 2 * _FLOAT_BYTES * self.dense.activations * self.batch / self.plan.world_size
        everywhere = _COPIES_OF_WEIGHTS * _FLOAT_BYTES * self.dense.parameters + activations
        return [round(tables + everywhere) for tables in self.plan.bytes_by_rank()]

    def estimate(self, accelerator: Accelerator, precision: ArithmeticName) -> dict[str, object]:
        """Return all figures, as `rayrec plan` prints them."""
        seconds = self.seconds(accelerator, precision)
        return {
            "samples_per_second": self.batch / sum(seconds.values()),
            "seconds": seconds,
            "sent_bytes": asdict(self.sent),
            "memory_by_rank": self.memory_by_rank,
        }

    def _ids(self, shard: ShardPlacement) -> Sequence[float]:
        return self.ids_per_row.get(shard.table, _ONE_ID)

    def _share_of_rows(self, shard: ShardPlacement) -> float:
        """Return the rows of a shard by those of its table."""
        return shard.rows / self._rows[shard.table]

    @cached_property
    def _rows(self) -> dict[str, int]:
        """The rows of each table."""
        rows: dict[str, int] = {}
        for shard in self.plan.shards:
            rows[shard.table] = max(rows.get(shard.table, 0), shard.row + shard.rows)
        return rows
