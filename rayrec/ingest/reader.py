"""Reads row groups of Parquet parts into a few contiguous arrays, without a Python loop over values."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.schema import MultiHotFeature, Schema
from rayrec.ingest.dataset import Dataset, SplitInfo

Rows = NDArray[np.int64] | slice
"""Rows of a row group, in the order in which they are wanted."""
_FIRST_ROWS_BATCH = 16_384


@dataclass(frozen=True, eq=False)
class Ragged:
    """n lists of ids, one after the other in one array."""

    offsets: NDArray[np.int32]
    """(n + 1,) where each list starts in `values`; the first is 0."""
    values: NDArray[np.integer[Any]]

    def take(self, rows: Rows) -> "Ragged":
        starts, lengths = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        gather = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(offsets, self.values[gather])


@dataclass(frozen=True, eq=False)
class PackedRows:
    """n encoded rows, their columns packed by kind in the schema's order."""

    label: NDArray[np.float32]
    """(n,)"""
    dense: NDArray[np.float32]
    """(n, numeric features)"""
    one_hot: NDArray[np.integer[Any]]
    """(categorical features with one id a row, n): each feature's ids lie together, as in a KeyedJaggedTensor."""
    multi_hot: tuple[Ragged, ...]
    weight: NDArray[np.float32] | None
    """(n,)"""
    group: NDArray[np.int64] | None
    """(n,)"""

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: Rows) -> "PackedRows":
        return PackedRows(
            label=self.label[rows],
            dense=self.dense[rows],
            # A gather over both axes at once would be several times slower.
            one_hot=_stack((ids[rows] for ids in self.one_hot), self.one_hot.dtype, rows, len(self)),
            multi_hot=tuple(ragged.take(rows) for ragged in self.multi_hot),
            weight=None if self.weight is None else self.weight[rows],
            group=None if self.group is None else self.group[rows],
        )


@dataclass(frozen=True)
class RowPacker:
    """Turns row groups into PackedRows, and PackedRows into Arrow tables and back."""

    folder: Path
    """The dataset folder."""
    schema: Schema

    @property
    def columns(self) -> list[str]:
        """The Parquet columns that are read."""
        schema = self.schema
        others = (schema.label, schema.weight, schema.group)
        return [f.name for f in schema.features] + [name for name in others if name]

    @property
    def id_type(self) -> np.dtype[Any]:
        """int32 if it can hold every id of every table, otherwise int64."""
        largest = max((f.cardinality for f in self.schema.categorical), default=1) - 1
        return np.dtype(np.int32 if largest <= np.iinfo(np.int32).max else np.int64)

    def read(self, path: str, row_group: int, rows: Rows = slice(None), *, threads: bool = False) -> PackedRows:
        """Read `rows` of a row group of the part at `path`, relative to the dataset folder.

        Raises UserError if the part is missing or damaged, lacks a column, or holds values that its schema excludes.
        """
        table = self._read(path, row_group, self.columns, threads)
        return self._pack(table, rows, self._origin(path, row_group))

    def read_split(self, split: SplitInfo, *, threads: bool = False) -> Iterator[PackedRows]:
        """Every row group of a split that has rows, in the order of its rows. Raises UserError like `read`."""
        for part in split.parts:
            for row_group, rows in enumerate(part.row_groups):
                if rows:
                    yield self.read(part.path, row_group, threads=threads)

    def read_group(self, path: str, row_group: int) -> NDArray[np.int64]:
        """(n,) the group ids of a row group. Raises UserError like `read`."""
        name = self.schema.group
        assert name is not None
        table = self._read(path, row_group, [name], False)
        return _dense_column(table, name, np.dtype(np.int64), self._origin(path, row_group))

    def _origin(self, path: str, row_group: int) -> str:
        return f"{self.folder / path}, row group {row_group}"

    def _read(self, path: str, row_group: int, columns: list[str], threads: bool) -> pa.Table:
        origin = self.folder / path
        try:
            stat = os.stat(origin)
            file = _open_parquet(origin, stat.st_size, stat.st_mtime_ns)
            return file.read_row_group(row_group, columns=columns, use_threads=threads)
        except FileNotFoundError:
            raise UserError(f"{origin}: missing, though the manifest lists it; run `rayrec preprocess` again") from None
        except (OSError, pa.ArrowInvalid) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{origin}: damaged ({reason}); run `rayrec preprocess` again") from None

    def _pack(self, table: pa.Table, rows: Rows, origin: str) -> PackedRows:
        schema, count = self.schema, table.num_rows

        def values(name: str, dtype: Any) -> NDArray[Any]:
            return _dense_column(table, name, np.dtype(dtype), origin)[rows]

        def ids(name: str, cardinality: int) -> NDArray[Any]:
            found = _dense_column(table, name, self.id_type, origin)
            _check_ids(found, cardinality, f"{origin}, column '{name}'")
            return found[rows]

        one_hot = [f for f in schema.categorical if not isinstance(f, MultiHotFeature)]
        multi_hot = [f for f in schema.categorical if isinstance(f, MultiHotFeature)]
        numbers = _stack((values(f.name, np.float32) for f in schema.numeric), np.dtype(np.float32), rows, count)
        return PackedRows(
            label=np.ascontiguousarray(values(schema.label, np.float32)),
            dense=np.ascontiguousarray(numbers.T),
            one_hot=_stack((ids(f.name, f.cardinality) for f in one_hot), self.id_type, rows, count),
            multi_hot=tuple(_ragged_column(table, f, self.id_type, origin).take(rows) for f in multi_hot),
            weight=None if schema.weight is None else np.ascontiguousarray(values(schema.weight, np.float32)),
            group=None if schema.group is None else np.ascontiguousarray(values(schema.group, np.int64)),
        )

    def to_table(self, rows: PackedRows) -> pa.Table:
        """One Arrow row whose columns are the bytes of the arrays, which Ray Data neither splits nor copies."""
        arrays = {"label": rows.label, "dense": rows.dense, "one_hot": rows.one_hot}
        for index, ragged in enumerate(rows.multi_hot):
            arrays |= {f"offsets_{index}": ragged.offsets, f"values_{index}": ragged.values}
        if rows.weight is not None:
            arrays["weight"] = rows.weight
        if rows.group is not None:
            arrays["group"] = rows.group
        return pa.table({name: _as_binary(array) for name, array in arrays.items()})

    def from_table(self, table: pa.Table) -> Iterable[PackedRows]:
        """The packed rows of each row that `to_table` made, as views of the table's memory."""
        columns = {name: [_as_bytes(chunk, i) for chunk in table[name].chunks for i in range(len(chunk))]
                   for name in table.column_names}  # fmt: skip
        for row in range(table.num_rows):
            yield self._from_buffers({name: buffers[row] for name, buffers in columns.items()})

    def _from_buffers(self, buffers: Mapping[str, pa.Buffer]) -> PackedRows:
        def array(name: str, dtype: Any) -> NDArray[Any]:
            return np.frombuffer(buffers[name], dtype=dtype)

        one_hot = [f for f in self.schema.categorical if not isinstance(f, MultiHotFeature)]
        label = array("label", np.float32)
        return PackedRows(
            label=label,
            dense=array("dense", np.float32).reshape(len(label), len(self.schema.numeric)),
            one_hot=array("one_hot", self.id_type).reshape(len(one_hot), len(label)),
            multi_hot=tuple(
                Ragged(array(f"offsets_{i}", np.int32), array(f"values_{i}", self.id_type))
                for i in range(len(self.schema.categorical) - len(one_hot))
            ),
            weight=array("weight", np.float32) if "weight" in buffers else None,
            group=array("group", np.int64) if "group" in buffers else None,
        )


def first_rows(dataset: Dataset, split: str, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """Up to `most` rows in the order of the files, in batches. Raises UserError if there is no such split."""
    rows = 0
    for part in dataset.split(split).parts:
        with pq.ParquetFile(dataset.folder / part.path) as parquet:
            for batch in parquet.iter_batches(batch_size=_FIRST_ROWS_BATCH, columns=list(columns)):
                yield batch.slice(0, most - rows)
                rows += batch.num_rows
                if rows >= most:
                    return


@lru_cache(maxsize=16)
def _open_parquet(path: Path, size: int, modified: int) -> pq.ParquetFile:
    """An open part, kept for its next row groups; its size and time of change tell whether it was rewritten.

    The footer describes every column of every row group, so parsing it costs as much as reading a row group.
    """
    return pq.ParquetFile(path, memory_map=True)


def _dense_column(table: pa.Table, name: str, dtype: np.dtype[Any], origin: str) -> NDArray[Any]:
    column = _column(table, name, origin)
    right = pa.types.is_floating if dtype.kind == "f" else pa.types.is_integer
    if not right(column.type):
        raise UserError(f"{origin}, column '{name}': {column.type}, the schema says {dtype}; {_AGAIN}")
    return column.to_numpy().astype(dtype, copy=False)


def _ragged_column(table: pa.Table, feature: MultiHotFeature, dtype: np.dtype[Any], origin: str) -> Ragged:
    column = _column(table, feature.name, origin)
    if not (pa.types.is_list(column.type) and pa.types.is_integer(column.type.value_type)):
        raise UserError(
            f"{origin}, column '{feature.name}': {column.type}, the schema says a list of {dtype}; {_AGAIN}"
        )
    lists = column.combine_chunks()
    # Offsets of a slice do not start at 0, and its `values` are those of the whole array; flatten() respects both.
    offsets = lists.offsets.to_numpy()
    values = lists.flatten().to_numpy().astype(dtype, copy=False)
    _check_ids(values, feature.cardinality, f"{origin}, column '{feature.name}'")
    return Ragged((offsets - offsets[0]).astype(np.int32), values)


def _column(table: pa.Table, name: str, origin: str) -> pa.ChunkedArray:
    if name not in table.column_names:
        raise UserError(f"{origin}: no column '{name}', though the schema names it; {_AGAIN}")
    column = table[name]
    if column.null_count:
        raise UserError(f"{origin}, column '{name}': {column.null_count} nulls; {_AGAIN}")
    return column


def _check_ids(ids: NDArray[Any], cardinality: int, origin: str) -> None:
    # The embedding kernels do not check ids, and would read beyond a table.
    if len(ids) and not (ids.min() >= 0 and ids.max() < cardinality):
        raise UserError(f"{origin}: ids {ids.min()} ... {ids.max()}, the table has {cardinality} rows; {_AGAIN}")


_AGAIN = "run `rayrec preprocess` again"


def _stack(rows: Iterable[NDArray[Any]], dtype: np.dtype[Any], selection: Rows, count: int) -> NDArray[Any]:
    """A (len(rows), selected) array of 1-d arrays, even if there are none."""
    rows = list(rows)
    if rows:
        return np.stack(rows)
    selected = len(range(count)[selection]) if isinstance(selection, slice) else len(selection)
    return np.empty((0, selected), dtype=dtype)


def _as_binary(array: NDArray[Any]) -> pa.Array:
    data = np.ascontiguousarray(array)
    offsets = np.array([0, data.nbytes], dtype=np.int64)
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _as_bytes(chunk: pa.Array, index: int) -> pa.Buffer:
    return chunk[index].as_buffer()
