"""The dense network as torch's compiler makes it."""

from collections.abc import Callable
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn


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
        """Return logits (B,) float32 of dense (B, N) and pooled (B, sum of dims), as the network itself does."""
        network = self._compiled if pooled.shape[0] == self._rows else self.network
        return cast(Tensor, network(dense, pooled))
