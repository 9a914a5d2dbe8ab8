"""Draws positives more often the later they come in their user's history."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayrec.common.errors import ConfigError
from rayrec.config.train import RecencyConfig
from rayrec.random.splitmix64_torch import derive_key

_LARGEST_PRODUCT = 2**61
"""The largest product of positives and points, with which places are computed in int64 despite rounding errors."""


@dataclass(frozen=True, eq=False)
class RecencyDraws:
    """Systematic sampling: positives divide a line of points by weight, and the slots of an epoch point at it evenly.

    A positive of weight w, among n with the sum W, comes floor(n w / W) or ceil(n w / W) times in every epoch and
    n w / W times on average. A slot's positive depends only on the slot and the epoch.
    """

    ends: Tensor
    """(positives,) int64: the first point after each positive."""
    total: int
    """The number of points of the line."""

    @classmethod
    def of(cls, users: Tensor, config: RecencyConfig) -> "RecencyDraws":
        """`users`: (positives,) the user of each positive; a user's rows are together, in the order of time.

        Raises ConfigError if the rows of a user are not together.
        """
        later = _later_rows(users)
        weights = config.floor + torch.exp2(later.double().neg_() / config.half_life)
        points = _LARGEST_PRODUCT // len(users) - len(users)
        masses = (weights * (points / float(weights.sum()))).long().clamp_(min=1)
        ends = masses.cumsum_(0)
        return cls(ends, int(ends[-1]))

    def __call__(self, slots: Tensor, key: int) -> Tensor:
        """The positive (int64) of each of `slots` (1-d int64, 0 ... positives - 1) in the epoch of `key`."""
        offset = derive_key(key) % self.total
        points = torch.div(slots * self.total + offset, len(self.ends), rounding_mode="floor")
        return torch.searchsorted(self.ends, points, right=True)


def _later_rows(users: Tensor) -> Tensor:
    """For each row, the number of later rows of its user, int64."""
    changes = torch.ones(len(users) + 1, dtype=torch.bool, device=users.device)
    changes[1:-1] = users[1:] != users[:-1]
    bounds = changes.nonzero().squeeze(1)
    lengths = bounds.diff()
    if len(lengths) != len(users.unique()):
        raise ConfigError(
            "train.recency: the rows of a user are not together in split 'train', so their order is not that of "
            "time; preprocess with a source of interactions, or unset it"
        )
    last = (bounds[1:] - 1).repeat_interleave(lengths)
    return last - torch.arange(len(users), device=users.device)
