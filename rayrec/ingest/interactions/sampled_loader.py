"""Loads batches of sampled interactions, which are computed on the device some batches ahead."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType

import torch
from torch import Tensor

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.ingest.batches import BatchArrays
from rayrec.ingest.interactions.positives import interaction_columns
from rayrec.ingest.interactions.samples import SampledSplit, Samples
from rayrec.models.common.batch import Batch

_AHEAD = {"cpu": 2**18, "cuda": 2**22}
"""About so many samples, but at least a batch, are computed with one call, to outweigh the overhead of the call."""
_BLOCK_ON_CPU = 2**16
"""Intermediate results of so many samples stay in the processor's cache."""


@dataclass(frozen=True, kw_only=True)
class SampleSlices:
    """The samples of an epoch that each batch holds on one rank.

    Global batch b is samples b * G ... (b + 1) * G - 1 of the epoch's order, and rank r of W takes
    n*r//W ... n*(r+1)//W of its n samples. A short rank is padded with the sample that follows, one
    of the same global batch.
    """

    total: int
    """The number of samples of the epoch."""
    global_batch_size: int
    world_size: int = 1
    rank: int = 0
    drop_last: bool = True
    """Leave out the last global batch if it is not full."""

    @property
    def num_batches(self) -> int:
        full, rest = divmod(self.total, self.global_batch_size)
        return full + (rest > 0 and not self.drop_last)

    @property
    def rows_dropped(self) -> int:
        return self.total % self.global_batch_size if self.drop_last else 0

    def row_count(self, batch: int) -> int:
        assert 0 <= batch < self.num_batches, batch
        return min(self.global_batch_size, self.total - batch * self.global_batch_size)

    def first(self, batch: int) -> int:
        """The place of this rank's first sample."""
        return batch * self.global_batch_size + self.row_count(batch) * self.rank // self.world_size

    def local_rows(self, batch: int) -> int:
        """Samples of the batch on this rank."""
        rows = self.row_count(batch)
        return rows * (self.rank + 1) // self.world_size - rows * self.rank // self.world_size

    def local_size(self, batch: int) -> int:
        """Samples of the batch on every rank after padding."""
        return -(-self.row_count(batch) // self.world_size)


class SampledLoader(AbstractContextManager["SampledLoader"]):
    """The batches of an epoch from `start_batch` on; the interface is that of `rayrec.ingest.loader.BatchLoader`.

    It has no thread: on a GPU the calls only queue work, and on a CPU sampling takes so little of a step's time that a
    thread, which would compete for the same cores, would gain nothing.
    """

    def __init__(
        self,
        split: SampledSplit,
        schema: Schema,
        slices: SampleSlices,
        *,
        seed: int = 0,
        epoch: int = 0,
        start_batch: int = 0,
    ) -> None:
        """Raises UserError if no batch can be filled."""
        if slices.num_batches == 0:
            raise UserError(
                f"train.global_batch_size: {len(split.positives)} positives and their negatives are {len(split)} "
                f"samples, which fill no batch of {slices.global_batch_size}; lower it"
            )
        self._slices = slices
        self._schema = schema
        self._epoch = split.epoch(seed, epoch)
        self._device = split.positives.users.device
        self._next_batch = start_batch
        self.wait_seconds = 0.0
        """Seconds for which the consumer has waited for batches so far."""

    @property
    def num_batches(self) -> int:
        """Batches of the epoch, including those before `start_batch`; the same on every rank."""
        return self._slices.num_batches

    @property
    def rows_dropped(self) -> int:
        """Samples of the epoch that are in no batch."""
        return self._slices.rows_dropped

    def row_count(self, batch: int) -> int:
        """Samples of the global batch over all ranks, without padding: the sum of its weights."""
        return self._slices.row_count(batch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return None

    def __iter__(self) -> Iterator[Batch]:
        size = self._slices.local_size(0)
        at_once = max(1, _AHEAD["cuda" if self._device.type == "cuda" else "cpu"] // size)
        while self._next_batch < self.num_batches:
            waiting_since = time.perf_counter()
            # A last, smaller batch comes alone.
            stop = min(self._next_batch + at_once, max(self._next_batch + 1, self._full_batches))
            chunk = self._compute(range(self._next_batch, stop))
            self.wait_seconds += time.perf_counter() - waiting_since
            for index in range(stop - self._next_batch):
                waiting_since = time.perf_counter()
                batch = self._batch(self._next_batch, *(column[index] for column in chunk))
                self._next_batch += 1
                self.wait_seconds += time.perf_counter() - waiting_since
                yield batch

    @property
    def _full_batches(self) -> int:
        return self._slices.total // self._slices.global_batch_size

    def _compute(self, batches: range) -> tuple[Tensor, Tensor]:
        """(batches, 2, B) ids, the features in the schema's order, and (batches, B) labels, of batches of one size."""
        slices = self._slices
        size = slices.local_size(batches.start)
        firsts = torch.arange(len(batches), device=self._device) * slices.global_batch_size + slices.first(
            batches.start
        )
        places = (firsts[:, None] + torch.arange(size, device=self._device)).view(-1)
        block = _BLOCK_ON_CPU if self._device.type == "cpu" else len(places)
        parts = [self._epoch.at(part) for part in places.split(block)]
        samples = Samples(*(torch.cat(column).view(-1, size) for column in zip(*parts, strict=True)))
        pair = (samples.users, samples.items)
        return torch.stack(pair if self._user_index == 0 else pair[::-1], dim=1), samples.labels

    @cached_property
    def _user_index(self) -> int:
        """0 if the user is the first of the two features, otherwise 1."""
        return [f.name for f in self._schema.categorical].index(interaction_columns(self._schema).user)

    def _batch(self, number: int, ids: Tensor, label: Tensor) -> Batch:
        size = len(label)
        weight = torch.ones(size, device=self._device)
        weight[self._slices.local_rows(number) :] = 0.0
        return BatchArrays(
            dense=torch.empty((size, 0), device=self._device),
            ids=ids.view(-1),
            lengths=None,
            ids_per_feature=[size, size],
            label=label,
            weight=weight,
            group=ids[self._user_index].long() if self._schema.group else None,
        ).to_batch(self._schema, self._device)
