"""Splits that are kept for all epochs: in the host's memory, or on one device as a whole.

Batches of a split on a device are gathered there, by numbers of rows that the host sends.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.feature_kinds import MultiHotFeature
from rayrec.features.schema import Schema
from rayrec.ingest.batches import BatchArrays, cut_batches
from rayrec.ingest.dataset import Dataset
from rayrec.ingest.order import BatchOrder
from rayrec.ingest.packed_rows import PackedRows, RowPacker, id_type, present
from rayrec.models.common.batch import Batch

_SHARE_OF_FREE_MEMORY = 0.25


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
        lengths = np.concatenate([np.diff(part.offsets) for part in ragged]).astype(np.int64)
        return _Lists(
            values=self._moved([part.values for part in ragged]),
            starts=self._moved([np.cumsum(lengths) - lengths]),
            lengths=lengths,
            weights=self._moved([present(part.weights) for part in ragged]) if feature.weights else None,
        )

    def _moved(self, parts: list[NDArray[Any]], axis: int = 0) -> Tensor:
        return torch.from_numpy(np.concatenate(parts, axis)).to(self._device)

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
