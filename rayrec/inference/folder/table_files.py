"""The embedding tables of a model folder: safetensors files, made whole, checked when opened, mapped to be read.

A table is stored as float32, as float16, or as int8 with a scale for each row: weight = scale * value, where the
largest value of a row is 127 or -127 (symmetric row-wise quantisation, as compared by Guan et al. 2019,
arXiv:1911.02079). This module needs no torch until tensors are opened, so that a wrong folder is refused at once.
"""

import contextlib
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.common.mapped_file import MappedFile
from rayrec.store.files import new_file
from rayrec.store.paths import shortened

if TYPE_CHECKING:
    from rayrec.models.common.embedding_tables import EmbeddingTable

TABLES_FOLDER = "weights/tables"
DELTA_FILE = "delta.json"
"""Only a model folder that holds what differs from the version before it has one (`rayrec.inference.folder.chain`)."""
METADATA = {"format": "pt", "rayrec_version": "1"}
"""`format: pt` is what readers of safetensors expect; the version is that of the folder's layout."""
TABLE_TENSOR = "weight"
SCALE_TENSOR = "scale"
TablePrecision = Literal["fp32", "fp16", "int8"]
DTYPES: dict[TablePrecision, str] = {"fp32": "F32", "fp16": "F16", "int8": "I8"}
"""The name of each type in a safetensors file."""
_NUMPY: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
_LARGEST_INT8 = 127
BLOCK_ROWS = 65_536
"""Rows that are copied or compared at a time."""
_TABLES_AT_ONCE = 4
"""Reading and writing overlap, and the threads hold the memory of so many shards of a checkpoint."""
_ROWS_BETWEEN_LOOKS = 1024
"""A row that was not mapped brings up to 16 pages with it (the kernel's fault-around), 64 KiB."""


def is_model_folder(path: Path) -> bool:
    """Return whether a folder looks like the output of an export: a whole model, or a delta."""
    return is_delta(path) or (path / TABLES_FOLDER).is_dir()


def is_delta(path: Path) -> bool:
    """Return whether a model folder holds only what differs from the version before it."""
    return (path / DELTA_FILE).is_file()


def table_file(name: str) -> str:
    """Return the path of a table's file in a model folder; a name with `/` in it stays one file."""
    return f"{TABLES_FOLDER}/{shortened(quote(name, safe=' '))}.safetensors"


class MappedTensors:
    """The tensors of a safetensors file that was checked, over its mapped content."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        content = self.file.content
        (length,) = struct.unpack_from("<Q", content)
        header = json.loads(content[8 : 8 + length])
        self.tensors: dict[str, NDArray[Any]] = {
            name: self._tensor(described, 8 + length) for name, described in header.items() if name != "__metadata__"
        }

    def _tensor(self, described: dict[str, Any], start: int) -> NDArray[Any]:
        shape, (first, _) = described["shape"], described["data_offsets"]
        dtype = _NUMPY[described["dtype"]]
        flat: NDArray[Any] = np.frombuffer(self.file.content, dtype, count=math.prod(shape), offset=start + first)
        return flat.reshape(shape)


class StoredRows:
    """Rows of a table, over the tensors of a mapped file."""

    def __init__(self, file: MappedFile, stored: dict[str, NDArray[Any]], dim: int) -> None:
        """`stored`: the weights (rows, columns), of which the first `dim` columns are read; of int8 also the scales."""
        self.dim = dim
        self.stored = stored
        """The tensors of the rows, as the file has them."""
        self.mapped: tuple[MappedFile, ...] = (file,)
        """The files that they are mapped from."""
        self._rows = stored[TABLE_TENSOR][:, :dim]
        self._scale = stored.get(SCALE_TENSOR)

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, ids: NDArray[np.integer], out: NDArray[np.float32]) -> None:
        """Write the embeddings of n ids to `out`, (n, dim)."""
        if self._scale is None:
            out[:] = self._rows[ids]
        else:
            np.multiply(self._rows[ids], self._scale[ids][:, None], out=out)

    def stored_rows(self, start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Return the rows `start` to `stop` (exclusive) as the file has them, by tensor; all columns of `weight`."""
        return {name: values[start:stop] for name, values in self.stored.items()}


class MappedTable(StoredRows):
    """All rows of a table, mapped from its file; only the pages of those that were looked up are in memory."""

    def __init__(self, path: Path, dim: int) -> None:
        """Map a file that `ModelFolder.open` has checked; the first `dim` columns are read."""
        whole = MappedTensors(path)
        super().__init__(whole.file, whole.tensors, dim)


class TableMemory:
    """Limits what mapped tables and vocabularies of a process hold in memory; safe to use from several threads.

    Pages of a mapped file stay with the process that read them until the machine runs out of memory; one that looks up
    a skewed stream of ids in tables of many GiB would seem to hold them all. Beyond the limit they are given back: hot
    rows are then mapped again from the system's page cache, at the price of a page fault each.
    """

    def __init__(self, limit_bytes: float) -> None:
        """The limit is for what is added: other files that the process has mapped by now are not counted.

        It may be exceeded by 64 MiB, or by the pages of one look-up of more than 1,024 rows.
        """
        self._limit = limit_bytes
        self._before = mapped_bytes()
        self._mapped: WeakSet[MappedFile] = WeakSet()
        self._total_bytes = 0
        self._rows = 0

    def add(self, file: MappedFile) -> None:
        """Count a file of a table or a vocabulary from now on, as long as it is used."""
        self._mapped.add(file)
        self._total_bytes = sum(len(one.content) for one in self._mapped)

    def note(self, rows: int) -> None:
        """Called after `rows` rows were looked up; gives pages back if the limit is exceeded."""
        self._rows += rows
        # Files that fit as a whole need no look, which takes about 45 microseconds, several times a request.
        if self._rows < _ROWS_BETWEEN_LOOKS or self._total_bytes <= self._limit:
            return
        self._rows = 0
        if mapped_bytes() - self._before > self._limit:
            for file in tuple(self._mapped):
                file.release()


def mapped_bytes() -> int:
    """Return the bytes of files that this process has mapped and holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[2]) * os.sysconf("SC_PAGE_SIZE")


def for_each_table(work: "Callable[[EmbeddingTable], None]", tables: "Sequence[EmbeddingTable]") -> None:
    """Do something with each table, a few at once; the first error is raised, and no further table is begun."""
    with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
        try:
            for _ in pool.map(work, tables):
                pass
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def quantise_tables(folder: Path, tables: "Sequence[EmbeddingTable]", precision: TablePrecision) -> None:
    """Write the float32 tables of a model folder anew in a smaller precision, a few at once, each whole.

    Raises UserError if weights do not fit, or the disk is full.
    """

    def quantise(table: "EmbeddingTable") -> None:
        path = folder / table_file(table.name)
        with new_file(path) as temporary, new_table(temporary, table, precision) as tensors:
            stored = MappedTable(path, table.columns)
            for start in range(0, table.rows, BLOCK_ROWS):
                ids = np.arange(start, min(start + BLOCK_ROWS, table.rows))
                block = np.empty((len(ids), table.columns), np.float32)
                stored.read(ids, block)
                for name, values in _quantised(path, block, precision).items():
                    tensors[name][start : start + len(ids)] = values

    for_each_table(quantise, tables)


def _quantised(path: Path, block: NDArray[np.float32], precision: TablePrecision) -> dict[str, NDArray[Any]]:
    """Return the rows (n, columns) as a file holds them, by tensor. Raises UserError naming `path` if they do
    not fit.
    """
    if not np.isfinite(block).all():
        raise UserError(f"{path}: holds infinite or NaN weights: training diverged; export another checkpoint")
    largest = np.abs(block).max(axis=1, initial=0.0)
    if precision == "fp16":
        if (largest > np.finfo(np.float16).max).any():
            raise UserError(f"{path}: holds weights beyond {np.finfo(np.float16).max:g}; use --tables int8 or fp32")
        return {TABLE_TENSOR: block.astype(np.float16)}
    assert precision == "int8"
    scale = (largest / _LARGEST_INT8).astype(np.float32)
    # A row of zeros, or one whose scale is too small for float32, becomes zeros.
    values = np.rint(block / np.where(scale > 0, scale, np.float32(np.inf))[:, None])
    return {TABLE_TENSOR: np.clip(values, -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8), SCALE_TENSOR: scale}


@contextlib.contextmanager
def new_table(path: Path, table: "EmbeddingTable", precision: TablePrecision) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield a new safetensors file of a table, its tensors mapped for writing; on disk when the block ends.

    Raises UserError if the disk is full.
    """
    with new_tensors(path, tensors_of_rows(table.rows, table.columns, precision)) as tensors:
        yield tensors


def tensors_of_rows(rows: int, columns: int, precision: TablePrecision) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the type and the shape of each tensor that stores rows of a table."""
    scale = {SCALE_TENSOR: ("F32", (rows,))} if precision == "int8" else {}
    return {TABLE_TENSOR: (DTYPES[precision], (rows, columns)), **scale}


@contextlib.contextmanager
def new_tensors(path: Path, stored: Mapping[str, tuple[str, tuple[int, ...]]]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield a new safetensors file of tensors of these types and shapes, mapped for writing; on disk when the block
    ends.

    Raises DiskError if the disk is full.
    """
    description: dict[str, dict[str, Any]] = {}
    end = 0
    for name, (dtype, shape) in stored.items():
        size = _NUMPY[dtype].itemsize * math.prod(shape)
        description[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + size)}
        end += size
    header = json.dumps({"__metadata__": METADATA, **description}).encode()
    # Padded so that the rows begin on a page: 8 bytes of length, the header, spaces.
    header += b" " * (-(8 + len(header)) % 4096)
    start = 8 + len(header)
    with naming(path, needed=start + end), path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.flush()
        # Writing through a map to a full disk is a SIGBUS; reserving the space fails with an error instead.
        os.posix_fallocate(file.fileno(), 0, start + end)
    if end == 0:  # nothing can be mapped
        yield {name: np.empty(described["shape"]) for name, described in description.items()}
        return
    content = np.memmap(path, dtype=np.uint8, mode="r+", offset=start, shape=(end,))
    arrays = {}
    for name, described in description.items():
        first, last = described["data_offsets"]
        arrays[name] = content[first:last].view(_NUMPY[described["dtype"]]).reshape(described["shape"])
    yield arrays
    content.flush()


def save_tensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write a safetensors file: the same bytes for the same tensors, unlike the library, which orders by chance.

    Raises DiskError if the disk is full.
    """
    names = {dtype: name for name, dtype in _NUMPY.items()}
    # By size, so that all begin at a multiple of the size of their numbers.
    ordered = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    with new_tensors(path, {name: (names[tensors[name].dtype], tensors[name].shape) for name in ordered}) as stored:
        for name in ordered:
            stored[name][...] = tensors[name]


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Yield the tensors of a file that this version of rayrec wrote. Raises UserError if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as tensors:
            version = (tensors.metadata() or {}).get("rayrec_version")
            if version != METADATA["rayrec_version"]:
                raise UserError(f"{path}: version {version} of the file is unknown; export with this version of rayrec")
            yield tensors
    except FileNotFoundError:
        raise UserError(f"{path}: missing; export the model again") from None
    except SafetensorError as error:
        raise UserError(f"{path}: damaged ({error}); export the model again") from None
