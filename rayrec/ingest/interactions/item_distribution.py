"""How often each item is drawn, in whole numbers, so that drawing without some items is exact too."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayrec.common.errors import UserError

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
        """A distribution in which items 1 ... cardinality - 1 are equally frequent."""
        _require_items(cardinality)
        return cls(cardinality - 1, None)

    @classmethod
    def by_popularity(cls, items: Tensor, cardinality: int, exponent: float) -> "ItemDistribution":
        """A distribution in proportion to (interactions of the item)^exponent; `items`: the item of each interaction.

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
        """The first points of `items` (from 1 on), int64."""
        if self.ends is None:
            return items.long() - 1
        return self.ends.index_select(0, items.long() - 1).long()

    def masses(self, items: Tensor) -> Tensor:
        """The masses of `items` (from 1 on), int64."""
        if self.ends is None:
            return torch.ones_like(items, dtype=torch.int64)
        return self.ends.index_select(0, items.long()).long() - self.starts(items)

    def item_at(self, points: Tensor) -> Tensor:
        """The items on `points` (int32), int32."""
        if self.ends is None:
            return points + 1
        # The entry of item 0 is never counted, so the count is that of items that end at or before a point.
        first = torch.zeros_like(points)
        items = len(self.ends) - 1
        return count_not_above(self.ends, first, torch.full_like(points, items), items, points).add_(1)


def _require_items(cardinality: int) -> None:
    if cardinality < 2:
        raise UserError("train.negatives: the dataset has no known item to draw; give more interactions")


def count_not_above(segments: Tensor, first: Tensor, length: Tensor, longest: int, values: Tensor) -> Tensor:
    """The number of entries of each value's segment that are <= the value, by binary search; of the type of `first`.

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
