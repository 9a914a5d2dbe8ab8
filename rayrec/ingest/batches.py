"""Batches of an epoch, from row groups that are streamed or kept in memory.

`cut_batches` says which slices of which row groups a batch has, in either case. Streamed ones, and those of a split in
the host's memory (`InMemorySplit`), are copied into the arrays of the batch on the host (`assemble`). A split on a
device (`ResidentSplit`) gathers the batch there, by numbers of rows that the host sends.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.order import BatchOrder, group_starts
from rayrec.ingest.packed_rows import PackedRows, RowPacker, id_type, present
from rayrec.models.common.batch import Batch

_SHARE_OF_FREE_MEMORY = 0.25


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
    values: list[list[NDArray]] = []
    weights: list[list[NDArray] | None] = []
    """None for features whose ids all weigh 1."""
    lengths = empty(features, size, dtype=ids_are)
    one_hot = multi_hot = 0
    for index, feature in enumerate(schema.categorical):
        if isinstance(feature, MultiHotFeature):
            lists = [row_group.multi_hot[multi_hot][rows] for row_group, rows in pieces]
            values.append([ragged.values for ragged in lists])
            weights.append([present(ragged.weights) for ragged in lists] if feature.weights else None)
            _join(lengths[index], [np.diff(ragged.offsets) for ragged in lists])
            lengths[index, filled:] = 0
            multi_hot += 1
        else:
            values.append([row_group.one_hot[one_hot, rows] for row_group, rows in pieces])
            weights.append(None)
            lengths[index] = 1
            one_hot += 1
    per_feature = [
        sum(map(len, own)) if isinstance(feature, MultiHotFeature) else size
        for feature, own in zip(schema.categorical, values, strict=True)
    ]
    # ... then the ids one feature after the other, and their weights beside them.
    ids = empty(sum(per_feature), dtype=ids_are)
    for target, own in zip(ids.split(per_feature), values, strict=True):
        _join(target, own)
    id_weights = None
    if schema.weighted:
        id_weights = empty(len(ids)).fill_(1.0)
        for target, of_ids in zip(id_weights.split(per_feature), weights, strict=True):
            if of_ids is not None:
                _join(target, of_ids)
    return BatchArrays(dense, ids, lengths.view(-1), per_feature, label, weight, group, id_weights)


def _join(target: Tensor, arrays: list[NDArray]) -> None:
    """Fill the rows of `target` with those of the arrays, the rest with its first row, or with 0 without any row."""
    rows, filled = target.numpy(), 0
    for array in arrays:
        rows[filled : filled + len(array)] = array
        filled += len(array)
    rows[filled:] = rows[:1] if filled else 0


@lru_cache(maxsize=8)
def _one_id_each(size: int, features: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (lengths, offsets) of `features` features with one id in each row, the same for every batch of a size."""
    count = size * features
    return torch.ones(count, dtype=dtype, device=device), torch.arange(count + 1, dtype=dtype, device=device)


@dataclass(frozen=True, eq=False)
class InMemorySplit:
    """Every row group of a split, packed, in the host's memory.

    Each worker needs the whole split, because the order of an epoch may give it any row group.
    """

    packed: tuple[PackedRows, ...]
    """By the numbers of `BatchOrder.row_groups`."""

    @classmethod
    def read(cls, dataset: Dataset, split: str) -> "InMemorySplit":
        """Read a split. Raises UserError if it has no rows, or a part is missing or damaged."""
        packer = RowPacker.of(dataset)
        return cls(tuple(packer.read_split(dataset.split(split), threads=True)))

    @property
    def bytes(self) -> int:
        """Number of bytes that the rows take."""
        return sum(rows.bytes for rows in self.packed)

    def row_groups(self, order: BatchOrder) -> Generator[PackedRows]:
        """Yield what `order.needs` lists, the rows of each row group in the epoch's order."""
        for need in order.needs:
            rows = self.packed[need.row_group]
            yield rows.take(order.row_order.rows(need.row_group, len(rows), rows.group))


@dataclass(frozen=True, eq=False)
class _NumberedRows:
    """Rows of a row group, in the epoch's order, by their numbers in the split."""

    numbers: NDArray[np.int64]
    group: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, eq=False)
class _Lists:
    """The lists of ids of one feature."""

    values: Tensor
    starts: Tensor
    """(rows,) int64: where each list starts in `values`."""
    lengths: NDArray[np.int64]
    """(rows,) in the host's memory: how many ids a batch has must be known without waiting for the device."""
    weights: Tensor | None


class ResidentSplit:
    """Every row of a split in the memory of one device, for all epochs. Its batches are those of `InMemorySplit`."""

    def __init__(self, split: InMemorySplit, schema: Schema, device: torch.device) -> None:
        packed = split.packed
        self._schema, self._device = schema, device
        self._groups = [rows.group for rows in packed]
        self._first_rows = np.cumsum([0, *map(len, packed)])
        self._label = self._moved([rows.label for rows in packed])
        self._dense = self._moved([rows.dense for rows in packed])
        self._one_hot = self._moved([rows.one_hot for rows in packed], axis=1)
        self._weight = self._moved([present(rows.weight) for rows in packed]) if schema.weight else None
        self._group = self._moved([present(rows.group) for rows in packed]) if schema.group else None
        multi_hot = [feature for feature in schema.categorical if isinstance(feature, MultiHotFeature)]
        self._lists = [self._lists_of(packed, place, feature) for place, feature in enumerate(multi_hot)]

    def batches(self, order: BatchOrder) -> Iterator[Batch]:
        """Yield the batches of one rank; work on the device is queued, and nothing waits for it."""
        batches = cut_batches(order, self._row_groups(order))
        for number, pieces in enumerate(batches, order.start_batch):
            rows = [row_group.numbers[rows] for row_group, rows in pieces]
            yield self._gather(np.concatenate(rows) if rows else np.empty(0, np.int64), order.local_size(number))

    def _row_groups(self, order: BatchOrder) -> Iterator[_NumberedRows]:
        """Yield what `order.needs` lists."""
        for need in order.needs:
            first, stop = self._first_rows[need.row_group : need.row_group + 2]
            group = self._groups[need.row_group]
            chosen = order.row_order.rows(need.row_group, int(stop - first), group)
            yield _NumberedRows(np.arange(first, stop)[chosen], None if group is None else group[chosen])

    def _gather(self, rows: NDArray[np.int64], size: int) -> Batch:
        """Return the batch of the rows, padded to `size` rows like those of `rayrec.ingest.batches`."""
        # The host sends the numbers of the rows, and the device gathers every column by them.
        filled = len(rows)
        padded = np.full(size, rows[0] if filled else 0, np.int64)
        padded[:filled] = rows
        chosen = self._sent(torch.from_numpy(padded))

        def gathered(column: Tensor, axis: int = 0) -> Tensor:
            values = column.index_select(axis, chosen)
            return values if filled else values.zero_()

        weight = torch.ones(size, device=self._device) if self._weight is None else gathered(self._weight)
        weight[filled:] = 0.0
        one_hot = gathered(self._one_hot, 1)
        dense, label = gathered(self._dense), gathered(self._label)
        group = None if self._group is None else gathered(self._group)
        if not self._lists:
            per_feature = [size] * len(one_hot)
            arrays = BatchArrays(dense, one_hot.view(-1), None, per_feature, label, weight, group)
        else:
            ids, lengths, per_feature, id_weights = self._ids(rows, padded, chosen, one_hot)
            arrays = BatchArrays(dense, ids, lengths, per_feature, label, weight, group, id_weights)
        return arrays.to_batch(self._schema, self._device)

    def _ids(
        self, rows: NDArray[np.int64], padded: NDArray[np.int64], chosen: Tensor, one_hot: Tensor
    ) -> tuple[Tensor, Tensor, list[int], Tensor | None]:
        """Return the ids, lengths, ids by feature and weights of ids, as in BatchArrays."""
        ids: list[Tensor] = []
        lengths: list[NDArray[np.int64]] = []
        weights: list[Tensor | None] = []
        per_feature: list[int] = []
        own, others = iter(self._lists), iter(one_hot)
        for feature in self._schema.categorical:
            if not isinstance(feature, MultiHotFeature):
                ids.append(next(others))
                lengths.append(np.ones(len(padded), np.int64))
                per_feature.append(len(padded))
                weights.append(None)
                continue
            # The ids of a batch's lists, one list after the other: their places count up from the start of each list.
            lists = next(own)
            counts = np.zeros(len(padded), np.int64)
            counts[: len(rows)] = lists.lengths[rows]
            total = int(counts.sum())
            on_device = self._sent(torch.from_numpy(counts))
            shifts = lists.starts.index_select(0, chosen) - (on_device.cumsum(0) - on_device)
            places = torch.arange(total, device=self._device)
            places += shifts.repeat_interleave(on_device, output_size=total)
            ids.append(lists.values.index_select(0, places))
            lengths.append(counts)
            per_feature.append(total)
            weights.append(None if lists.weights is None else lists.weights.index_select(0, places))
        numbers = self._sent(torch.from_numpy(np.concatenate(lengths).astype(id_type(self._schema))))
        id_weights = None
        if self._schema.weighted:
            ones = (torch.ones(count, device=self._device) for count in per_feature)
            id_weights = torch.cat([one if own is None else own for one, own in zip(ones, weights, strict=True)])
        return torch.cat(ids), numbers, per_feature, id_weights

    def _lists_of(self, packed: tuple[PackedRows, ...], place: int, feature: MultiHotFeature) -> _Lists:
        ragged = [rows.multi_hot[place] for rows in packed]
        lengths = np.concatenate([np.diff(lists.offsets) for lists in ragged]).astype(np.int64)
        return _Lists(
            values=self._moved([lists.values for lists in ragged]),
            starts=self._moved([np.cumsum(lengths) - lengths]),
            lengths=lengths,
            weights=self._moved([present(lists.weights) for lists in ragged]) if feature.weights else None,
        )

    def _moved(self, arrays: list[NDArray[Any]], axis: int = 0) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays, axis)).to(self._device)

    def _sent(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device, without waiting for it."""
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor


def read_split(dataset: Dataset, split: str, device: torch.device) -> InMemorySplit | ResidentSplit:
    """Read a split for all epochs: onto `device` if it is a GPU with room for it, else into the host's memory."""
    store = InMemorySplit.read(dataset, split)
    # A split takes no more of what the model leaves free: activations need memory, and so do the other splits.
    if device.type == "cuda" and store.bytes <= _SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0]:
        return ResidentSplit(store, dataset.schema, device)
    return store
