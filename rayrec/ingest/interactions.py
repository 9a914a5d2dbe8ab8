"""Interactions of users with items: epochs of positives with sampled negatives, and every pair for evaluation.

Training keeps the positives of a split on the device (`Positives`). An epoch draws negatives beside them anew, as a
function of each sample's place (`SampledSplit`), and `SampledLoader` computes its batches there, some ahead.
Evaluation ranks all items for each user (`AllCandidates`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.common.errors import ConfigError, UserError
from rayrec.config.train import NegativesConfig, RecencyConfig
from rayrec.features.schema import InteractionColumns, Schema
from rayrec.ingest.batches import BatchArrays
from rayrec.ingest.dataset import KNOWN_SPLIT, Dataset
from rayrec.ingest.loader import EpochLoader
from rayrec.ingest.negatives import ExactNegatives, ItemDistribution, UncheckedNegatives
from rayrec.ingest.order import BatchOrder, row_groups_of
from rayrec.ingest.packed_rows import RowPacker, id_type
from rayrec.ingest.row_groups import stream_row_groups
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


def interaction_columns(schema: Schema) -> InteractionColumns:
    """Return the user and item columns of a schema that is known to have them."""
    assert schema.interactions is not None, "what needs them is refused for other datasets before workers start"
    return schema.interactions


def num_item_rows(schema: Schema) -> int:
    """Return the number of rows of the items' table."""
    (items,) = (f.cardinality for f in schema.categorical if f.name == interaction_columns(schema).item)
    return items


@dataclass(frozen=True, eq=False)
class Positives:
    """Every row of a split, in the order of its parts."""

    users: Tensor
    """(rows,) int32, or int64 if a table has more rows than int32 can count."""
    items: Tensor
    """(rows,) of the same type."""

    def __len__(self) -> int:
        return len(self.users)

    @classmethod
    def read(
        cls,
        dataset: Dataset,
        split: str,
        device: torch.device,
        *,
        in_memory: bool = False,
        by_ray_data: bool = False,
        world_size: int = 1,
        task_cpus: int | None = None,
    ) -> "Positives":
        """Read the rows from Parquet: at once if `in_memory`, otherwise streamed (`stream_row_groups`).

        `by_ray_data`: tasks of Ray Data stream instead of threads. `world_size`: the number of workers that do the same
        at this time; each holds every row. `task_cpus`: see `IngestConfig`. Takes the host memory of a few row groups
        besides the tensors.
        """
        info, schema, columns = dataset.split(split), dataset.schema, interaction_columns(dataset.schema)
        if in_memory:
            row_groups = RowPacker.of(dataset).read_split(info, threads=True)
        else:
            # One batch of all rows, in one lane, needs the row groups in their order.
            order = BatchOrder(
                row_groups=row_groups_of(info.parts), global_batch_size=info.rows, read_streams=1, shuffle="none"
            )
            row_groups = stream_row_groups(
                dataset, order, by_ray_data=by_ray_data, executions=world_size, task_cpus=task_cpus
            )
        one_hot = [f.name for f in schema.categorical if f.kind == "categorical"]
        user, item = one_hot.index(columns.user), one_hot.index(columns.item)
        ids_are = getattr(torch, id_type(schema).name)
        users, items = (torch.empty(info.rows, dtype=ids_are, device=device) for _ in range(2))
        filled = 0
        for rows in row_groups:
            place = slice(filled, filled + len(rows))
            # The rows may be read-only views of Ray's memory, which torch does not accept.
            users[place] = torch.from_numpy(rows.one_hot[user].copy())
            items[place] = torch.from_numpy(rows.one_hot[item].copy())
            filled += len(rows)
        assert filled == len(users), (filled, len(users))
        return cls(users, items)


def rows_of_users(users: Tensor, field: str, otherwise: str = "") -> Tensor:
    """Return the numbers of rows (int64) of the users, in their order, of rows of `users` (rows,) in order of time.

    Raises ConfigError, which names the field that needs the order and what to do otherwise, if the rows of a user are
    not together.
    """
    _, lengths = users.unique_consecutive(return_counts=True)
    if len(lengths) != len(users.unique()):
        raise ConfigError(
            f"{field}: the rows of a user are not together in split 'train', so they are not in order of time; "
            f"preprocess with a source of interactions{otherwise}"
        )
    return lengths


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
        lengths = rows_of_users(users, "train.recency", ", or unset it")
        # A positive's age is the number of later ones of its user.
        last = (lengths.cumsum(0) - 1).repeat_interleave(lengths)
        later = last - torch.arange(len(users), device=users.device)
        weights = config.floor + torch.exp2(later.double().neg_() / config.half_life)
        # Points are shares of the largest total with which places stay in int64; each positive has at least one.
        points = _LARGEST_PRODUCT // len(users) - len(users)
        masses = (weights * (points / float(weights.sum()))).long().clamp_(min=1)
        ends = masses.cumsum_(0)
        return cls(ends, int(ends[-1]))

    def __call__(self, slots: Tensor, key: int) -> Tensor:
        """Return the positive (int64) of each of `slots` (1-d int64, 0 ... positives - 1) in the epoch of `key`."""
        offset = derive_key(key) % self.total
        points = torch.div(slots * self.total + offset, len(self.ends), rounding_mode="floor")
        return torch.searchsorted(self.ends, points, right=True)


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
        blocks = [self._epoch.at(some) for some in places.split(block)]
        samples = Samples(*(torch.cat(column).view(-1, size) for column in zip(*blocks, strict=True)))
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


def positive_pairs(dataset: Dataset, split: str) -> Iterator[NDArray[np.int64]]:
    """Yield the positive rows of each row group as pairs: user * items + item, without those of unknown users and
    items.
    """
    for pairs, label in _labelled_pairs(dataset, split):
        yield pairs[label > 0.5]


def known_pairs(dataset: Dataset) -> Iterator[NDArray[np.int64]]:
    """Yield the pairs, as `positive_pairs`, of `Dataset.known_split`, which is of all that is known, those too that are
    no choices, or else of positives in `train`.
    """
    for pairs, label in _labelled_pairs(dataset, dataset.known_split):
        yield pairs if dataset.known_split == KNOWN_SPLIT else pairs[label > 0.5]


def _labelled_pairs(dataset: Dataset, split: str) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    interactions = interaction_columns(dataset.schema)
    names = [feature.name for feature in dataset.schema.categorical]
    packer = RowPacker.of(dataset)
    for rows in packer.read_split(dataset.split(split)):
        user, item = (
            rows.one_hot[names.index(name)].astype(np.int64) for name in (interactions.user, interactions.item)
        )
        known = (user > 0) & (item > 0)
        yield user[known] * num_item_rows(dataset.schema) + item[known], rows.label[known]


@dataclass(frozen=True, eq=False)
class AllCandidates:
    """One rank's users, each with its positives in the split and the items that it must not be offered.

    Every item is a candidate, except the user's positives in `train` and in datasets before, that are not positives in
    the split. Id 0, which unknown users and items share, is neither a user nor a candidate, so interactions with it are
    left out. Only the pairs of this rank's users are in memory, 8 bytes each. Needs a dataset with a user and an item
    only.
    """

    schema: Schema
    users: NDArray[np.int64]
    """Ids of this rank's users, in ascending order."""
    users_per_rank: int
    """The largest number of users of any rank; all ranks yield batches for that many."""
    positives: NDArray[np.int64]
    """Sorted pairs (see `positive_pairs`) of this rank's users in the split."""
    seen: NDArray[np.int64]
    """Sorted pairs of this rank's users in `train` and in datasets before."""

    @classmethod
    def read(cls, dataset: Dataset, split: str, *, rank: int = 0, world_size: int = 1) -> "AllCandidates":
        """Read the positive rows of `split` and of the known pairs, one row group at a time."""
        items = num_item_rows(dataset.schema)
        positives = np.unique(np.concatenate([np.empty(0, np.int64), *positive_pairs(dataset, split)]))
        users = np.unique(positives // items)
        own = users[rank::world_size]
        seen = [pairs[np.isin(pairs // items, own)] for pairs in known_pairs(dataset)]
        return cls(
            dataset.schema,
            own,
            -(-len(users) // world_size),
            positives[np.isin(positives // items, own)],
            np.unique(np.concatenate([np.empty(0, np.int64), *seen])),
        )

    def batches(self, size: int, device: torch.device) -> Iterator[Batch]:
        """Yield the batches of `size` rows, as many on every rank, by user and then item; `group` is the user's id.

        Items that are not candidates, and rows beyond the last one, have weight 0.
        """
        items = num_item_rows(self.schema)
        users, positives, seen = (torch.from_numpy(a).to(device) for a in (self.users, self.positives, self.seen))
        for start in range(0, self.users_per_rank * (items - 1), size):
            place = torch.arange(start, start + size, device=device)
            index = place // (items - 1)
            user = users[index.clamp(max=len(users) - 1)] if len(users) else torch.zeros_like(place)
            item = place % (items - 1) + 1
            pair = user * items + item
            positive = _contains(positives, pair)
            weight = (index < len(users)) & (positive | ~_contains(seen, pair))
            yield pair_batch(self.schema, user, item, positive, weight)


def pair_batch(schema: Schema, users: Tensor, items: Tensor, labels: Tensor, weights: Tensor) -> Batch:
    """Return a batch of pairs, (n,) columns on one device, of a schema of a user and an item; `group` is the user."""
    columns, ids_are = interaction_columns(schema), getattr(torch, id_type(schema).name)
    by_name = {columns.user: users, columns.item: items}
    return BatchArrays(
        dense=torch.empty(len(users), 0, device=users.device),
        ids=torch.cat([by_name[feature.name] for feature in schema.categorical]).to(ids_are),
        lengths=None,
        ids_per_feature=[len(users), len(users)],
        label=labels.float(),
        weight=weights.float(),
        group=users,
    ).to_batch(schema, users.device)


def _contains(ascending: Tensor, values: Tensor) -> Tensor:
    """Return (n,) bool: whether each of `values` is in `ascending`."""
    if not len(ascending):
        return torch.zeros_like(values, dtype=torch.bool)
    place = torch.searchsorted(ascending, values).clamp(max=len(ascending) - 1)
    return ascending[place] == values
