"""A model spread over the ranks: sharded embedding tables, a replicated dense network."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

from cuda_ops import triton_works
from rayrec.common.errors import ConfigError
from rayrec.config.train import TrainConfig
from rayrec.features.schema import Schema
from rayrec.internals.torchrec import (
    call_tables_directly,
    drop_cached_rows,
    local_shards,
    set_output_dtype,
    table_kernels,
)
from rayrec.models.common.batch import Batch
from rayrec.models.common.embedding_tables import EmbeddingTable, PooledFeature
from rayrec.models.common.initialization import initialize_dense, initialize_shard
from rayrec.models.common.next_item import ScoresNextItems
from rayrec.models.common.sequences import HistoryEncoders
from rayrec.models.registry import build_model
from rayrec.recipes import Recipe
from rayrec.training.optimizers import TableOptimizer, set_fused_optimizers
from rayrec.training.parallel.ranks import RankContext, WorkerThreads
from rayrec.training.parallel.sharded_tables import LocalTables, SentIds, WireFormat
from rayrec.training.parallel.sharding_plan import EmbeddingTables, plan_sharding, torchrec_plan

_LEAST_WORK = 2e8
"""Multiplications of a micro-batch, forward, for which the few hundred calls of its way cost next to nothing."""
_WORK_OF_COLUMN = 100
"""What a column of the pooled embeddings, or one that is computed of a history, costs beside the products that read it,
in multiplications.
"""
_LEAST_ROWS = 256
"""Least rows of a micro-batch: adding its gradient of the whole network costs as much for few rows as for many."""
_MOST_MICRO_BATCHES = 8


class ParallelModel:
    """The two halves of a `RankingModel`, each distributed in its own way.

    TorchRec shards the tables; torch's DistributedDataParallel replicates the dense network. They are called one after
    the other, so that the trainer can stop between their backward passes. Initial values do not depend on the plan.
    """

    def __init__(
        self,
        recipe: Recipe,
        schema: Schema,
        context: RankContext,
        wire: torch.dtype = torch.float32,
        pooled: torch.dtype = torch.float32,
    ) -> None:
        """Needs the default process group; every rank must call it with the same recipe and schema.

        While the model trains, pooled embeddings and their gradients travel between ranks in the format `wire`, and are
        used in the format `pooled`: float32, or on GPUs that of the wire. Evaluations are exact.

        Raises UserError where the model does not suit the features, or the workers cannot hold its tables.
        """
        train, whole = recipe.train, build_model(recipe.model, schema, device="meta")
        self.schema, self.device = whole.schema, context.device
        self.stated_tables, self._table_ids, self._outputs = whole.tables, whole.table_ids, whole.outputs

        # Plan which rank holds which shard of which table. Every rank makes the same plan by itself.
        local_world_size = context.workers_per_node()
        self.plan = plan_sharding(
            whole.tables,
            train,
            world_size=context.world_size,
            local_world_size=local_world_size,
            memory_per_worker=context.memory_per_worker(train.sharding),
            host_memory_per_worker=context.host_memory_per_worker(),
            batch_size=train.global_batch_size // context.world_size,
        )

        # Shard the tables by the plan. Most are updated inside the backward pass, by FBGEMM's fused optimizers.
        self.trains_tables = "embeddings" not in train.freeze
        dense_kernels = self.plan.tables_by("dense")
        set_fused_optimizers(whole.embeddings, [t for t in whole.tables if t.name not in dense_kernels], train)
        self._wire, self._pooled_dtype = WireFormat(wire, pooled), pooled
        # TorchRec divides the ranks into nodes by this variable.
        os.environ["LOCAL_WORLD_SIZE"] = str(local_world_size)
        self.tables = DistributedModelParallel(
            EmbeddingTables(whole.embeddings),
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=self.device,
            plan=torchrec_plan(self.plan, self.device, local_world_size),
            sharders=[EmbeddingBagCollectionSharder(qcomm_codecs_registry=self._wire.registry)],
        )
        # One rank sends nothing, and on a CPU not even TorchRec's wrappers are called (`pooled`).
        self._is_local = context.world_size == 1 and self.device.type == "cpu"
        if context.world_size == 1:
            call_tables_directly(self.tables)
        if self._is_local:
            is_one_hot = not whole.schema.hotness
            self._local_tables = LocalTables(table_kernels(self.tables), self._table_ids.keys, is_one_hot=is_one_hot)
        if self.device.type == "cuda":
            set_output_dtype(self.tables, pooled)
        self.table_optimizer = TableOptimizer(train, self.tables, whole.tables, dense_kernels)

        # Fill both halves with initial values, and take out of training what the recipe freezes.
        self.dense_network = whole.dense_network.to_empty(device=self.device)
        with torch.no_grad():
            initialize_dense(self.dense_network, train.seed)
            for table, shard, row, column in self._local_shards():
                initialize_shard(shard, table, train.seed, row, column)
        for parameter in frozen_parameters(self.dense_network, train.freeze):
            parameter.requires_grad_(False)
        self.dense_parameters: dict[str, list[nn.Parameter]] = {part: [] for part in train.by_part}
        """Parameters of the dense network that are trained, by the keys of `train.by_part`."""
        for name, parameter in self.dense_network.named_parameters():
            if parameter.requires_grad:
                self.dense_parameters[train.trained_part(whole.part_of_dense(name))].append(parameter)

        # Compile and replicate the dense network. DDP averages its gradients over the ranks; one rank does without, and
        # so does a network that has nothing to train, which DDP refuses.
        called: nn.Module = self.dense_network
        # Batches of windows have no one size that it could be compiled for.
        can_compile = not isinstance(called, ScoresNextItems)
        if train.compile is True and not can_compile:
            raise ConfigError("train.compile: a model of next items has batches of many sizes; set it to auto or false")
        wants = train.compile is True or (train.compile == "auto" and self.device.type == "cuda" and triton_works())
        if wants and can_compile:
            rows = -(-train.global_batch_size // (context.world_size * train.gradient_accumulation))
            called = CompiledNetwork(called, rows, has_graph=train.gradient_accumulation == 1)
        if dist.get_world_size() > 1 and any(self.dense_parameters.values()):
            called = DistributedDataParallel(
                called,
                device_ids=[self.device] if self.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                broadcast_buffers=False,
            )
        self.dense = called
        """The dense network as it is called in training: compiled and replicated as asked for."""

        # On a CPU threads share out the micro-batches; on a GPU the next batch travels on a stream of its own.
        self.threads = WorkerThreads(context.threads(train.threads))
        self.has_threads = self.device.type == "cpu" and train.compile is not True
        """Whether `threads` run the dense network on micro-batches beside each other."""
        self._columns = sum(output.width for output in whole.pooled)
        encoders = (module for module in self.dense_network.modules() if isinstance(module, HistoryEncoders))
        columns = self._columns + sum(module.computed_columns for module in encoders)
        self._work_of_row = sum(p.numel() for p in self.dense_network.parameters()) + _WORK_OF_COLUMN * columns
        self._ahead = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

        self.penalties = _penalized_columns(whole.pooled, train)
        """Columns of `pooled` whose L2 penalty (`PartConfig.embedding_l2`) is not 0, and the penalty."""

    def with_next(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch | None]]:
        """Yield each batch with the one after it, or None after the last.

        On a GPU the next batch arrives on the stream on which `send_ids` works, and so waits for no step.
        """
        remaining = iter(batches)
        if self._ahead is not None:
            self._ahead.wait_stream(torch.cuda.current_stream())
        # Without a GPU, `_ahead` is None and the blocks do nothing.
        with torch.cuda.stream(self._ahead):
            batch = next(remaining, None)
        while batch is not None:
            with torch.cuda.stream(self._ahead):
                following = next(remaining, None)
            if self._ahead is not None:
                current = torch.cuda.current_stream()
                current.wait_stream(self._ahead)
                batch.record_stream(current)
            yield batch, following
            batch = following

    def send_ids(self, batch: Batch) -> SentIds | None:
        """Begin to send a batch's ids to the ranks that hold their tables; a collective. None if they go nowhere."""
        if self._is_local:
            return None
        return SentIds(self.tables.module.embeddings, batch, self._table_ids, self._ahead)

    def pooled(self, batch: Batch, sent: SentIds | None = None) -> Tensor:
        """Return the pooled embeddings (B, sum of widths) in the order of `RankingModel.pooled`, to train on; a
        collective.

        `sent`: the batch's ids, if they were sent before.
        """
        if self._is_local:
            sums = self._local_tables(self._table_ids(batch.sparse))
        else:
            sums = self.tables(self._table_ids(batch.sparse)) if sent is None else sent.sums()
        return self._outputs(sums, batch.sparse)

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Return the exact logits (B,) float32 without gradients; a collective, as ranks hold shards of the tables."""
        pooled = self.exact_pooled(batch)
        size = -(-batch.size // self.micro_batches(batch.size))

        @torch.no_grad()  # which each thread has for itself
        def logits_of(rows: tuple[Tensor, Tensor]) -> Tensor:
            return cast(Tensor, self.dense_network(*rows)).float()

        cut = zip(batch.dense.split(size), pooled.split(size), strict=True)
        return torch.cat(list(self.threads.map(logits_of, cut)))

    @torch.no_grad()
    def exact_pooled(self, batch: Batch) -> Tensor:
        """Return what `pooled` does in float32, without gradients; a collective."""
        with self._wire.exact(), self._exact_kernels():
            return self.pooled(batch)

    def micro_batches(self, rows: int, compared: int = 0) -> int:
        """Return the number of micro-batches into which `WorkerThreads` cut a batch of so many rows; `compared`: the
        candidates that each is multiplied with.
        """
        if not self.has_threads:
            return 1
        work = rows * (self._work_of_row + compared * self._columns)
        return max(1, min(_MOST_MICRO_BATCHES, rows // _LEAST_ROWS, int(work / _LEAST_WORK)))

    @contextmanager
    def _exact_kernels(self) -> Iterator[None]:
        """Let the tables' kernels return float32 in the block."""
        if self.device.type != "cuda" or self._pooled_dtype == torch.float32:
            yield
            return
        set_output_dtype(self.tables, torch.float32)
        try:
            yield
        finally:
            set_output_dtype(self.tables, self._pooled_dtype)

    def without_dense_sync(self) -> AbstractContextManager[None]:
        """Return a block in which the dense network's gradients stay local; the next pass outside sums them up, too."""
        return self.dense.no_sync() if isinstance(self.dense, DistributedDataParallel) else nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Return weights by the names of the undistributed model, tables as ShardedTensors; shares memory with them."""
        dense = {f"dense_network.{name}": value for name, value in self.dense_network.state_dict().items()}
        return {**self._table_state(), **dense}

    @torch.no_grad()
    def load(self, weights: Callable[[EmbeddingTable], Tensor], dense: Mapping[str, Tensor]) -> None:
        """Copy undistributed weights into this rank's shards and its copy of the dense network.

        `weights(table)` gives a table of (rows, columns), of which this rank's shards are taken; tables are asked for
        one after the other. `dense` is the state dict of the dense network.
        """
        for table, shard, row, column in self._local_shards():
            shard.copy_(weights(table)[row : row + shard.shape[0], column : column + shard.shape[1]])
        self.dense_network.load_state_dict(dict(dense))

    def _table_state(self) -> dict[str, Any]:
        """Return the tables' weights, into which the caller may write until the next pass."""
        state = self.tables.state_dict()
        drop_cached_rows(self.tables)
        return state

    def _local_shards(self) -> Iterator[tuple[EmbeddingTable, Tensor, int, int]]:
        """Yield (table, shard, first row, first column) of this rank's shards of the tables."""
        state = self._table_state()
        for table in self.stated_tables:
            for shard, row, column in local_shards(state[f"embeddings.embedding_bags.{table.name}.weight"]):
                yield table, shard, row, column


class CompiledNetwork(nn.Module):
    """A dense network, compiled for batches of one size; those of other sizes it computes as it was.

    A batch of another size is the last one of an epoch, which is not worth a compilation, or one of lists of rows, of
    which each may have a size of its own.

    On a GPU the forward and the backward pass are CUDA graphs that torch's compiler captures and replays
    (`torch._inductor.cudagraph_trees`). It copies the inputs to where the graph reads them, and draws from the device's
    generator as it was seeded before the step. What a replay returns is overwritten by the next one: logits and
    gradients must be used up or copied by then, so there is no graph where gradients are summed over several passes.
    """

    def __init__(self, network: nn.Module, rows: int, *, has_graph: bool) -> None:
        super().__init__()
        self.network, self._rows = network, rows
        self._mode = "reduce-overhead" if has_graph else None

    @cached_property
    def _compiled(self) -> Callable[[Tensor, Tensor], Tensor]:
        # At the first use: it takes seconds to import the compiler, which evaluation does without.
        return torch.compile(self.network, dynamic=False, mode=self._mode)

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        """Return logits (B,) float32 of dense (B, N) and pooled (B, sum of widths), as the network itself does."""
        network = self._compiled if pooled.shape[0] == self._rows else self.network
        return cast(Tensor, network(dense, pooled))


def _penalized_columns(pooled: Sequence[PooledFeature], train: TrainConfig) -> list[tuple[slice, float]]:
    """Return the columns of the pooled embeddings, side by side, that an L2 penalty is on, and the penalty.

    Neighbouring columns with one penalty are one slice.
    """
    found, start = [], 0
    penalties = (train.by_part[train.trained_part(output.table.part)].embedding_l2 for output in pooled)
    for penalty, outputs in groupby(zip(penalties, pooled, strict=True), key=itemgetter(0)):
        end = start + sum(output.width for _, output in outputs)
        if penalty:
            found.append((slice(start, end), penalty))
        start = end
    return found


def frozen_parameters(dense_network: nn.Module, names: Iterable[str]) -> list[nn.Parameter]:
    """Return the parameters that `train.freeze` names: `dense_network`, a child of it, or one parameter; not
    `embeddings`.

    Raises ConfigError where a name stands for no parameter.
    """
    parameters = {f"dense_network.{name}": parameter for name, parameter in dense_network.named_parameters()}
    frozen: dict[str, nn.Parameter] = {}
    for name in names:
        if name == "embeddings":
            continue
        chosen = {key: p for key, p in parameters.items() if key == name or key.startswith(f"{name}.")}
        if not chosen:
            # Encoders of histories are a child without parameters where there is no history.
            named = (child for child, module in dense_network.named_children() if list(module.parameters()))
            children = ", ".join(f"dense_network.{child}" for child in named)
            raise ConfigError(f"train.freeze: no part '{name}'; use embeddings, dense_network, or one of {children}")
        frozen |= chosen
    return list(frozen.values())
