"""Tensors of the Open Inference Protocol: their data types, and their values as JSON or as bytes."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serve.errors import RequestError

_NUMPY = {
    "BOOL": np.bool_,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
DATA_TYPES = (*_NUMPY, "BYTES")
INTEGERS = tuple(name for name in _NUMPY if "INT" in name)


@dataclass(frozen=True)
class Tensor:
    """One input of a request: n rows of `width` values each."""

    name: str
    datatype: str
    rows: int
    width: int
    values: list[Any] | NDArray[Any] | pa.Array
    """rows * width values in row-major order: a list if they came as JSON, a string array for BYTES."""

    @property
    def where(self) -> str:
        """Input, for messages."""
        return _where(self.name)


def make_tensor(index: int, name: Any, datatype: Any, shape: Any, values: Any, data: bytes | None = None) -> Tensor:
    """Return the checked tensor of the input at position `index`. Raises RequestError 422.

    Its values are `data`, the binary form of the protocol, or else `values`: flat, or nested as the shape says.
    """
    if not isinstance(name, str):
        raise RequestError(422, f"inputs[{index}]: has no name; name a feature of the model")
    where = _where(name)
    if datatype not in DATA_TYPES:
        raise RequestError(422, f"{where}: datatype must be one of {', '.join(DATA_TYPES)}")
    if (
        not isinstance(shape, list)
        or len(shape) not in (1, 2)
        or not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31 for size in shape)
    ):
        raise RequestError(422, f"{where}: shape must be [rows] or [rows, values of a row]")
    count = prod(shape)
    rows, width = (*shape, 1)[:2]
    if data is not None:
        values = _from_bytes(where, datatype, data, count)
    elif len(shape) == 2 and isinstance(values, list) and all(isinstance(row, list) for row in values):
        fits = len(values) == rows and all(len(row) == width for row in values)
        values = [value for row in values for value in row] if fits else None
    if not isinstance(values, list | np.ndarray | pa.Array) or len(values) != count:
        raise RequestError(422, f"{where}: data must be a list of the {count} values that its shape says")
    return Tensor(name, datatype, rows, width, values)


def read_tensor(entry: Any, index: int, binary: bytes) -> tuple[Tensor, int]:
    """Return the tensor of one entry of `inputs`, and how many bytes of `binary` it took. Raises RequestError 422."""
    if not isinstance(entry, dict):
        raise RequestError(422, f"inputs[{index}]: must be an object with name, shape, datatype and data")
    head = index, entry.get("name"), entry.get("datatype"), entry.get("shape")
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return make_tensor(*head, entry.get("data")), 0
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
        most = f"a whole number up to the {len(binary)} bytes left"
        raise RequestError(422, f"inputs[{index}]: binary_data_size must be {most}")
    return make_tensor(*head, None, binary[:size]), size


def _where(name: str) -> str:
    return f"input '{name[:100]}'"


def _from_bytes(where: str, datatype: str, data: bytes, count: int) -> NDArray[Any] | pa.Array:
    if datatype == "BYTES":
        return _strings(where, data, count)
    dtype = np.dtype(_NUMPY[datatype]).newbyteorder("<")
    if len(data) != count * dtype.itemsize:
        raise RequestError(422, f"{where}: {len(data)} bytes for {count} values of {datatype}")
    return np.frombuffer(data, dtype)


def _strings(where: str, data: bytes, count: int) -> pa.Array:
    """Return the strings of BYTES data: each is its length (4 bytes, little endian) and its UTF-8."""
    texts = _equally_long(data, count)
    if texts is None:
        values, position = [], 0
        while position + 4 <= len(data):
            end = position + 4 + int.from_bytes(data[position : position + 4], "little")
            values.append(data[position + 4 : end])
            position = end
        if position != len(data) or len(values) != count:
            raise RequestError(422, f"{where}: its bytes are not {count} strings, each after its length in 4 bytes")
        texts = pa.array(values, pa.binary())
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        raise RequestError(422, f"{where}: a string is not UTF-8") from None


def _equally_long(data: bytes, count: int) -> pa.Array | None:
    """Return the strings as bytes if all have one length, as hashed categories have: they are read without a loop."""
    if count == 0 or len(data) % count or len(data) < 4 * count:
        return None
    table = np.frombuffer(data, np.uint8).reshape(count, -1)
    length = table.shape[1] - 4
    if (table[:, :4].copy().view("<u4") != length).any():
        return None
    offsets = np.arange(count + 1, dtype=np.int32) * length
    text = pa.py_buffer(np.ascontiguousarray(table[:, 4:]))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), text])
