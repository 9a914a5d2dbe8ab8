"""Rows of a split as a few contiguous arrays, read from Parquet without a Python loop over values."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from rayrec.common.disk_errors import unreadable
from rayrec.common.errors import UserError
from rayrec.features.encoder import encoded_schema
from rayrec.features.schema import MultiHotFeature, Schema, VectorFeature
from rayrec.features.transforms import ids_of
from rayrec.ingest.dataset import Dataset, SplitInfo
from rayrec.store.parquet import kept_parquet, open_parquet

RowNumbers = NDArray[np.int64] | slice
"""Numbers of rows, in the order in which they are wanted."""
_AGAIN = "run `rayrec preprocess` again"


@dataclass(frozen=True, eq=False)
class Ragged:
    """n lists of ids, one after the other in one array."""

    offsets: NDArray[np.int32]
    """(n + 1,) where each list starts in `values`; the first is 0."""
    values: NDArray[np.integer[Any]]
    weights: NDArray[np.float32] | None = None
    """The weight of each of `values`; None if all weigh the same."""

    def __getitem__(self, rows: slice) -> "Ragged":
        """Return some lists that follow each other; their first offset need not be 0."""
        offsets = self.offsets[rows.start : rows.stop + 1]
        return self._select(offsets, slice(offsets[0], offsets[-1]))

    def take(self, rows: RowNumbers) -> "Ragged":
        starts, lengths = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        gather = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return self._select(offsets, gather)

    def _select(self, offsets: NDArray[np.int32], chosen: NDArray[np.int64] | slice) -> "Ragged":
        return Ragged(offsets, self.values[chosen], None if self.weights is None else self.weights[chosen])


@dataclass(frozen=True, eq=False)
class PackedRows:
    """n encoded rows, their columns packed by kind in the schema's order."""

    label: NDArray[np.float32]
    """(n,)"""
    dense: NDArray[np.float32]
    """(n, dense_width)"""
    one_hot: NDArray[np.integer[Any]]
    """(categorical features with one id a row, n): each feature's ids lie together, as in a KeyedJaggedTensor."""
    multi_hot: tuple[Ragged, ...]
    weight: NDArray[np.float32] | None
    """(n,)"""
    group: NDArray[np.int64] | None
    """(n,)"""

    def __len__(self) -> int:
        return len(self.label)

    @property
    def bytes(self) -> int:
        """Number of bytes that the columns take."""
        lists = [column for ragged in self.multi_hot for column in (ragged.offsets, ragged.values, ragged.weights)]
        columns = [self.label, self.dense, self.one_hot, self.weight, self.group, *lists]
        return sum(column.nbytes for column in columns if column is not None)

    def take(self, rows: RowNumbers) -> "PackedRows":
        label = self.label[rows]
        return PackedRows(
            label=label,
            dense=self.dense[rows],
            # A gather over both axes at once would be several times slower.
            one_hot=_stack([ids[rows] for ids in self.one_hot], self.one_hot.dtype, len(label)),
            multi_hot=tuple(ragged.take(rows) for ragged in self.multi_hot),
            weight=None if self.weight is None else self.weight[rows],
            group=None if self.group is None else self.group[rows],
        )


@dataclass(frozen=True)
class RowPacker:
    """Turns row groups into PackedRows."""

    folder: Path
    """The dataset folder."""
    schema: Schema
    version: str = ""
    """Another text if the dataset is made again, which tells an open part of a bucket from a new one."""

    @classmethod
    def of(cls, dataset: Dataset) -> "RowPacker":
        return cls(dataset.folder, dataset.schema, dataset.id)

    @cached_property
    def _columns(self) -> pa.Schema:
        """The Parquet columns that are read."""
        schema = self.schema
        others = {schema.label: pa.float32(), schema.weight: pa.float32(), schema.group: pa.int64()}
        return pa.schema([*encoded_schema(schema), *(pa.field(n, kind) for n, kind in others.items() if n is not None)])

    def read(self, path: str, row_group: int, rows: RowNumbers = slice(None), *, threads: bool = False) -> PackedRows:
        """Read `rows` of a row group of the part at `path`, relative to the dataset folder.

        Raises UserError if the part is missing or damaged, lacks a column, or holds values that its schema excludes.
        """
        return self._pack(self._read(path, row_group, self._columns, threads), rows, self._origin(path, row_group))

    def read_split(self, split: SplitInfo, *, threads: bool = False) -> Iterator[PackedRows]:
        """Return the rows of every row group of a split that has any, in their order. Raises UserError like `read`."""
        for part in split.parts:
            for row_group, rows in enumerate(part.row_groups):
                if rows:
                    yield self.read(part.path, row_group, slice(rows), threads=threads)

    def read_group(self, path: str, row_group: int) -> NDArray[np.int64]:
        """Return (n,) the group ids of a row group. Raises UserError like `read`."""
        name = self.schema.group
        assert name is not None
        return self._read(path, row_group, pa.schema([self._columns.field(name)]), False)[name].to_numpy()

    def _origin(self, path: str, row_group: int) -> str:
        return f"{self.folder / path}, row group {row_group}"

    def _read(self, path: str, row_group: int, columns: pa.Schema, threads: bool) -> pa.Table:
        """Read columns of a row group, which must have the types that the schema says."""
        origin = self.folder / path
        try:
            file = kept_parquet(origin, self.version)
            table = file.read_row_group(row_group, columns=columns.names, use_threads=threads)
        except FileNotFoundError:
            raise UserError(f"{origin}: missing, though the manifest lists it; {_AGAIN}") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(origin, error, _AGAIN) from None
        origin_of_group = self._origin(path, row_group)
        for wanted in columns:
            if wanted.name not in table.column_names:
                raise UserError(f"{origin_of_group}: no column '{wanted.name}', though the schema names it; {_AGAIN}")
            where, column = f"{origin_of_group}, column '{wanted.name}'", table[wanted.name]
            if column.type != wanted.type:
                raise UserError(f"{where}: {column.type}, the schema says {wanted.type}; {_AGAIN}")
            if column.null_count:
                raise UserError(f"{where}: {column.null_count} nulls; {_AGAIN}")
        return table

    def _pack(self, table: pa.Table, rows: RowNumbers, origin: str) -> PackedRows:
        schema, ids_are = self.schema, id_type(self.schema)

        def values(name: str, dtype: Any, rows: RowNumbers = rows) -> NDArray[Any]:
            return table[name].to_numpy().astype(dtype, copy=False)[rows]

        def ids(name: str, cardinality: int) -> NDArray[Any]:
            found = values(name, ids_are, slice(None))
            _check_ids(found, cardinality, f"{origin}, column '{name}'")
            return found[rows]

        one_hot = [f for f in schema.categorical if not isinstance(f, MultiHotFeature)]
        multi_hot = [f for f in schema.categorical if isinstance(f, MultiHotFeature)]
        label = np.ascontiguousarray(values(schema.label, np.float32))
        dense = np.empty((len(label), schema.dense_width), np.float32)
        column = 0
        for feature in schema.dense:
            if isinstance(feature, VectorFeature):
                vectors = table[feature.name].combine_chunks().flatten().to_numpy()
                dense[:, column : column + feature.size] = vectors.reshape(-1, feature.size)[rows]
                column += feature.size
            else:
                dense[:, column] = values(feature.name, np.float32)
                column += 1
        return PackedRows(
            label=label,
            dense=dense,
            one_hot=_stack([ids(f.name, f.cardinality) for f in one_hot], ids_are, len(label)),
            multi_hot=tuple(_ragged_column(table, f, ids_are, origin).take(rows) for f in multi_hot),
            weight=None if schema.weight is None else np.ascontiguousarray(values(schema.weight, np.float32)),
            group=None if schema.group is None else np.ascontiguousarray(values(schema.group, np.int64)),
        )


def present(column: NDArray[Any] | None) -> NDArray[Any]:
    """Return a column of `PackedRows` that the schema names, and that therefore is packed."""
    assert column is not None
    return column


def id_type(schema: Schema) -> np.dtype[Any]:
    """Return int32 if it can hold every id of every table, otherwise int64."""
    largest = max((f.cardinality for f in schema.categorical), default=1) - 1
    return np.dtype(np.int32 if largest <= np.iinfo(np.int32).max else np.int64)


def to_table(rows: PackedRows) -> pa.Table:
    """Return one Arrow row whose columns are the bytes of the arrays, which Ray Data neither splits nor copies."""
    arrays: list[pickle.PickleBuffer] = []
    frame = pickle.dumps(rows, protocol=5, buffer_callback=arrays.append)
    return pa.table({str(number): _as_binary(data) for number, data in enumerate([frame, *arrays])})


def from_table(table: pa.Table) -> Iterator[PackedRows]:
    """Yield the packed rows of each row that `to_table` made, as views of the table's memory."""
    for row in range(table.num_rows):
        frame, *arrays = (column[row].as_buffer() for column in table.columns)
        yield pickle.loads(frame, buffers=arrays)


def _as_binary(data: Any) -> pa.Array:
    values = pa.py_buffer(data)
    offsets = pa.py_buffer(np.array([0, values.size], np.int64))
    return pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, values])


def _ragged_column(table: pa.Table, feature: MultiHotFeature, dtype: np.dtype[Any], origin: str) -> Ragged:
    lists, where = table[feature.name].combine_chunks(), f"{origin}, column '{feature.name}'"
    # Offsets of a slice do not start at 0, and its `values` are those of the whole array; flatten() respects both.
    offsets, elements = lists.offsets.to_numpy(), lists.flatten()
    values = ids_of(elements).to_numpy().astype(dtype, copy=False)
    _check_ids(values, feature.cardinality, where)
    weights = None if feature.weights is None else elements.field("weight").to_numpy()
    if weights is not None and not ((weights >= 0) & (weights < np.inf)).all():
        raise UserError(f"{where}: weights that are not numbers of at least 0; {_AGAIN}")
    return Ragged((offsets - offsets[0]).astype(np.int32), values, weights)


def _check_ids(ids: NDArray[Any], cardinality: int, origin: str) -> None:
    # The embedding kernels do not check ids, and would read beyond a table.
    if len(ids) and not (ids.min() >= 0 and ids.max() < cardinality):
        raise UserError(f"{origin}: ids {ids.min()} ... {ids.max()}, the table has {cardinality} rows; {_AGAIN}")


def _stack(columns: Sequence[NDArray[Any]], dtype: Any, count: int) -> NDArray[Any]:
    """Return the (columns, count) array of columns (count,), even if there are none."""
    return np.stack(columns) if columns else np.empty((0, count), dtype)


class SplitColumns:
    """Reads columns of a split: of all rows, or of as many row groups, evenly spread over it, as have about `most`."""

    def __init__(self, dataset: Dataset, split: str, most: int) -> None:
        """Raise UserError if there is no such split, or it has no rows."""
        self._dataset = dataset
        info = dataset.split(split)
        groups = [(part.path, n, rows) for part in info.parts for n, rows in enumerate(part.row_groups) if rows]
        kept = max(1, min(len(groups), most * len(groups) // info.rows))
        self._groups = [groups[place] for place in np.linspace(0, len(groups) - 1, kept).round().astype(int)]
        self.rows = sum(rows for _, _, rows in self._groups)
        self._files: dict[str, pq.ParquetFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            file.close()

    def read(self, name: str) -> pa.Array:
        """Return the (rows,) values of a column, in the order of the files. Raises UserError if a part is damaged."""
        try:
            columns = [self._file(path).read_row_group(group, columns=[name])[name] for path, group, _ in self._groups]
        except (OSError, pa.ArrowInvalid, KeyError) as error:
            where = f"{self._dataset.folder}: column '{name}'"
            raise unreadable(where, error, "run `rayrec preprocess` again") from None
        joined = pa.chunked_array([chunk for column in columns for chunk in column.chunks]).combine_chunks()
        return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined

    def _file(self, path: str) -> pq.ParquetFile:
        if path not in self._files:
            self._files[path] = open_parquet(self._dataset.folder / path)
        return self._files[path]
