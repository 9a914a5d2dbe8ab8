"""How often each item is drawn: whole numbers, so that drawing without some items is exact too."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.ingest.interactions.search import count_not_above

_LARGEST_TOTAL = 2**31 - 1
"""So that a mass fits int32, and its product with 31 random bits a word."""


@dataclass(frozen=True, eq=False)
class ItemDistribution:
    """Items 1 ... n lie end to end on the line 0 ... total - 1, each on as many points as it weighs ("mass").

    Item 0, the unknown one, has no mass.
    """

    total: int
    ends: Tensor | None
    """(n + 1,) int32: the first point after each item, from item 0 on; None where every item has one point."""

    @classmethod
    def uniform(cls, cardinality: int) -> "ItemDistribution":
        """Items 1 ... cardinality - 1 alike."""
        _require_items(cardinality)
        return cls(cardinality - 1, None)

    @classmethod
    def by_popularity(cls, items: Tensor, cardinality: int, exponent: float) -> "ItemDistribution":
        """In proportion to (interactions of the item)^exponent; `items`: the item of each interaction.

        Rounded down to whole shares of 2^31, of which each item, one without interactions too, has at least one.
        """
        _require_items(cardinality)
        counts = torch.bincount(items, minlength=cardinality)[1:].double()
        weights = torch.where(counts > 0, counts**exponent, 0.0)
        scale = (_LARGEST_TOTAL - len(weights)) / float(weights.sum())
        masses = (weights * scale).long().clamp_(min=1)
        ends = torch.cat([masses.new_zeros(1), masses.cumsum(0)]).int()
        return cls(int(ends[-1]), ends)

    def starts(self, items: Tensor) -> Tensor:
        """First points of `items` (from 1 on), int64."""
        if self.ends is None:
            return items.long() - 1
        return self.ends.index_select(0, items.long() - 1).long()

    def masses(self, items: Tensor) -> Tensor:
        """Points of `items` (from 1 on), int64."""
        if self.ends is None:
            return torch.ones_like(items, dtype=torch.int64)
        return self.ends.index_select(0, items.long()).long() - self.starts(items)

    def item_at(self, points: Tensor) -> Tensor:
        """The items on `points` (int32), int32."""
        if self.ends is None:
            return points + 1
        # The entry of item 0 is the one that is never counted: the items that end at or before a point are below.
        first = torch.zeros_like(points)
        items = len(self.ends) - 1
        return count_not_above(self.ends, first, torch.full_like(points, items), items, points).add_(1)


def _require_items(cardinality: int) -> None:
    if cardinality < 2:
        raise UserError("train.negatives: the dataset has no known item to draw; give more interactions")
