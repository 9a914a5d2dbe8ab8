"""Draws items that a user has not interacted with, for many samples at once.

An item's frequency is a whole number, so that drawing without some items is exact too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.random.tensors import uniform_below

_LARGEST_TOTAL = 2**31 - 1
"""With this total a mass fits int32, and its product with 31 random bits fits a word."""


@dataclass(frozen=True, eq=False)
class ItemDistribution:
    """Items 1 ... n divide the points 0 ... total - 1 among them; an item's number of points is its mass.

    Item 0, the unknown one, has no mass.
    """

    total: int
    ends: Tensor | None
    """(n + 1,) int32: the first point after each item, from item 0 on; None if every item has one point."""

    @classmethod
    def uniform(cls, cardinality: int) -> "ItemDistribution":
        """Return a distribution in which items 1 ... cardinality - 1 are equally frequent."""
        _require_items(cardinality)
        return cls(cardinality - 1, None)

    @classmethod
    def by_popularity(cls, items: Tensor, cardinality: int, exponent: float) -> "ItemDistribution":
        """Return a distribution in proportion to (interactions of the item)^exponent; `items`: the item of each
        interaction.

        Masses are rounded down to shares of 2^31; each item, even without interactions, has at least one.
        """
        _require_items(cardinality)
        counts = torch.bincount(items, minlength=cardinality)[1:].double()
        weights = torch.where(counts > 0, counts**exponent, 0.0)
        scale = (_LARGEST_TOTAL - len(weights)) / float(weights.sum())
        masses = (weights * scale).long().clamp_(min=1)
        ends = torch.cat([masses.new_zeros(1), masses.cumsum(0)]).int()
        return cls(int(ends[-1]), ends)

    def starts(self, items: Tensor) -> Tensor:
        """Return the first points of `items` (from 1 on), int64."""
        if self.ends is None:
            return items.long() - 1
        return self.ends.index_select(0, items.long() - 1).long()

    def masses(self, items: Tensor) -> Tensor:
        """Return the masses of `items` (from 1 on), int64."""
        if self.ends is None:
            return torch.ones_like(items, dtype=torch.int64)
        return self.ends.index_select(0, items.long()).long() - self.starts(items)

    def item_at(self, points: Tensor) -> Tensor:
        """Return the items on `points` (int32), int32."""
        if self.ends is None:
            return points + 1
        # The entry of item 0 is never counted, so the count is that of items that end at or before a point.
        first = torch.zeros_like(points)
        items = len(self.ends) - 1
        return count_not_above(self.ends, first, torch.full_like(points, items), items, points).add_(1)


def _require_items(cardinality: int) -> None:
    if cardinality < 2:
        raise UserError("train.negatives: the dataset has no known item to draw from; give more interactions")


def count_not_above(segments: Tensor, first: Tensor, length: Tensor, longest: int, values: Tensor) -> Tensor:
    """Return the number of entries of each value's segment that are <= the value, by binary search; of the type of
    `first`.

    `segments`: sorted segments one after the other, behind one entry that is never counted. `first` and `length`: each
    value's segment, where `first` does not count that entry. `longest`: an upper bound of the lengths.

    It takes only the steps and the memory that a segment needs, so it is several times faster on a CPU than a search
    over all segments at once (torch.searchsorted on keys with an offset for each segment). Never waits for the device.
    """
    start = first.clone()
    for _ in range(longest.bit_length()):
        # If the last entry of the lower half counts, so does the whole half.
        rest = length >> 1
        half = length - rest
        half *= segments.index_select(0, start + half) <= values
        start += half
        length = rest
    start -= first
    return start


@dataclass(frozen=True)
class UncheckedNegatives:
    """Draws any item, so some are positives of their user, as in NVIDIA's NCF."""

    distribution: ItemDistribution

    def draw(self, bits: Tensor, users: Tensor) -> Tensor:
        """Return an item (int32) for each of `users`, as a function of its 64 random `bits` (int64)."""
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
        pairs = pairs[items > 0].sort().values.unique_consecutive()
        bounds = torch.arange(num_users + 1, device=pairs.device) * stride
        first = torch.searchsorted(pairs, bounds)
        items_of = pairs % stride
        del pairs
        masses = distribution.masses(items_of)
        before = torch.cat([masses.new_zeros(1), masses.cumsum(0)])
        del masses
        lengths = first.diff()
        taken = before.index_select(0, first).diff()
        if len(full := torch.nonzero(taken >= distribution.total)):
            raise UserError(
                f"train.negatives.check: user {int(full[0])} has every item, so no negative can be drawn; "
                "set it to unchecked"
            )
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
        """Return an item (int32) for each of `users`, as a function of its 64 random `bits` (int64)."""
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
