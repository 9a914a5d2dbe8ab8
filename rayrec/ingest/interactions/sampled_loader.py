"""Loads batches of sampled interactions, which are computed on the device some batches ahead."""

from collections.abc import Iterator

import torch
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.ingest.batch_order import BatchOrder
from rayrec.ingest.batches import BatchArrays
from rayrec.ingest.interactions.positives import interaction_columns
from rayrec.ingest.interactions.samples import SampledSplit, Samples
from rayrec.ingest.loader import EpochLoader
from rayrec.models.common.batch import Batch

_AHEAD = {"cpu": 2**18, "cuda": 2**22}
"""About so many samples, but at least a batch, are computed with one call, to outweigh the overhead of the call."""
_BLOCK_ON_CPU = 2**16
"""Intermediate results of so many samples stay in the processor's cache."""


class SampledLoader(EpochLoader):
    """Batches of sampled interactions; a short rank is padded with the sample that follows, one of the same batch.

    It has no thread: on a GPU the calls only queue work, and on a CPU sampling takes so little of a step's time that a
    thread, which would compete for the same cores, would gain nothing.
    """

    def __init__(self, split: SampledSplit, schema: Schema, order: BatchOrder) -> None:
        """`order` has the samples of `split` as its one unit. Raises UserError if no batch can be filled."""
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
        """(batches, 2, B) ids, the features in the schema's order, and (batches, B) labels, of batches of one size."""
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
