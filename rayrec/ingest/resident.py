"""A split that lies on one device as a whole: batches are gathered there, by numbers of rows that the host sends."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.ingest.batch_order import BatchOrder
from rayrec.ingest.batches import BatchArrays, cut
from rayrec.ingest.reader import PackedRows, id_type
from rayrec.ingest.reads import InMemorySplit
from rayrec.models.common.batch import Batch

_SHARE_OF_FREE_MEMORY = 0.25
"""A split takes no more of what the model leaves free: activations need memory, and so do the other splits."""


@dataclass(frozen=True, eq=False)
class _Numbered:
    """Rows of a read by their numbers in the split."""

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
        self._weight = self._moved([_present(rows.weight) for rows in packed]) if schema.weight else None
        self._group = self._moved([_present(rows.group) for rows in packed]) if schema.group else None
        multi_hot = [feature for feature in schema.categorical if isinstance(feature, MultiHotFeature)]
        self._lists = [self._lists_of(packed, place, feature) for place, feature in enumerate(multi_hot)]

    @classmethod
    def fits(cls, split: InMemorySplit, device: torch.device) -> bool:
        """Return whether the device, a GPU, has room for the split beside what a training needs."""
        return split.bytes <= _SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0]

    def batches(self, order: BatchOrder) -> Iterator[Batch]:
        """Yield the batches of one rank; work on the device is queued, and nothing waits for it."""
        for number, pieces in enumerate(cut(order, self._reads(order)), order.start_batch):
            rows = [read.numbers[rows] for read, rows in pieces]
            yield self._gather(np.concatenate(rows) if rows else np.empty(0, np.int64), order.local_size(number))

    def _reads(self, order: BatchOrder) -> Iterator[Iterator[_Numbered]]:
        for batch in range(order.start_batch, order.num_batches):
            yield (self._read(order, *order.read(index)) for index in order.reads_of(batch))

    def _read(self, order: BatchOrder, unit: int, start: int, stop: int) -> _Numbered:
        first, count = self._first_rows[unit], int(self._first_rows[unit + 1] - self._first_rows[unit])
        group = self._groups[unit]
        chosen = order.row_order.rows(unit, count, start, stop, group)
        return _Numbered(first + np.arange(count)[chosen], None if group is None else group[chosen])

    def _gather(self, rows: NDArray[np.int64], size: int) -> Batch:
        """Return the batch of the rows, padded to `size` rows like those of `rayrec.ingest.batches`."""
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
            weights=self._moved([_present(part.weights) for part in ragged]) if feature.weights else None,
        )

    def _moved(self, parts: list[NDArray[Any]], axis: int = 0) -> Tensor:
        return torch.from_numpy(np.concatenate(parts, axis)).to(self._device)

    def _sent(self, tensor: Tensor) -> Tensor:
        """Return the tensor on the device, without waiting for it."""
        return tensor.pin_memory().to(self._device, non_blocking=True) if self._device.type == "cuda" else tensor


def _present(column: NDArray[Any] | None) -> NDArray[Any]:
    assert column is not None, "a column that the schema names is always packed"
    return column
