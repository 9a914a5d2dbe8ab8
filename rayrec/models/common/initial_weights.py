"""The contract by which a model begins with the weights of trained ones (`train.initial_weights`)."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from rayrec.models.common.tables import EmbeddingTable
from rayrec.recipes import Recipe


class Weights(Protocol):
    """The undistributed weights of a model."""

    def table(self, table: EmbeddingTable) -> Tensor:
        """The (rows, columns) float32 weights of a table."""

    def dense(self) -> Mapping[str, Tensor]:
        """The state dict of `dense_network`."""


class TrainedWeights(Weights, Protocol):
    """The weights of a trained model, as a run folder or a model folder holds them."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def tables(self) -> Sequence[EmbeddingTable]: ...
