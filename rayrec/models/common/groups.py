"""Groups of rows that follow each other in a batch."""

import torch
from torch import Tensor


def group_numbers(group: Tensor) -> Tensor:
    """(B,) group ids, of rows that follow each other by group -> (B,) int64 numbers of the groups, from 0."""
    changes = group[1:] != group[:-1]
    return torch.cat([changes.new_zeros(min(1, len(group)), dtype=torch.int64), changes.cumsum(0)])
