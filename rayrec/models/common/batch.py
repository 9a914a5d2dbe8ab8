"""Input of a model: one batch of encoded rows."""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@dataclass
class Batch:
    """B rows on one device. Every rank of a step holds the same B: short ranks are padded with rows of weight 0.

    A padding row repeats ids of a real row, so that it touches no embedding row that the batch does not touch anyway;
    its weight of 0 keeps it out of the loss, of every gradient and of every metric.
    """

    dense: Tensor
    """(B, dense_width) float32: numeric and vector features in the schema's order."""
    sparse: "KeyedJaggedTensor"
    """Keys: the categorical features in the schema's order; values int32 or int64 ids; stride B.

    If a feature of the schema has weights, float32 weights of all ids, 1 for those of other features.
    """
    label: Tensor
    """(B,) float32, 0 or 1."""
    weight: Tensor
    """(B,) float32; 0 for padding, 1 for real rows unless the schema has a weight column."""
    group: Tensor | None = None
    """(B,) int64 group ids where the schema has a group column."""

    @property
    def size(self) -> int:
        """B, padding included."""
        return self.label.shape[0]

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        return replace(self, **{k: v.to(device=device, non_blocking=non_blocking) for k, v in self._columns().items()})

    def record_stream(self, stream: torch.Stream) -> None:
        for column in self._columns().values():
            column.record_stream(stream)

    def _columns(self) -> dict[str, Any]:
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}


@dataclass(kw_only=True)
class NextItemBatch(Batch):
    """Windows of people's events, and items that the next ones are told from; each rank of a step has the same numbers.

    The rows of the batch are items to look up, one each: the events of window after window, padded at the end to those
    of the longest, then the candidates. The weight of an event is that of its successor, which is to be told: 0 for the
    last event of a window, for padding and for candidates. There are no numbers, and labels say nothing.
    """

    event_ids: Tensor
    """(windows, events) items, oldest first."""
    candidate_ids: Tensor
    """(C,) items."""
    log_counts: Tensor | None = None
    """(C,) float32 logarithms of how often each of the candidates is expected among them; None where it is once."""


def group_numbers(group: Tensor) -> Tensor:
    """Number the groups from 0: (B,) ids, of rows that follow each other by group -> (B,) int64."""
    changes = group[1:] != group[:-1]
    return torch.cat([changes.new_zeros(min(1, len(group)), dtype=torch.int64), changes.cumsum(0)])
