"""Files of tensors (safetensors), made whole, checked when opened, and mapped to be read."""

import contextlib
import json
import math
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from rayrec.common.disk_errors import naming
from rayrec.common.errors import UserError
from rayrec.common.machine import MappedFile

METADATA = {"format": "pt", "rayrec_version": "1"}
"""`format: pt` is what readers of safetensors expect; the version is that of the folder's layout."""
_NUMPY: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip


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
