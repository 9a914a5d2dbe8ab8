"""The training samples of a split: positives, and negatives that are drawn anew in every epoch."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rayrec.config.train import NegativesConfig, RecencyConfig
from rayrec.features.schema import Schema
from rayrec.ingest.interactions.item_distribution import ItemDistribution
from rayrec.ingest.interactions.negatives import ExactNegatives, Negatives, UncheckedNegatives
from rayrec.ingest.interactions.positives import Positives, interaction_columns
from rayrec.ingest.interactions.recency import RecencyDraws
from rayrec.random.permutation_torch import TablePermutation
from rayrec.random.splitmix64_torch import derive_key, random_bits

# Each use of the seed has another word in its key, so that no two uses draw the same numbers.
_ORDER, _NEGATIVES, _POSITIVES = 1, 2, 3


class Samples(NamedTuple):
    """The columns of n samples."""

    users: Tensor
    """(n,) ids, of the positives' dtype."""
    items: Tensor
    """(n,) ids, of the same dtype."""
    labels: Tensor
    """(n,) float32: 1 for a positive, 0 for a negative."""


@dataclass(frozen=True, eq=False)
class SampledSplit:
    """A split's positives on the device and the draws of their negatives, for all epochs."""

    positives: Positives
    negatives: Negatives
    per_positive: int
    recency: RecencyDraws | None = None
    """If None, each positive comes once in an epoch."""

    @classmethod
    def of(
        cls, positives: Positives, schema: Schema, config: NegativesConfig, recency: RecencyConfig | None = None
    ) -> "SampledSplit":
        """Raises UserError if there is no item to draw, or the positives are not in the order of time."""
        columns = interaction_columns(schema)
        cardinality = {f.name: f.cardinality for f in schema.categorical}
        distribution = (
            ItemDistribution.by_popularity(positives.items, cardinality[columns.item], config.popularity_exponent)
            if config.popularity_exponent > 0
            else ItemDistribution.uniform(cardinality[columns.item])
        )
        negatives = (
            ExactNegatives.of(positives.users, positives.items, cardinality[columns.user], distribution)
            if config.check == "exact"
            else UncheckedNegatives(distribution)
        )
        draws = RecencyDraws.of(positives.users, recency) if recency is not None else None
        return cls(positives, negatives, config.per_positive, draws)

    def __len__(self) -> int:
        """The number of samples in an epoch."""
        return len(self.positives) * (1 + self.per_positive)

    def epoch(self, seed: int, epoch: int) -> "SampledEpoch":
        """One epoch, which depends only on the seed and its number."""
        device = self.positives.users.device
        order = TablePermutation(len(self), derive_key(seed, _ORDER, epoch), device)
        return SampledEpoch(self, order, derive_key(seed, _NEGATIVES, epoch), derive_key(seed, _POSITIVES, epoch))


@dataclass(frozen=True, eq=False)
class SampledEpoch:
    """The samples of an epoch in its order, each of which is computed from its place."""

    split: SampledSplit
    order: TablePermutation
    negatives_key: int
    positives_key: int

    def at(self, places: Tensor) -> Samples:
        """The samples at `places` (1-d int64, 0 ... samples of the epoch - 1); waits for no device."""
        group = 1 + self.split.per_positive
        positives, negatives = self.split.positives, self.split.negatives
        # Sample s belongs to slot s // group: the first sample of a slot is its positive, the others are negatives.
        sample = self.order(places)
        slot = torch.div(sample, group, rounding_mode="floor")
        is_positive = sample == slot * group
        positive = self.split.recency(slot, self.positives_key) if self.split.recency is not None else slot
        users = positives.users.index_select(0, positive)
        drawn = negatives.draw(random_bits(self.negatives_key, sample), users)
        items = torch.where(is_positive, positives.items.index_select(0, positive), drawn)
        return Samples(users, items, is_positive.float())
