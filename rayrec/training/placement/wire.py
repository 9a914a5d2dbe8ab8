"""The number format in which pooled embeddings, and their gradients, travel between ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.types import CommOp, NoOpQuantizedCommCodec, QuantizedCommCodecs


class WireFormat(NoOpQuantizedCommCodec[None]):
    """Hooks of TorchRec around the collectives of a sharded collection.

    FBGEMM has such codecs, but none of bfloat16 on CPUs, and none that an evaluation could do without.
    """

    def __init__(self, dtype: torch.dtype, arrival: torch.dtype = torch.float32) -> None:
        """`arrival`: the format of what has arrived."""
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
