"""Private parts of TorchRec, and of torch's ShardedTensor, in which TorchRec keeps what is sharded."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    TableTensor = Any
    """A ShardedTensor, or a plain tensor where every rank holds the whole table."""


def local_shards(value: "TableTensor") -> "list[tuple[Tensor, int, int]]":
    """Return the rank's shards of a table, or of a moment of it, as (tensor, first row, first column); views, not
    copies.

    The tensors are (rows, columns), or (rows,) of a moment that has one number a row.
    """
    from torch.distributed._shard.sharded_tensor import ShardedTensor

    if not isinstance(value, ShardedTensor):
        return [(value, 0, 0)]
    shards = value.local_shards()
    offsets = [(*shard.metadata.shard_offsets, 0) for shard in shards]
    return [(shard.tensor, row, column) for shard, (row, column, *_) in zip(shards, offsets, strict=True)]


def whole_shape(value: "TableTensor") -> tuple[int, ...]:
    """Return the shape of a whole table, or of a moment of it; () of a number that belongs to no row."""
    from torch.distributed._shard.sharded_tensor import ShardedTensor

    # A ShardedTensor that is asked for its size warns of its end.
    return tuple(value.metadata().size if isinstance(value, ShardedTensor) else value.shape)


def sharded_like(state: "Tensor", table: "TableTensor") -> "TableTensor":
    """Return this rank's optimizer state of `table` as a shard of the state of the whole table.

    `state` has the shape of this rank's one shard; scalars, and states of tables that are not sharded, stay.
    """
    from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor

    if not isinstance(table, ShardedTensor) or state.ndim == 0:
        return state
    (shard,) = table.local_shards()
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        local_shards=[Shard(state, shard.metadata)], sharded_tensor_metadata=table.metadata()
    )


def set_planned_optimizer(weight: "nn.Parameter", optimizer: type) -> None:
    """Let the planner reserve memory for the state of a torch optimizer of this class."""
    weight._optimizer_classes = [optimizer]  # type: ignore[attr-defined]


def set_fused_parameters(weight: "nn.Parameter", group: str, parameters: dict[str, Any]) -> None:
    """Give a table, before it is sharded, its own parameters of FBGEMM instead of the sharder's.

    Tables of different `group`s never share a kernel, so that each group can have its own learning rate.
    """
    weight._optimizer_kwargs = [{**parameters, "_batch_key": group}]  # type: ignore[attr-defined]


def drop_cached_rows(model: "nn.Module") -> None:
    """Empty the caches of rows that tables in host memory have on a GPU; rows that changed must have been written back.

    A state dict writes them back. Call this after writing into its tensors, as the next pass would read old rows.
    """
    from torch.nn.parallel import DistributedDataParallel
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

    for module in model.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            for lookup in module._lookups:
                own = lookup.module if isinstance(lookup, DistributedDataParallel) else lookup
                own.purge()


@dataclass(frozen=True)
class TableKernel:
    """Tables that FBGEMM looks up, and updates, in one call."""

    module: "nn.Module"
    """Take `indices`, `offsets` and `per_sample_weights`; return (B, sum of `widths`) float32."""
    features: list[str]
    """The features whose ids it takes, one after the other."""
    keys: list[str]
    """TorchRec's names of its outputs."""
    widths: list[int]
    """The columns of each output."""


def table_kernels(model: "nn.Module") -> list[TableKernel]:
    """List the kernels of a sharded collection, of which one worker holds all; after `call_tables_directly`."""
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

    kernels = []
    for module in model.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            for lookup in module._lookups:
                for kernel in lookup._emb_modules:
                    c = kernel.config
                    kernels.append(
                        TableKernel(kernel.emb_module, c.feature_names(), c.embedding_names(), c.embedding_dims())
                    )
    return kernels


def set_output_dtype(model: "nn.Module", dtype: "torch.dtype") -> None:
    """Let the kernels of sharded tables return sums in `dtype`, and so take their gradients in it, from now on."""
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        DenseTableBatchedEmbeddingBagsCodegen,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    for module in model.modules():
        if isinstance(module, (DenseTableBatchedEmbeddingBagsCodegen, SplitTableBatchedEmbeddingBagsCodegen)):
            module.output_dtype = SparseType.from_dtype(dtype).as_int()


def call_tables_directly(model: "nn.Module") -> None:
    """Take the replication out of data-parallel tables: with one worker it only copies gradients."""
    from torch.nn.parallel import DistributedDataParallel
    from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

    for module in model.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            for index, lookup in enumerate(module._lookups):
                if isinstance(lookup, DistributedDataParallel):
                    module._lookups[index] = lookup.module
