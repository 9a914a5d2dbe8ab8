"""Tables whose kernel leaves a dense gradient, which a torch optimizer takes after the backward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel

from rayrec.internals.torchrec import local_shards, sharded_like
from rayrec.training.optimizers.build import table_moments


class SteppedTables:
    """A torch optimizer over this rank's parts of the tables `names`."""

    def __init__(
        self,
        names: Sequence[str],
        tables: DistributedModelParallel,
        build: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        weights, parameters = tables.state_dict(), dict(tables.named_parameters())
        # Pairs of TorchRec's parameter, which gets the gradient, and a plain one that shares its memory.
        self._pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
        held: list[tuple[str, Any, nn.Parameter]] = []
        for name in names:
            key = f"embeddings.embedding_bags.{name}.weight"
            for tensor, _, _ in local_shards(weights[key]):  # one, or none where other ranks hold the table
                own = nn.Parameter(tensor)
                self._pairs.append((parameters[key], own))
                held.append((name, weights[key], own))
        self._optimizer = build([own for _, own in self._pairs]) if self._pairs else None
        self.state: dict[str, Any] = {}
        """`<table>.<moment>` -> its tensor, sharded as the weights are; shares memory with the optimizer."""
        if self._optimizer is not None:
            for name, weight, own in held:
                for moment, value in table_moments(self._optimizer, own).items():
                    self.state[f"{name}.{moment}"] = sharded_like(value, weight)

    def set_lr(self, lr: float) -> None:
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = lr

    def step(self) -> None:
        if self._optimizer is None:
            return
        for theirs, own in self._pairs:
            own.grad = theirs.grad
        self._optimizer.step()

    def clear_gradients(self) -> None:
        for theirs, own in self._pairs:
            theirs.grad = own.grad = None
