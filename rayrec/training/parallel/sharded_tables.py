"""How a step calls embedding tables that TorchRec has sharded: ids out to the ranks, sums of embeddings back.

A lone rank on a CPU calls the tables' kernels directly. Otherwise the ids of the next batch set out while this one is
computed, and sums and gradients travel between ranks in a format of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import CommOp, NoOpQuantizedCommCodec, QuantizedCommCodecs
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from rayrec.internals.torchrec import TableKernel
from rayrec.models.common.batch import Batch
from rayrec.models.common.embedding_tables import TableIds


class LocalTables:
    """Calls the kernels of a sharded collection one by one.

    TorchRec's way to them (permute, split, exchanges among the ranks, a join) takes longer than they do where a batch
    has some hundred rows.
    """

    def __init__(self, kernels: Sequence[TableKernel], keys: Sequence[str], *, is_one_hot: bool) -> None:
        """`keys`: those of the ids that come, in order; `is_one_hot`: whether each has one id a row."""
        places = {key: place for place, key in enumerate(keys)}
        self._orders = [torch.tensor([places[key] for key in kernel.features]) for kernel in kernels]
        self._runs = [_runs(order.tolist()) for order in self._orders]
        self._kernels, self._is_one_hot = kernels, is_one_hot
        self._keys = [key for kernel in kernels for key in kernel.keys]
        self._widths = [width for kernel in kernels for width in kernel.widths]

    def __call__(self, sparse: KeyedJaggedTensor) -> KeyedTensor:
        """Return sums by key, whose backward pass updates the tables or leaves dense gradients."""
        outputs = [
            kernel.module(**(self._one_hot(sparse, order) if self._is_one_hot else self._lists(sparse, runs)))
            for kernel, order, runs in zip(self._kernels, self._orders, self._runs, strict=True)
        ]
        return KeyedTensor(self._keys, self._widths, outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1))

    def _one_hot(self, sparse: KeyedJaggedTensor, order: Tensor) -> dict[str, Tensor | None]:
        """Return the arguments of a kernel that takes the keys of these numbers, of which each has one id a row."""
        ids = sparse.values().view(-1, sparse.stride()).index_select(0, order).view(-1).long()
        return {"indices": ids, "offsets": _one_id_each(len(ids)), "per_sample_weights": None}

    def _lists(self, sparse: KeyedJaggedTensor, runs: Sequence[slice]) -> dict[str, Tensor | None]:
        """Return the arguments of a kernel that takes these keys."""
        starts, weights = sparse.offset_per_key(), sparse.weights_or_none()
        pieces = [slice(starts[run.start], starts[run.stop]) for run in runs]
        lengths = sparse.lengths().view(-1, sparse.stride())
        of_keys = torch.cat([lengths[run] for run in runs]).view(-1)
        return {
            "indices": torch.cat([sparse.values()[piece] for piece in pieces]).long(),
            "offsets": F.pad(of_keys.cumsum(0), (1, 0)),
            "per_sample_weights": None if weights is None else torch.cat([weights[piece] for piece in pieces]),
        }


def _runs(places: Sequence[int]) -> list[slice]:
    """Return places as slices of those that follow each other."""
    starts = [n for n, place in enumerate(places) if n == 0 or place != places[n - 1] + 1]
    return [slice(places[a], places[b - 1] + 1) for a, b in pairwise([*starts, len(places)])]


class SentIds:
    """The ids of one batch on their way to the ranks that hold their tables.

    TorchRec sends them in two stages: how many ids each rank will get, then the ids. On a GPU both run on a stream of
    their own, beside what a step computes, and the process waits for that stream alone.
    """

    def __init__(
        self,
        tables: ShardedEmbeddingBagCollection,
        batch: Batch,
        table_ids: TableIds,
        stream: "torch.cuda.Stream | None",
    ) -> None:
        """Begin the first stage; a collective, as both methods are."""
        self.batch = batch
        self._tables, self._stream = tables, stream
        self._context = tables.create_context()
        with torch.cuda.stream(stream):
            self._numbers = tables.input_dist(self._context, table_ids(batch.sparse))

    def send(self) -> None:
        """Wait for the first stage and begin the second."""
        with torch.cuda.stream(self._stream):
            self._ids = self._numbers.wait()

    def sums(self) -> KeyedTensor:
        """Return the sums of the tables for the batch; needs `send`."""
        with torch.cuda.stream(self._stream):
            ids = self._ids.wait()
        if self._stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            # The memory belongs to the other stream, which must not reuse it while this one reads it.
            ids.record_stream(current)
            self._context.record_stream(current)
        return self._tables.compute_and_output_dist(self._context, ids)


class WireFormat(NoOpQuantizedCommCodec[None]):
    """Hooks of TorchRec around the collectives of a sharded collection.

    FBGEMM has such codecs, but none of bfloat16 on CPUs, and none that an evaluation could do without.
    """

    def __init__(self, dtype: torch.dtype, arrival: torch.dtype = torch.float32) -> None:
        """Let `dtype` travel; `arrival`: the format of what has arrived."""
        self._dtype, self._arrival = dtype, arrival

    def encode(self, input_tensor: Tensor, ctx: None = None) -> Tensor:
        """Return the tensor in the format that travels."""
        return input_tensor.to(self._dtype)

    def decode(self, input_grad: Tensor, ctx: None = None) -> Tensor:
        """Return what has travelled, in the format in which it is used."""
        return input_grad.to(self._arrival)

    @property
    def quantized_dtype(self) -> torch.dtype:
        """Format that travels."""
        return self._dtype

    @property
    def registry(self) -> dict[str, Any] | None:
        """Codecs of all collectives by name, as TorchRec's sharders take them; None where float32 travels."""
        if self._dtype == torch.float32:
            return None
        codecs = QuantizedCommCodecs(forward=self, backward=self)
        operations = (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER)
        return {operation.name: codecs for operation in operations}

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Let float32 travel, and arrive, in the block."""
        formats = self._dtype, self._arrival
        self._dtype = self._arrival = torch.float32
        try:
            yield
        finally:
            self._dtype, self._arrival = formats


@lru_cache(maxsize=8)
def _one_id_each(count: int) -> Tensor:
    """Return the offsets (count + 1,) int64 of bags of one id each."""
    return torch.arange(count + 1)
