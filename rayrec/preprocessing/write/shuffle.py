"""Third stage for rows in another order than the input's: parsed rows -> encoded rows -> parts.

What a row is sorted by determines its part too, and within it its block: a range of rows that a task sorts in memory.
Spark brings the blocks of a part together and sorts them, spilling to disk. It is handed the rows of a block that
were read together as one value: by itself each row would cost it several times the work that it is to encode one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.config.preprocess import ShardLayoutConfig
from rayrec.ingest.dataset import PartInfo, SplitInfo
from rayrec.ingest.order import group_starts
from rayrec.preprocessing.runners.thread_runner import ROWS_PER_BATCH
from rayrec.preprocessing.segments import SEGMENT_ROWS, Segment, count_rows
from rayrec.preprocessing.sorted_rows import cut_row_groups, rows_by_value
from rayrec.preprocessing.tasks import counted_rows
from rayrec.preprocessing.workspace import Workspace
from rayrec.preprocessing.write.encode import RowEncoder, split_info
from rayrec.preprocessing.write.shards import RowPacking, WrittenPart, rows_of_a_part, write_part
from rayrec.random.splitmix64 import mix

_ROWS_PER_BLOCK = 65_536
_BYTES_AT_ONCE = 2**25
"""Bytes of packed rows that a task gathers before it cuts them into blocks, and that Spark hands over at once."""
NewPositions = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""The positions (n,) in the output of rows given by their positions (n,) in the input: a bijection."""


@dataclass(frozen=True)
class RandomGroups:
    """The groups of a split in a random order that depends on `seed`, and the rows of a group in their own order."""

    seed: int


@dataclass(frozen=True)
class _ByPlace:
    """Rows in the order of their new positions."""

    new_positions: NewPositions
    size: int
    """Rows of every part but the last."""
    rows: int

    group = None
    """The column whose equal rows stay together."""
    width = 1
    """The number k of integers that a row is sorted by."""

    @property
    def blocks(self) -> int:
        """Number of blocks of a part."""
        return -(-self.size // _ROWS_PER_BLOCK)

    def keys(self, batch: pa.RecordBatch, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n, k) what rows are sorted by, given their positions (n,) in the input."""
        return self.new_positions(positions)[:, None]

    def block(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the blocks of rows, numbered through the parts, from what they are sorted by."""
        part, inside = np.divmod(keys[:, 0], self.size)
        return part * self.blocks + inside // _ROWS_PER_BLOCK

    def check(self, part: int, blocks: Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Pass the sorted rows of a part on, which come with what they are sorted by; fails if some are lost."""
        expected = part * self.size
        for keys, batch in blocks:
            assert np.array_equal(keys[:, 0], np.arange(expected, expected + len(keys))), "rows lost or repeated"
            expected += len(keys)
            yield batch
        assert expected == min((part + 1) * self.size, self.rows), "rows lost or repeated"


@dataclass(frozen=True)
class _ByGroup:
    """Rows in the order of a hash of their group: a random order of all groups that needs no list of them."""

    group: str
    seed: int
    parts: int
    blocks: int

    width = 2

    def keys(self, batch: pa.RecordBatch, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        key = mix(np.array([self.seed & (2**64 - 1)], np.uint64))
        # Both steps are bijections, so no two groups have one hash.
        hashes = mix(batch[self.group].to_numpy().view(np.uint64) ^ key).view(np.int64)
        return np.stack([hashes, positions], axis=1)

    def block(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        # Signed, as the hashes are sorted: the upper 32 bits, counted from 0, times the number of parts.
        part, inside = np.divmod(((keys[:, 0] >> 32) + 2**31) * self.parts, 2**32)
        return part * self.blocks + (inside * self.blocks >> 32)

    def check(self, part: int, blocks: Iterator[tuple[NDArray[np.int64], pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        return (batch for _, batch in blocks)


@dataclass(frozen=True)
class _Blocks:
    """Encoded rows with what they are sorted by, as values that each hold rows of one block."""

    sorting: _ByPlace | _ByGroup
    packing: RowPacking
    partition_keys: NDArray[np.int32]
    """What sends a row to the partition of each part."""

    schema = pa.schema([("key", pa.int32()), ("block", pa.int64()), ("rows", pa.binary())])

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype([("sorted_by", np.int64, (self.sorting.width,)), ("row", self.packing.dtype)])

    @property
    def values_at_once(self) -> int:
        """Values that together hold about `_BYTES_AT_ONCE` if all blocks are alike."""
        gathered = min(SEGMENT_ROWS, _BYTES_AT_ONCE // self._dtype.itemsize)
        rows = max(1, gathered // (len(self.partition_keys) * self.sorting.blocks))
        return max(1, min(ROWS_PER_BATCH, _BYTES_AT_ONCE // (rows * self._dtype.itemsize)))

    def packed(self, batch: pa.RecordBatch, sorted_by: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the encoded rows (n,) with what they are sorted by (n, k), as (n,) items."""
        rows = np.empty(batch.num_rows, self._dtype)
        rows["sorted_by"] = sorted_by
        rows["row"] = self.packing.pack(batch)
        return rows

    def cut(self, packed: Sequence[NDArray[np.void]]) -> pa.RecordBatch:
        """Return the blocks of packed rows."""
        rows = self._joined(packed)
        block = self.sorting.block(rows["sorted_by"])
        order = np.argsort(block, kind="stable")
        rows, block = rows.take(order), block[order]
        starts = group_starts(block)
        offsets = np.append(starts, len(rows)) * rows.itemsize
        assert offsets[-1] < 2**31, "as many rows as Arrow's binary values can hold"
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(rows.view(np.uint8))]
        values = pa.BinaryArray.from_buffers(pa.binary(), len(starts), buffers)
        keys = self.partition_keys[block[starts] // self.sorting.blocks]
        return pa.RecordBatch.from_arrays([pa.array(keys), pa.array(block[starts]), values], schema=self.schema)

    def _joined(self, packed: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
        """Return the rows of several arrays. NumPy copies bytes many times faster than items with fields."""
        as_bytes = [rows.view(f"V{self._dtype.itemsize}") for rows in packed]
        return np.concatenate(as_bytes).view(self._dtype)

    def rows_of_part(self, part: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part in order, from its blocks in order."""
        blocks = self.sorting.check(part, map(self._sorted, rows_by_value(batches, "block")))
        for table in cut_row_groups(blocks, ROWS_PER_BATCH):
            yield from table.combine_chunks().to_batches()

    def _sorted(self, block: tuple[int, Iterator[pa.RecordBatch]]) -> tuple[NDArray[np.int64], pa.RecordBatch]:
        values = [value.as_buffer() for batch in block[1] for value in batch["rows"]]
        rows = self._joined([np.frombuffer(value, self._dtype) for value in values])
        rows = rows.take(np.lexsort(rows["sorted_by"].T[::-1]))
        return rows["sorted_by"], self.packing.unpack(rows["row"])


def write_shuffled(
    workspace: Workspace,
    encoder: RowEncoder,
    split: str,
    segments: Sequence[Segment],
    order: NewPositions | RandomGroups,
    layout: ShardLayoutConfig,
    position: str | None = None,
) -> SplitInfo:
    """Write the rows of a split in another order than that of its segments.

    With `RandomGroups`, the rows of a group follow each other in the input and end up in one row group. Parts then have
    about the same number of rows, and row groups as many as the layout says, or a few more. `position`: the kept column
    (int64) that holds a row's position in the input, for segments in another order; it is not written to the parts.
    """
    runner, rows = workspace.runner, count_rows(segments)
    size = rows_of_a_part(rows, layout)
    number_of_parts = -(-rows // size)
    sorting: _ByPlace | _ByGroup
    if isinstance(order, RandomGroups):
        assert encoder.schema.group is not None
        sorting = _ByGroup(encoder.schema.group, order.seed, number_of_parts, -(-size // _ROWS_PER_BLOCK))
    else:
        sorting = _ByPlace(order, size, rows)
    label = encoder.schema.label
    written = [field for field in encoder.encoded_schema if field.name != position]
    packing = RowPacking(pa.schema(written), encoder.schema.hotness)
    blocks = _Blocks(sorting, packing, runner.partition_keys(number_of_parts))
    with counted_rows(runner, workspace.progress, f"encode and shuffle {split}", rows) as counter:

        def encode(segment: Segment) -> Iterator[pa.RecordBatch]:
            first = segment.first
            packed: list[NDArray[np.void]] = []
            for batch in encoder.encode(segment):
                places = np.arange(first, first + batch.num_rows) if position is None else batch[position].to_numpy()
                rows = batch.select([field.name for field in written])
                packed.append(blocks.packed(rows, sorting.keys(batch, places)))
                first += batch.num_rows
                if sum(rows.nbytes for rows in packed) > _BYTES_AT_ONCE:
                    yield blocks.cut(packed)
                    packed.clear()
            if packed:
                yield blocks.cut(packed)

        def write(_: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            filled = (batch for batch in batches if batch.num_rows)
            first = next(filled, None)
            if first is None:
                return
            part = first["block"][0].as_py() // sorting.blocks
            ordered = blocks.rows_of_part(part, chain([first], filled))
            info, positives = write_part(encoder.dataset, split, part, label, layout, ordered, sorting.group)
            counter.add(info.rows)
            columns = [pa.array([info.model_dump_json()]), pa.array([positives])]
            yield pa.RecordBatch.from_arrays(columns, names=["part", "positives"])

        encoded = runner.rows(segments, encode, blocks.schema)
        by_part = encoded.partition_by_key("key", number_of_parts).sort_within("block")
        found = by_part.results(write, "part string, positives double", blocks.values_at_once)
    parts = [WrittenPart(PartInfo.model_validate_json(part), positives) for part, positives in found]
    written_rows = sum(part.info.rows for part in parts)
    assert written_rows == rows, f"{written_rows} rows written of {rows}"
    return split_info(sorted(parts, key=lambda part: part.info.path))
