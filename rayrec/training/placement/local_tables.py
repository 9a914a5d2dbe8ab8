"""Embedding tables that one worker holds as a whole, on a CPU."""

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.features.schema import Schema
from rayrec.internals.torchrec import TableKernel


class LocalTables:
    """Calls the kernels of a sharded collection one by one.

    TorchRec's way to them (permute, split, exchanges among the ranks, a join) takes longer than they do where a batch
    has some hundred rows.
    """

    def __init__(self, kernels: Sequence[TableKernel], schema: Schema) -> None:
        features = [feature.name for feature in schema.categorical]
        self._orders = [torch.tensor([features.index(name) for name in kernel.features]) for kernel in kernels]
        self._kernels = kernels
        self._is_one_hot = not schema.hotness
        self._keys = [key for kernel in kernels for key in kernel.keys]
        self._widths = [width for kernel in kernels for width in kernel.widths]

    def __call__(self, sparse: KeyedJaggedTensor) -> KeyedTensor:
        """Return sums by key, whose backward pass updates the tables or leaves dense gradients."""
        outputs = [
            kernel.module(**self._arguments(sparse, order))
            for kernel, order in zip(self._kernels, self._orders, strict=True)
        ]
        return KeyedTensor(self._keys, self._widths, outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1))

    def _arguments(self, sparse: KeyedJaggedTensor, order: Tensor) -> dict[str, Tensor | None]:
        """Return the arguments of a kernel that takes the features of these numbers."""
        if not self._is_one_hot:
            sparse = sparse.permute(order.tolist())
            return {
                "indices": sparse.values().long(),
                "offsets": sparse.offsets().long(),
                "per_sample_weights": sparse.weights_or_none(),
            }
        ids = sparse.values().view(-1, sparse.stride()).index_select(0, order).view(-1).long()
        return {"indices": ids, "offsets": _one_id_each(len(ids)), "per_sample_weights": None}


@lru_cache(maxsize=8)
def _one_id_each(count: int) -> Tensor:
    """Return the offsets (count + 1,) int64 of bags of one id each."""
    return torch.arange(count + 1)
