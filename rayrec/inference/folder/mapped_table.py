"""An embedding table of a model folder, mapped from its file: rows are read as they are looked up, and dequantised.

A table is stored as float32, as float16, or as int8 with a scale for each row: weight = scale * value, where the
largest value of a row is 127 or -127 (symmetric row-wise quantisation, as Guan et al. 2019, arXiv:1911.02079, compare
it).
"""

import json
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rayrec.common.errors import UserError

TABLE_TENSOR = "weight"
SCALE_TENSOR = "scale"
TablePrecision = Literal["fp32", "fp16", "int8"]
DTYPES: dict[TablePrecision, str] = {"fp32": "F32", "fp16": "F16", "int8": "I8"}
"""The name of each in a safetensors file."""
NUMPY: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I8": np.dtype("i1")}
_LARGEST_INT8 = 127
_BLOCK_ROWS = 65_536
# Of a smaller table the file system had better read ahead: it is soon in memory as a whole.
_LARGE_BYTES = 256 * 2**20


class MappedTable:
    """The (rows, columns) weights of a table; nothing is in memory but the pages of the rows that were looked up."""

    def __init__(self, path: Path, dim: int) -> None:
        """`dim` is how many of the columns are read. The file must be a whole one (`ModelFolder.open` has checked)."""
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (length,) = struct.unpack_from("<Q", self._map)
        header = json.loads(self._map[8 : 8 + length])
        self.dim = dim
        self._rows = self._tensor(header[TABLE_TENSOR], 8 + length)[:, :dim]
        self._scale = self._tensor(header[SCALE_TENSOR], 8 + length) if SCALE_TENSOR in header else None
        if len(self._map) > _LARGE_BYTES:
            self._map.madvise(mmap.MADV_RANDOM)

    def _tensor(self, described: dict[str, Any], start: int) -> NDArray[Any]:
        shape, (first, _) = described["shape"], described["data_offsets"]
        flat: NDArray[Any] = np.frombuffer(
            self._map, NUMPY[described["dtype"]], count=int(np.prod(shape)), offset=start + first
        )
        return flat.reshape(shape)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> None:
        """Write the embeddings of n ids to `out`, (n, dim)."""
        if self._scale is None:
            out[:] = self._rows[ids]
        else:
            np.multiply(self._rows[ids], self._scale[ids][:, None], out=out)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """All rows in order, some at a time, (rows of the block, dim)."""
        for start in range(0, len(self), _BLOCK_ROWS):
            ids = np.arange(start, min(start + _BLOCK_ROWS, len(self)))
            block = np.empty((len(ids), self.dim), np.float32)
            self.read(ids, block)
            yield block

    def release(self) -> None:
        """Give the pages in memory back. Reading goes on: what is in the system's page cache is mapped again."""
        self._map.madvise(mmap.MADV_DONTNEED)


def quantised(path: Path, block: NDArray[np.float32], precision: TablePrecision) -> dict[str, NDArray[Any]]:
    """Rows (n, columns) as a file holds them, by tensor. Raises UserError naming `path` where they do not fit."""
    if not np.isfinite(block).all():
        raise UserError(f"{path}: holds weights that are no numbers: training diverged; export another checkpoint")
    largest = np.abs(block).max(axis=1, initial=0.0)
    if precision == "fp16":
        if (largest > np.finfo(np.float16).max).any():
            raise UserError(f"{path}: holds weights beyond {np.finfo(np.float16).max:g}; use --tables int8 or fp32")
        return {TABLE_TENSOR: block.astype(np.float16)}
    assert precision == "int8"
    scale = (largest / _LARGEST_INT8).astype(np.float32)
    # A row of zeros, or one whose scale is too small for float32, is zeros.
    values = np.rint(block / np.where(scale > 0, scale, np.float32(np.inf))[:, None])
    return {TABLE_TENSOR: np.clip(values, -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8), SCALE_TENSOR: scale}
