"""Positives drawn the more often the later in their user's history they stand."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayrec.common.errors import ConfigError
from rayrec.config.train import RecencyConfig
from rayrec.random.splitmix64_torch import derive_key

_LARGEST_PRODUCT = 2**61
"""Of positives and points, so that a place on the line is computed in int64, rounding errors included."""


@dataclass(frozen=True, eq=False)
class RecencyDraws:
    """Positives lie end to end on a line of points, each on as many as it weighs; slots of an epoch point at it evenly.

    Systematic sampling: a positive of weight w among n with the sum W comes floor(n w / W) or ceil(n w / W) times in
    every epoch, n w / W times on average, and a slot's positive is a function of the slot and the epoch alone.
    """

    ends: Tensor
    """(positives,) int64: the first point after each."""
    total: int
    """Points of the line."""

    @classmethod
    def of(cls, users: Tensor, config: RecencyConfig) -> "RecencyDraws":
        """`users`: (positives,) the user of each, whose rows stand together, in order of time.

        Raises ConfigError where a user's rows do not.
        """
        later = _later_rows(users)
        weights = config.floor + torch.exp2(later.double().neg_() / config.half_life)
        points = _LARGEST_PRODUCT // len(users) - len(users)
        masses = (weights * (points / float(weights.sum()))).long().clamp_(min=1)
        ends = masses.cumsum_(0)
        return cls(ends, int(ends[-1]))

    def __call__(self, slots: Tensor, key: int) -> Tensor:
        """Which positive each of `slots` (1-d int64, 0 ... positives - 1) is in the epoch of `key`: int64."""
        offset = derive_key(key) % self.total
        points = torch.div(slots * self.total + offset, len(self.ends), rounding_mode="floor")
        return torch.searchsorted(self.ends, points, right=True)


def _later_rows(users: Tensor) -> Tensor:
    """For each row the number of rows behind it that are of its user, int64."""
    changes = torch.ones(len(users) + 1, dtype=torch.bool, device=users.device)
    changes[1:-1] = users[1:] != users[:-1]
    bounds = changes.nonzero().squeeze(1)
    lengths = bounds.diff()
    if len(lengths) != len(users.unique()):
        raise ConfigError(
            "train.recency: the rows of a user do not stand together in split 'train', so their order is not that of "
            "time; preprocess with a source of interactions, or unset it"
        )
    last = (bounds[1:] - 1).repeat_interleave(lengths)
    return last - torch.arange(len(users), device=users.device)
