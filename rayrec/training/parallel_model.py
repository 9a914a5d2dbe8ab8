"""A model spread over the ranks: sharded embedding tables, a replicated dense network."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

from rayrec.config import ModelConfig, TrainConfig
from rayrec.features.schema import Schema
from rayrec.models.common.batch import Batch
from rayrec.models.common.initialization import initialize_dense, initialize_shard
from rayrec.models.common.tables import EmbeddingTable, Part
from rayrec.models.registry import build_model
from rayrec.training.freeze import frozen_parameters
from rayrec.training.sharding import EmbeddingTables, TablePlan, torchrec_plan
from rayrec.training.table_optimizer import TableOptimizer, fused_parameters


class ParallelModel:
    """The two halves of a `RankingModel`, each distributed in its own way.

    TorchRec shards the tables; torch's DistributedDataParallel replicates the dense network. They are called one after
    the other, so that the trainer can stop between their backward passes. Initial values do not depend on the plan.
    Needs an initialised process group; every rank must construct it with the same arguments.
    """

    def __init__(
        self,
        model: ModelConfig,
        schema: Schema,
        train: TrainConfig,
        plan: TablePlan,
        device: torch.device,
        local_world_size: int,
    ) -> None:
        self.device = device
        self.plan = plan
        whole = build_model(model, schema, device="meta")
        self.schema = whole.schema
        self._stated, self._outputs, self._wide_names = whole.tables, whole.outputs, whole.wide_names
        self.deep_width = sum(table.dim for table in whole.tables if table.part == "deep")
        """Columns of `pooled` that belong to deep tables, the first ones; the others belong to wide ones."""
        self.trains_tables = "embeddings" not in train.freeze
        self.tables = DistributedModelParallel(
            EmbeddingTables(whole.embeddings),
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=device,
            plan=torchrec_plan(plan, whole.embeddings, device, local_world_size),
            sharders=[EmbeddingBagCollectionSharder(fused_params=fused_parameters(train.embedding_optimizer))],
        )
        if dist.get_world_size() == 1:
            _without_replication(self.tables)
        self.table_optimizer = TableOptimizer(train, self.tables, whole.tables, plan)
        self.dense_network = whole.dense_network.to_empty(device=device)
        self._initialize(train.seed)
        for parameter in frozen_parameters(self.dense_network, train.freeze):
            parameter.requires_grad_(False)
        called: nn.Module = self.dense_network
        if train.compile:
            called = cast(nn.Module, torch.compile(self.dense_network))
        self.deep_parameters = self._trained(part="deep")
        """Of the dense network, what `train.dense_optimizer` trains."""
        self.wide_parameters = self._trained(part="wide")
        """Of the dense network, what `train.wide_optimizer` trains."""
        self.trains_dense = bool(self.deep_parameters or self.wide_parameters)
        if dist.get_world_size() > 1 and self.trains_dense:
            called = DistributedDataParallel(
                called,
                device_ids=[device] if device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
            )
        self.dense = called
        """The dense network as it is called in training: compiled and replicated as asked for."""

    def pooled(self, batch: Batch) -> Tensor:
        """Pooled embeddings (B, sum of dims) in the order of the model's tables; a collective."""
        return self._outputs(self.tables(batch.sparse), batch.sparse)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Logits (B,) float32 without gradients; a collective, as every rank holds a part of the tables."""
        return self.dense_network(batch.dense, self.pooled(batch))

    def without_dense_sync(self) -> AbstractContextManager[None]:
        """Gradients of the dense network stay local in this block and are summed into the next pass outside it."""
        return self.dense.no_sync() if isinstance(self.dense, DistributedDataParallel) else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """The names and shapes of the undistributed model; tables as ShardedTensors. Shares memory with the model."""
        dense = {f"dense_network.{name}": value for name, value in self.dense_network.state_dict().items()}
        return {**self.tables.state_dict(), **dense}

    @torch.no_grad()
    def load(self, weights: Callable[[EmbeddingTable], Tensor], dense: Mapping[str, Tensor]) -> None:
        """Copy undistributed weights into this rank's part of the model.

        `weights(table)` gives a table of (rows, columns), of which this rank's part is taken; it is asked for one after
        the other. `dense`: the state dict of the dense network.
        """
        for table, shard, row, column in self._local_shards():
            shard.copy_(weights(table)[row : row + shard.shape[0], column : column + shard.shape[1]])
        self.dense_network.load_state_dict(dict(dense))

    @property
    def has_wide_part(self) -> bool:
        return any(table.part == "wide" for table in self._stated)

    def _trained(self, part: Part) -> list[nn.Parameter]:
        return [
            parameter
            for name, parameter in self.dense_network.named_parameters()
            if parameter.requires_grad and (name.partition(".")[0] in self._wide_names) == (part == "wide")
        ]

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        initialize_dense(self.dense_network, seed)
        for table, shard, row, column in self._local_shards():
            initialize_shard(shard, table, seed, row, column)

    def _local_shards(self) -> Iterator[tuple[EmbeddingTable, Tensor, int, int]]:
        """(table, shard, first row, first column) of this rank's parts of the tables."""
        state = self.tables.state_dict()
        for table in self._stated:
            for shard, row, column in local_shards(state[f"embeddings.embedding_bags.{table.name}.weight"]):
                yield table, shard, row, column


def _without_replication(tables: DistributedModelParallel) -> None:
    """Call data-parallel tables directly: TorchRec also replicates them over one worker, which copies gradients."""
    for module in tables.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            for index, lookup in enumerate(module._lookups):
                if isinstance(lookup, DistributedDataParallel):
                    module._lookups[index] = lookup.module


def local_shards(value: Tensor | ShardedTensor) -> list[tuple[Tensor, int, int]]:
    """This rank's parts of a table as (rows x columns tensor, first row, first column); views, not copies."""
    if isinstance(value, ShardedTensor):
        parts = []
        for shard in value.local_shards():
            row, column = shard.metadata.shard_offsets
            parts.append((shard.tensor, row, column))
        return parts
    return [(value, 0, 0)]
