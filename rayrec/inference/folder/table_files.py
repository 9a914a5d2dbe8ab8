"""The safetensors files of a model folder: made whole, checked when they are opened."""

import contextlib
import errno
import json
import math
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rayrec.common.errors import UserError
from rayrec.common.files import new_file
from rayrec.inference.folder.layout import TABLES_FOLDER
from rayrec.inference.folder.mapped_table import (
    DTYPES,
    NUMPY,
    SCALE_TENSOR,
    TABLE_TENSOR,
    MappedTable,
    TablePrecision,
    quantised,
)
from rayrec.models.common.tables import EmbeddingTable

# `format: pt` is what readers of safetensors expect; the version is that of this folder's layout.
METADATA = {"format": "pt", "rayrec_version": "1"}


def table_file(name: str) -> str:
    """Path of a table's file in a model folder; a name with `/` in it stays one file."""
    return f"{TABLES_FOLDER}/{quote(name, safe=' ')}.safetensors"


def quantise_tables(folder: Path, tables: Sequence[EmbeddingTable], precision: TablePrecision) -> None:
    """Write the float32 tables of a model folder anew in a smaller precision, one after the other, each whole.

    Raises UserError where weights do not fit, or the disk is full.
    """
    for table in tables:
        path = folder / table_file(table.name)
        with new_file(path) as temporary, new_table(temporary, table, precision) as tensors:
            start = 0
            for block in MappedTable(path, table.columns).blocks():
                for name, values in quantised(path, block, precision).items():
                    tensors[name][start : start + len(values)] = values
                start += len(block)


def _stored(table: EmbeddingTable, precision: TablePrecision) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Type and shape of the tensors of a table's file."""
    scale = {SCALE_TENSOR: ("F32", (table.rows,))} if precision == "int8" else {}
    return {TABLE_TENSOR: (DTYPES[precision], table.shape), **scale}


@contextlib.contextmanager
def new_table(path: Path, table: EmbeddingTable, precision: TablePrecision) -> Iterator[dict[str, NDArray[Any]]]:
    """A new safetensors file of a table, its tensors mapped for writing; on disk when the block ends.

    Raises UserError where the disk is full.
    """
    description: dict[str, dict[str, Any]] = {}
    end = 0
    for name, (dtype, shape) in _stored(table, precision).items():
        size = NUMPY[dtype].itemsize * math.prod(shape)
        description[name] = {"dtype": dtype, "shape": shape, "data_offsets": (end, end + size)}
        end += size
    header = json.dumps({"__metadata__": METADATA, **description}).encode()
    # Padded so that the rows begin on a page: 8 bytes of length, the header, spaces.
    header += b" " * (-(8 + len(header)) % 4096)
    start = 8 + len(header)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.flush()
        try:
            # Writing through a map to a full disk is a SIGBUS; reserving the space fails as an error.
            os.posix_fallocate(file.fileno(), 0, start + end)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
                raise
            raise UserError(
                f"{path}: no space for a table of {end:,} bytes; free the disk, or give another --output"
            ) from None
    content = np.memmap(path, dtype=np.uint8, mode="r+", offset=start, shape=(end,))
    arrays = {}
    for name, described in description.items():
        first, last = described["data_offsets"]
        arrays[name] = content[first:last].view(NUMPY[described["dtype"]]).reshape(described["shape"])
    yield arrays
    content.flush()


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """The tensors of a file that this version of rayrec wrote. Raises UserError where it is missing or damaged."""
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
