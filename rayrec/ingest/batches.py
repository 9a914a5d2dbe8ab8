"""Cuts the row groups of an epoch into batches, and assembles each batch by copying slices of rows."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.feature_kinds import MultiHotFeature
from rayrec.features.schema import Schema
from rayrec.ingest.order import BatchOrder, group_starts
from rayrec.ingest.packed_rows import PackedRows, id_type, present
from rayrec.models.common.batch import Batch


@dataclass
class BatchArrays:
    """The arrays of a batch before they are moved to its device; pinned if they are in host memory and go to a GPU."""

    dense: Tensor
    ids: Tensor
    """Ids of all features, one feature after the other."""
    lengths: Tensor | None
    """(features * B,) the number of ids in each row of each feature; None if it is 1 everywhere."""
    ids_per_feature: list[int]
    label: Tensor
    weight: Tensor
    group: Tensor | None
    id_weights: Tensor | None = None
    """(len(ids),) float32 weights; None where no feature of the schema has any."""

    def to_batch(self, schema: Schema, device: torch.device) -> Batch:
        """Copy to `device`, without waiting if the arrays are pinned."""
        # It takes a second to import, and who only reads pairs (the recommender) does without.
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        size, keys = len(self.label), [f.name for f in schema.categorical]
        if self.lengths is None:
            lengths, offsets = _one_id_each(size, len(keys), self.ids.dtype, device)
        else:
            lengths, offsets = move(self.lengths), None
        sparse = KeyedJaggedTensor(
            keys,
            move(self.ids),
            weights=None if self.id_weights is None else move(self.id_weights),
            lengths=lengths,
            offsets=offsets,
            stride=size,
            # Given here, because computing them later would wait for the device.
            length_per_key=self.ids_per_feature,
            offset_per_key=list(accumulate(self.ids_per_feature, initial=0)),
        )
        return Batch(
            dense=move(self.dense),
            sparse=sparse,
            label=move(self.label),
            weight=move(self.weight),
            group=None if self.group is None else move(self.group),
        )


class OrderedRows(Protocol):
    """All rows of a row group, in the order of an epoch."""

    @property
    def group(self) -> NDArray[np.int64] | None:
        """Return the group ids of rows, (n,); needed with whole groups only."""

    def __len__(self) -> int: ...


R = TypeVar("R", bound=OrderedRows)


@dataclass(frozen=True)
class _HeldRowGroup(Generic[R]):
    """A row group that batches take rows of."""

    rows: R
    group_bounds: NDArray[np.int64] | None
    """Where groups begin in `rows`, and their end; None if batches are cut at any row."""
    last_batch: int

    def piece(self, start: int, stop: int) -> tuple[R, slice]:
        """Return the rows start ... stop - 1, or with whole groups those of the groups that begin there."""
        if self.group_bounds is None:
            return self.rows, slice(start, stop)
        first, last = np.searchsorted(self.group_bounds, [start, stop])
        return self.rows, slice(int(self.group_bounds[first]), int(self.group_bounds[last]))


def cut_batches(order: BatchOrder, row_groups: Iterator[R]) -> Iterator[list[tuple[R, slice]]]:
    """Yield the rows of each of one rank's batches from `start_batch` on, in order, as slices of row groups.

    `row_groups` yields what `order.needs` lists. Holds about one row group of each lane.
    """
    needs = deque(order.needs)
    held: dict[int, _HeldRowGroup[R]] = {}
    for batch in range(order.start_batch, order.num_batches):
        # Take the row groups that this batch is the first to need.
        while needs and needs[0].first_batch == batch:
            need, rows, bounds = needs.popleft(), next(row_groups), None
            if order.longest_group is not None:
                bounds = np.append(group_starts(present(rows.group)), len(rows))
            held[need.row_group] = _HeldRowGroup(rows, bounds, need.last_batch)
        yield [held[row_group].piece(start, stop) for row_group, start, stop in order.slices(batch)]
        # Before waiting for the next ones, forget those that no later batch needs.
        held = {number: row_group for number, row_group in held.items() if row_group.last_batch > batch}


def assemble(
    schema: Schema, order: BatchOrder, row_groups: Iterator[PackedRows], *, pin_memory: bool
) -> Iterator[BatchArrays]:
    """Yield one rank's batches from `start_batch` on; `row_groups` yields what `order.needs` lists."""
    for number, pieces in enumerate(cut_batches(order, row_groups), order.start_batch):
        yield _merge(schema, pieces, order.local_size(number), pin_memory)


def _merge(schema: Schema, pieces: list[tuple[PackedRows, slice]], size: int, pin_memory: bool) -> BatchArrays:
    """Copy the pieces and pad them to `size` rows.

    A padding row repeats the first row with weight 0 and empty lists; without any row, ids and numbers are 0.
    """

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        # Torch's cache of pinned memory waits for copies from a buffer before it reuses the buffer.
        return torch.empty(shape, dtype=dtype, pin_memory=pin_memory)

    # The columns with one value a row. What follows the filled rows is padding, which weighs nothing.
    filled = sum(rows.stop - rows.start for _, rows in pieces)
    dense, label, weight = empty(size, schema.dense_width), empty(size), empty(size)
    _join(dense, [row_group.dense[rows] for row_group, rows in pieces])
    _join(label, [row_group.label[rows] for row_group, rows in pieces])
    if schema.weight:
        _join(weight, [present(row_group.weight)[rows] for row_group, rows in pieces])
    else:
        weight.fill_(1.0)
    weight[filled:] = 0.0
    group = empty(size, dtype=torch.int64) if schema.group else None
    if group is not None:
        _join(group, [present(row_group.group)[rows] for row_group, rows in pieces])

    # Ids as a KeyedJaggedTensor has them: all of the first feature, then all of the second. Where every feature has one
    # id a row, that is a matrix.
    ids_are, features = getattr(torch, id_type(schema).name), len(schema.categorical)
    if not schema.hotness:
        ids = empty(features, size, dtype=ids_are)
        _join(ids.T, [row_group.one_hot[:, rows].T for row_group, rows in pieces])
        return BatchArrays(dense, ids.view(-1), None, [size] * features, label, weight, group)

    # With lists: first how many ids each row of each feature has ...
    parts: list[list[NDArray]] = []
    weights: list[list[NDArray] | None] = []
    """None for features whose ids all weigh 1."""
    lengths = empty(features, size, dtype=ids_are)
    one_hot = multi_hot = 0
    for index, feature in enumerate(schema.categorical):
        if isinstance(feature, MultiHotFeature):
            lists = [row_group.multi_hot[multi_hot].part(rows) for row_group, rows in pieces]
            parts.append([part.values for part in lists])
            weights.append([present(part.weights) for part in lists] if feature.weights else None)
            _join(lengths[index], [np.diff(part.offsets) for part in lists])
            lengths[index, filled:] = 0
            multi_hot += 1
        else:
            parts.append([row_group.one_hot[one_hot, rows] for row_group, rows in pieces])
            weights.append(None)
            lengths[index] = 1
            one_hot += 1
    per_feature = [
        sum(map(len, values)) if isinstance(feature, MultiHotFeature) else size
        for feature, values in zip(schema.categorical, parts, strict=True)
    ]
    # ... then the ids one feature after the other, and their weights beside them.
    ids = empty(sum(per_feature), dtype=ids_are)
    for target, values in zip(ids.split(per_feature), parts, strict=True):
        _join(target, values)
    id_weights = None
    if schema.weighted:
        id_weights = empty(len(ids)).fill_(1.0)
        for target, own in zip(id_weights.split(per_feature), weights, strict=True):
            if own is not None:
                _join(target, own)
    return BatchArrays(dense, ids, lengths.view(-1), per_feature, label, weight, group, id_weights)


def _join(target: Tensor, parts: list[NDArray]) -> None:
    """Fill the rows of `target` with those of the parts, and the rest with its first row, or with 0 without any row."""
    rows, filled = target.numpy(), 0
    for part in parts:
        rows[filled : filled + len(part)] = part
        filled += len(part)
    rows[filled:] = rows[:1] if filled else 0


@lru_cache(maxsize=8)
def _one_id_each(size: int, features: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (lengths, offsets) of `features` features with one id in each row, the same for every batch of a size."""
    count = size * features
    return torch.ones(count, dtype=dtype, device=device), torch.arange(count + 1, dtype=dtype, device=device)
