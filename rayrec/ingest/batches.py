"""Assembles batches from packed rows by copying slices."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.ingest.batch_order import BatchOrder
from rayrec.ingest.reader import PackedRows, RowPacker
from rayrec.ingest.row_order import group_starts
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

    def to_batch(self, schema: Schema, device: torch.device) -> Batch:
        """Copy to `device`, without waiting if the arrays are pinned."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        size, keys = len(self.label), [f.name for f in schema.categorical]
        if self.lengths is None:
            lengths, offsets = _one_id_each(size, len(keys), self.ids.dtype, device)
        else:
            lengths, offsets = move(self.lengths), None
        starts = np.concatenate([[0], np.cumsum(self.ids_per_feature)]).tolist()
        sparse = KeyedJaggedTensor(
            keys,
            move(self.ids),
            lengths=lengths,
            offsets=offsets,
            stride=size,
            # Given here, because computing them later would wait for the device.
            length_per_key=self.ids_per_feature,
            offset_per_key=[int(start) for start in starts],
        )
        return Batch(
            dense=move(self.dense),
            sparse=sparse,
            label=move(self.label),
            weight=move(self.weight),
            group=None if self.group is None else move(self.group),
        )


@dataclass
class _Piece:
    """Rows start ... stop - 1 of `rows`, which become rows at, at + 1 ... of a batch."""

    rows: PackedRows
    start: int
    stop: int
    at: int

    @property
    def source(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def target(self) -> slice:
        return slice(self.at, self.at + self.stop - self.start)


@dataclass(frozen=True)
class _CurrentRead:
    """The read of a lane that batches take rows from."""

    index: int
    rows: PackedRows
    bounds: NDArray[np.int64] | None
    """Where groups begin in `rows`, and their end; None if slices are cut at any row."""
    before: int
    """Rows in `rows` before those of the read itself."""

    @classmethod
    def of(cls, index: int, rows: PackedRows, order: BatchOrder) -> "_CurrentRead":
        if not order.row_order.whole_groups:
            return cls(index, rows, None, 0)
        bounds = np.append(group_starts(_present(rows.group)), len(rows))
        return cls(index, rows, bounds, min(1, order.read(index).start))

    def piece(self, start: int, stop: int, at: int) -> _Piece:
        """Rows start ... stop - 1 of the read, or the groups that begin in them."""
        if self.bounds is None:
            return _Piece(self.rows, start, stop, at)
        first, last = np.searchsorted(self.bounds, [start + self.before, stop + self.before])
        return _Piece(self.rows, int(self.bounds[first]), int(self.bounds[last]), at)


class BatchAssembler:
    """Assembles one rank's batches of an epoch from its reads."""

    def __init__(self, packer: RowPacker, order: BatchOrder, *, pin_memory: bool) -> None:
        self._schema = packer.schema
        self._id_type = torch.int32 if packer.id_type == np.int32 else torch.int64
        self._order = order
        self._pin_memory = pin_memory

    def batches(self, arriving: Iterator[PackedRows]) -> Iterator[BatchArrays]:
        """The batches from `start_batch` on; `arriving` yields the reads in order. Holds one read of each lane."""
        order = self._order
        held: dict[int, _CurrentRead] = {}
        arrived = 0
        for number in range(order.start_batch, order.num_batches):
            pieces, filled = [], 0
            for lane, read, start, stop in order.slices(number):
                if lane not in held or held[lane].index != read:
                    assert read == arrived, (read, arrived)
                    held.pop(lane, None)  # before waiting for the next one
                    held[lane] = _CurrentRead.of(read, next(arriving), order)
                    arrived += 1
                piece = held[lane].piece(start, stop, filled)
                pieces.append(piece)
                filled += piece.stop - piece.start
            yield self._merge(pieces, filled, order.local_size(number))

    def _merge(self, pieces: list[_Piece], filled: int, size: int) -> BatchArrays:
        """Copy the pieces and pad them to `size` rows.

        A padding row repeats the first row with weight 0 and empty lists; without any row, ids and numbers are 0.
        """
        schema = self._schema
        has_lists = any(isinstance(f, MultiHotFeature) for f in schema.categorical)
        dense = self._empty((size, len(schema.numeric)), torch.float32)
        label, weight = self._empty((size,), torch.float32), self._empty((size,), torch.float32)
        group = self._empty((size,), torch.int64) if schema.group else None
        one_hot = sum(not isinstance(f, MultiHotFeature) for f in schema.categorical)

        _copy(dense.numpy(), [(p.target, p.rows.dense[p.source]) for p in pieces], filled)
        _copy(label.numpy(), [(p.target, p.rows.label[p.source]) for p in pieces], filled)
        if schema.weight:
            _copy(weight.numpy(), [(p.target, _present(p.rows.weight)[p.source]) for p in pieces], filled)
        else:
            weight.fill_(1.0)
        weight[filled:] = 0.0
        if group is not None:
            _copy(group.numpy(), [(p.target, _present(p.rows.group)[p.source]) for p in pieces], filled)

        if not has_lists:
            ids = self._empty((one_hot, size), self._id_type)
            self._fill_one_hot(ids.numpy(), pieces, filled)
            return BatchArrays(dense, ids.view(-1), None, [size] * one_hot, label, weight, group)

        per_feature = self._ids_per_feature(pieces, size)
        ids = self._empty((sum(per_feature),), self._id_type)
        lengths = self._empty((len(per_feature), size), self._id_type)
        self._fill_mixed(ids.numpy(), lengths.numpy(), per_feature, pieces, filled)
        return BatchArrays(dense, ids, lengths.view(-1), per_feature, label, weight, group)

    def _fill_one_hot(self, ids: NDArray[np.integer], pieces: list[_Piece], filled: int) -> None:
        for piece in pieces:
            ids[:, piece.target] = piece.rows.one_hot[:, piece.source]
        ids[:, filled:] = ids[:, :1] if filled else 0

    def _ids_per_feature(self, pieces: list[_Piece], size: int) -> list[int]:
        counts, lists = [], 0
        for feature in self._schema.categorical:
            if isinstance(feature, MultiHotFeature):
                offsets = [(p, p.rows.multi_hot[lists].offsets) for p in pieces]
                counts.append(sum(int(o[p.stop]) - int(o[p.start]) for p, o in offsets))
                lists += 1
            else:
                counts.append(size)
        return counts

    def _fill_mixed(
        self,
        ids: NDArray[np.integer],
        lengths: NDArray[np.integer],
        per_feature: list[int],
        pieces: list[_Piece],
        filled: int,
    ) -> None:
        start = lists = singles = 0
        for index, feature in enumerate(self._schema.categorical):
            target = ids[start : start + per_feature[index]]
            if isinstance(feature, MultiHotFeature):
                at = 0
                for piece in pieces:
                    ragged = piece.rows.multi_hot[lists]
                    offsets = ragged.offsets[piece.start : piece.stop + 1]
                    values = ragged.values[offsets[0] : offsets[-1]]
                    target[at : at + len(values)] = values
                    lengths[index, piece.target] = np.diff(offsets)
                    at += len(values)
                lengths[index, filled:] = 0
                lists += 1
            else:
                _copy(target, [(p.target, p.rows.one_hot[singles, p.source]) for p in pieces], filled)
                lengths[index] = 1
                singles += 1
            start += per_feature[index]

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        # Torch's cache of pinned memory waits for copies from a buffer before it reuses the buffer.
        return torch.empty(shape, dtype=dtype, pin_memory=self._pin_memory)


def _copy(target: NDArray, parts: list[tuple[slice, NDArray]], filled: int) -> None:
    """Fill rows of `target`, and the rest with its first row, or with 0 if there is none."""
    for place, values in parts:
        target[place] = values
    target[filled:] = target[:1] if filled else 0


def _present(column: NDArray | None) -> NDArray:
    assert column is not None, "a column that the schema names is always packed"
    return column


@lru_cache(maxsize=8)
def _one_id_each(size: int, features: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """(lengths, offsets) of `features` features with one id in each row, the same for every batch of a size."""
    count = size * features
    return torch.ones(count, dtype=dtype, device=device), torch.arange(count + 1, dtype=dtype, device=device)
