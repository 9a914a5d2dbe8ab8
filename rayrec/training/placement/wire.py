"""The number format in which pooled embeddings, and their gradients, travel between ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchrec.distributed.types import CommOp, NoOpQuantizedCommCodec, QuantizedCommCodecs


class WireFormat(NoOpQuantizedCommCodec[None]):
    """What TorchRec calls before and after the collectives of a sharded collection; sums of rows are float32 again.

    FBGEMM has such codecs, but none of bfloat16 on CPUs, and none that an evaluation could do without.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, input_tensor: Tensor, ctx: None = None) -> Tensor:
        """The tensor in the format that travels."""
        return input_tensor.to(self._dtype)

    def decode(self, input_grad: Tensor, ctx: None = None) -> Tensor:
        """What has travelled, in float32."""
        return input_grad.float()

    @property
    def quantized_dtype(self) -> torch.dtype:
        """The format that travels."""
        return self._dtype

    @property
    def registry(self) -> dict[str, Any] | None:
        """The codecs of all collectives by name, as TorchRec's sharders take them; None where float32 travels."""
        if self._dtype == torch.float32:
            return None
        codecs = QuantizedCommCodecs(forward=self, backward=self)
        operations = (CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL, CommOp.POOLED_EMBEDDINGS_REDUCE_SCATTER)
        return {operation.name: codecs for operation in operations}

    @contextmanager
    def exact(self) -> Iterator[None]:
        """Let float32 travel in the block."""
        dtype, self._dtype = self._dtype, torch.float32
        try:
            yield
        finally:
            self._dtype = dtype
