"""How the rows of embedding tables are distributed before training; a model states it of each (`EmbeddingTable`)."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class TableValues(Protocol):
    """A distribution of a table's values, independent of row and column."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        """Draw every value of `block`, a part of a table of `rows` rows, in place on the CPU."""


@dataclass(frozen=True)
class UniformByRows:
    """U(-1/sqrt(rows), 1/sqrt(rows)), as NVIDIA published it for DLRM and DCNv2."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        bound = 1.0 / math.sqrt(rows)
        block.uniform_(-bound, bound, generator=generator)


@dataclass(frozen=True)
class Normal:
    """N(0, std^2)."""

    std: float

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        block.normal_(0.0, self.std, generator=generator)


@dataclass(frozen=True)
class TruncatedNormal:
    """N(0, std^2), drawn again beyond two `std`."""

    std: float

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        bound = 2 * self.std
        nn.init.trunc_normal_(block, 0.0, self.std, -bound, bound, generator=generator)


@dataclass(frozen=True)
class Zeros:
    """All 0."""

    def fill(self, block: Tensor, *, rows: int, generator: torch.Generator) -> None:
        block.zero_()
