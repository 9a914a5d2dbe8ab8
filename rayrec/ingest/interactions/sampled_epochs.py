"""Epochs of sampled interactions: positives, negatives drawn anew in every epoch, and the batches of both.

Samples are computed on the device from their places in the epoch, some batches ahead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.train import NegativesConfig, RecencyConfig
from rayrec.features.schema import Schema
from rayrec.ingest.batches import BatchArrays
from rayrec.ingest.interactions.negatives import ExactNegatives, ItemDistribution, UncheckedNegatives
from rayrec.ingest.interactions.pairs import Positives, interaction_columns
from rayrec.ingest.loader import EpochLoader
from rayrec.ingest.order import BatchOrder
from rayrec.models.common.batch import Batch
from rayrec.random.tensors import TablePermutation, derive_key, random_bits

# Each use of the seed has another word in its key, so that no two uses draw the same numbers.
_ORDER, _NEGATIVES, _POSITIVES = 1, 2, 3
_LARGEST_PRODUCT = 2**61
"""The largest product of positives and points, with which places are computed in int64 despite rounding errors."""

_AHEAD = {"cpu": 2**18, "cuda": 2**22}
"""About so many samples, but at least a batch, are computed with one call, to outweigh the overhead of the call."""
_BLOCK_ON_CPU = 2**16
"""Intermediate results of so many samples stay in the processor's cache."""


class Samples(NamedTuple):
    """The columns of n samples."""

    users: Tensor
    """(n,) ids, of the positives' dtype."""
    items: Tensor
    """(n,) ids, of the same dtype."""
    labels: Tensor
    """(n,) float32: 1 for a positive, 0 for a negative."""


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
        """Weigh positives of `users` (positives,), whose rows each lie next to each other, in the order of time.

        Raises ConfigError if the rows of a user are not together.
        """
        later = _later_rows(users)
        weights = config.floor + torch.exp2(later.double().neg_() / config.half_life)
        points = _LARGEST_PRODUCT // len(users) - len(users)
        masses = (weights * (points / float(weights.sum()))).long().clamp_(min=1)
        ends = masses.cumsum_(0)
        return cls(ends, int(ends[-1]))

    def __call__(self, slots: Tensor, key: int) -> Tensor:
        """Return the positive (int64) of each of `slots` (1-d int64, 0 ... positives - 1) in the epoch of `key`."""
        offset = derive_key(key) % self.total
        points = torch.div(slots * self.total + offset, len(self.ends), rounding_mode="floor")
        return torch.searchsorted(self.ends, points, right=True)


def _later_rows(users: Tensor) -> Tensor:
    """Return, for each row, the number of later rows of its user, int64."""
    _, lengths = users.unique_consecutive(return_counts=True)
    if len(lengths) != len(users.unique()):
        raise ConfigError(
            "train.recency: the rows of a user are not together in split 'train', so they are not in "
            "order of time; preprocess with a source of interactions, or unset it"
        )
    last = (lengths.cumsum(0) - 1).repeat_interleave(lengths)
    return last - torch.arange(len(users), device=users.device)


@dataclass(frozen=True, eq=False)
class SampledSplit:
    """A split's positives on the device and the draws of their negatives, for all epochs."""

    positives: Positives
    negatives: ExactNegatives | UncheckedNegatives
    per_positive: int
    recency: RecencyDraws | None = None
    """The positives of an epoch are drawn by this; if None, each comes once."""

    @classmethod
    def of(
        cls,
        positives: Positives,
        known: Positives,
        schema: Schema,
        config: NegativesConfig,
        recency: RecencyConfig | None = None,
    ) -> "SampledSplit":
        """Prepare the draws of a split; `known`: the pairs that are no negatives where these are exact.

        Raises UserError if there is no item to draw, or the positives are not in the order of time."""
        columns = interaction_columns(schema)
        cardinality = {f.name: f.cardinality for f in schema.categorical}
        distribution = (
            ItemDistribution.by_popularity(positives.items, cardinality[columns.item], config.popularity_exponent)
            if config.popularity_exponent > 0
            else ItemDistribution.uniform(cardinality[columns.item])
        )
        negatives: ExactNegatives | UncheckedNegatives = UncheckedNegatives(distribution)
        if config.check == "exact":
            negatives = ExactNegatives.of(known.users, known.items, cardinality[columns.user], distribution)
        draws = RecencyDraws.of(positives.users, recency) if recency is not None else None
        return cls(positives, negatives, config.per_positive, draws)

    def __len__(self) -> int:
        """Return the number of samples in an epoch."""
        return len(self.positives) * (1 + self.per_positive)

    def epoch(self, seed: int, epoch: int) -> "SampledEpoch":
        """Return one epoch, which depends only on the seed and its number."""
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
        """Return the samples at `places` (1-d int64, 0 ... samples of the epoch - 1); waits for no device."""
        group = 1 + self.split.per_positive
        positives, negatives = self.split.positives, self.split.negatives
        # Sample s belongs to slot s // group: the first sample of a slot is its positive, the others are negatives.
        sample = self.order(places)
        slot = torch.div(sample, group, rounding_mode="floor")
        is_positive = sample == slot * group
        positive = self.split.recency(slot, self.positives_key) if self.split.recency is not None else slot
        # Negatives are drawn for every place, as to leave positives out would wait for the device.
        users = positives.users.index_select(0, positive)
        drawn = negatives.draw(random_bits(self.negatives_key, sample), users)
        items = torch.where(is_positive, positives.items.index_select(0, positive), drawn)
        return Samples(users, items, is_positive.float())


class SampledLoader(EpochLoader):
    """Batches of sampled interactions; a short rank is padded with the sample that follows, one of the same batch.

    It has no thread: on a GPU the calls only queue work, and on a CPU sampling takes so little of a step's time that a
    thread, which would compete for the same cores, would gain nothing.
    """

    def __init__(self, split: SampledSplit, schema: Schema, order: BatchOrder) -> None:
        """Load `order`, whose one row group stands for the samples of `split`.

        Raises UserError if no batch can be filled.
        """
        super().__init__(order)
        if order.num_batches == 0:
            raise UserError(
                f"train.global_batch_size: {len(split.positives)} positives and their negatives are {len(split)} "
                f"samples, which fill no batch of {order.global_batch_size}; lower it"
            )
        self._schema = schema
        self._epoch = split.epoch(order.seed, order.epoch)
        self._device = split.positives.users.device
        user = interaction_columns(schema).user
        self._user_index = [feature.name for feature in schema.categorical].index(user)

    def __iter__(self) -> Iterator[Batch]:
        order = self._order
        at_once = max(1, _AHEAD["cuda" if self._device.type == "cuda" else "cpu"] // order.local_size(0))
        full_batches = order.total_rows // order.global_batch_size
        number = order.start_batch
        while number < order.num_batches:
            with self._waited_for():
                # A last, smaller batch comes alone.
                stop = min(number + at_once, max(number + 1, full_batches))
                chunk = self._compute(range(number, stop))
            for ids, label in zip(*chunk, strict=True):
                with self._waited_for():
                    batch = self._batch(number, ids, label)
                number += 1
                yield batch

    def _compute(self, batches: range) -> tuple[Tensor, Tensor]:
        """Return (batches, 2, B) ids, in the order of the schema's features, and (batches, B) labels."""
        size = self._order.local_size(batches.start)
        firsts = torch.arange(len(batches), device=self._device) * self._order.global_batch_size
        firsts += self._order.first_row(batches.start)
        places = (firsts[:, None] + torch.arange(size, device=self._device)).view(-1)
        block = _BLOCK_ON_CPU if self._device.type == "cpu" else len(places)
        parts = [self._epoch.at(part) for part in places.split(block)]
        samples = Samples(*(torch.cat(column).view(-1, size) for column in zip(*parts, strict=True)))
        pair = (samples.users, samples.items)
        return torch.stack(pair if self._user_index == 0 else pair[::-1], dim=1), samples.labels

    def _batch(self, number: int, ids: Tensor, label: Tensor) -> Batch:
        size = len(label)
        weight = torch.ones(size, device=self._device)
        weight[self._order.local_rows(number) :] = 0.0
        return BatchArrays(
            dense=torch.empty((size, 0), device=self._device),
            ids=ids.view(-1),
            lengths=None,
            ids_per_feature=[size, size],
            label=label,
            weight=weight,
            group=ids[self._user_index].long() if self._schema.group else None,
        ).to_batch(self._schema, self._device)
