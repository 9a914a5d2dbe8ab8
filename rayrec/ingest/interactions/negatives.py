"""Draws items that a user has not interacted with, for many samples at once."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.ingest.interactions.item_distribution import ItemDistribution, count_not_above
from rayrec.random.splitmix64_torch import uniform_below


class Negatives(Protocol):
    """Draws one item for each sample."""

    def draw(self, bits: Tensor, users: Tensor) -> Tensor:
        """An item (int32) for each of `users`, as a function of its 64 random `bits` (int64)."""


@dataclass(frozen=True)
class UncheckedNegatives:
    """Draws any item, so some are positives of their user, as in NVIDIA's NCF."""

    distribution: ItemDistribution

    def draw(self, bits: Tensor, users: Tensor) -> Tensor:
        return self.distribution.item_at(uniform_below(bits, self.distribution.total).int())


@dataclass(frozen=True, eq=False)
class ExactNegatives:
    """Draws the items that the user does not know, in the distribution's proportions; without rejection, and without an
    array of users x items.

    Without the known items i_0 < i_1 < ... of a user, the distribution has fewer points. A point t of those left lies
    beyond i_k exactly if t >= key_k = start(i_k) - mass of i_0 ... i_(k-1); keys grow with k. So a binary search of t
    among the user's keys gives what to add to t to get its point in the whole distribution.
    """

    distribution: ItemDistribution
    keys: Tensor
    """(1 + pairs,) int32: key_k of the pairs sorted by user and item, behind one unused entry."""
    first: Tensor
    """(users + 1,) int32 (int64 from 2^31 pairs on): where each user's pairs start."""
    free: Tensor
    """(users,) int32: mass of the items that the user does not know."""
    mass_before: Tensor | None
    """(pairs + 1,) int32: mass of all earlier pairs modulo 2^32; None if every item's mass is 1."""
    most_known: int
    """The largest number of known items of a user."""

    @classmethod
    def of(cls, users: Tensor, items: Tensor, num_users: int, distribution: ItemDistribution) -> "ExactNegatives":
        """Prepare from (user, item) pairs in any order; repeated pairs count once, pairs with the unknown item 0 never.

        Raises UserError if a user knows every item.
        """
        stride = int(items.max()) + 1
        pairs = users.long().mul_(stride).add_(items)
        pairs = _sorted_and_distinct(pairs[items > 0])
        bounds = torch.arange(num_users + 1, device=pairs.device) * stride
        first = torch.searchsorted(pairs, bounds)
        items_of = pairs % stride
        del pairs
        masses = distribution.masses(items_of)
        before = torch.cat([masses.new_zeros(1), masses.cumsum(0)])
        del masses
        lengths = first.diff()
        taken = before.index_select(0, first).diff()
        _require_free(taken, distribution.total)
        keys = distribution.starts(items_of)
        del items_of
        keys -= before[:-1]
        keys += torch.repeat_interleave(before.index_select(0, first[:-1]), lengths)
        return cls(
            distribution=distribution,
            keys=torch.cat([keys.new_zeros(1, dtype=torch.int32), keys.int()]),
            first=first.int() if len(keys) < 2**31 else first,
            free=(distribution.total - taken).int(),
            mass_before=None if distribution.ends is None else before.int(),
            most_known=int(lengths.max()),
        )

    def draw(self, bits: Tensor, users: Tensor) -> Tensor:
        points = uniform_below(bits, self.free.index_select(0, users)).int()
        first = self.first.index_select(0, users)
        length = self.first.index_select(0, users + 1) - first
        passed = count_not_above(self.keys, first, length, self.most_known, points)
        if self.mass_before is None:
            points += passed
        else:
            passed += first
            # int32 wraps in both, so the difference, which fits, is right.
            points += self.mass_before.index_select(0, passed)
            points -= self.mass_before.index_select(0, first)
        return self.distribution.item_at(points)


def _sorted_and_distinct(values: Tensor) -> Tensor:
    values = values.sort().values
    changes = torch.ones_like(values, dtype=torch.bool)
    torch.ne(values[1:], values[:-1], out=changes[1:])
    return values[changes]


def _require_free(taken: Tensor, total: int) -> None:
    full = torch.nonzero(taken >= total)
    if len(full):
        raise UserError(
            f"train.negatives.check: user {int(full[0])} has every item, so no negative is exact; set it to unchecked"
        )
