"""Tensors of the Open Inference Protocol: their data types, as JSON or as bytes, and Arrow columns made of them."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serve.protocol import RequestError

_NUMPY = {
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64,
    "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "FP16": np.float16, "FP32": np.float32, "FP64": np.float64,
}  # fmt: skip
DATA_TYPES = (*_NUMPY, "BYTES")
INTEGERS = tuple(name for name in _NUMPY if "INT" in name)
_LENGTH = np.dtype("<u4")


@dataclass(frozen=True)
class Tensor:
    """One input of a request: n rows of `width` values each."""

    name: str
    datatype: str
    rows: int
    width: int
    values: list[Any] | NDArray[Any] | pa.Array
    """rows * width values in row-major order: a list where they came as JSON, a string array for BYTES."""


def read_tensor(entry: Any, index: int, binary: bytes) -> tuple[Tensor, int]:
    """The tensor of one entry of `inputs`, and how many bytes of `binary` it took. Raises RequestError 422."""
    where = f"inputs[{index}]"
    if not isinstance(entry, dict):
        raise RequestError(422, f"{where}: must be an object with name, shape, datatype and data")
    name, shape, datatype = entry.get("name"), entry.get("shape"), entry.get("datatype")
    if not isinstance(name, str):
        raise RequestError(422, f"{where}: has no name; name a feature of the model")
    where = f"input '{name[:100]}'"
    if datatype not in DATA_TYPES:
        raise RequestError(422, f"{where}: datatype must be one of {', '.join(DATA_TYPES)}")
    if (
        not isinstance(shape, list)
        or len(shape) not in (1, 2)
        or not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31 for size in shape)
    ):
        raise RequestError(422, f"{where}: shape must be [rows] or [rows, values of a row]")
    rows, width = (*shape, 1)[:2]
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        values = _flat(entry.get("data"), shape)
        if values is None:
            raise RequestError(422, f"{where}: data must be a list of the {prod(shape)} values that its shape says")
        return Tensor(name, datatype, rows, width, values), 0
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
        raise RequestError(422, f"{where}: binary_data_size must be a whole number up to the {len(binary)} bytes left")
    taken = _from_bytes(where, datatype, binary[:size], prod(shape))
    return Tensor(name, datatype, rows, width, taken), size


def _flat(data: Any, shape: list[int]) -> list[Any] | None:
    """`data`, flat or nested as `shape` says, as a flat list; None where it does not fit."""
    if not isinstance(data, list):
        return None
    if len(shape) == 2 and len(data) == shape[0] and all(isinstance(row, list) for row in data):
        if any(len(row) != shape[1] for row in data):
            return None
        data = [value for row in data for value in row]
    return data if len(data) == prod(shape) else None


def _from_bytes(where: str, datatype: str, data: bytes, count: int) -> NDArray[Any] | pa.Array:
    if datatype == "BYTES":
        return _strings(where, data, count)
    dtype = np.dtype(_NUMPY[datatype]).newbyteorder("<")
    if len(data) != count * dtype.itemsize:
        raise RequestError(422, f"{where}: {len(data)} bytes for {count} values of {datatype}")
    return np.frombuffer(data, dtype)


def _strings(where: str, data: bytes, count: int) -> pa.Array:
    """Strings of BYTES data: each is its length (4 bytes, little endian) and its UTF-8."""
    lengths = _lengths(data, count)
    if lengths is None:
        raise RequestError(422, f"{where}: its bytes are not {count} strings, each after its length in 4 bytes")
    ends = np.cumsum(lengths)
    kept = np.ones(len(data), bool)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) + 4 * np.arange(count)
    kept[(starts[:, None] + np.arange(4)).ravel()] = False
    text = np.frombuffer(data, np.uint8)[kept].tobytes()
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    strings = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid:
        raise RequestError(422, f"{where}: a string is not UTF-8") from None
    return strings


def _lengths(data: bytes, count: int) -> NDArray[np.int64] | None:
    """Lengths of `count` strings that fill `data`; None where they do not."""
    if count == 0:
        return None if data else np.empty(0, np.int64)
    # Hashed categories have one length, which is then told without a loop.
    if len(data) % count == 0 and len(data) >= 4 * count:
        table = np.frombuffer(data, np.uint8).reshape(count, -1)
        first = table[:, :4].copy().view(_LENGTH).ravel()
        if (first == table.shape[1] - 4).all():
            return first.astype(np.int64)
    lengths = np.empty(count, np.int64)
    position = 0
    for index in range(count):
        if position + 4 > len(data):
            return None
        lengths[index] = int.from_bytes(data[position : position + 4], "little")
        position += 4 + int(lengths[index])
    return lengths if position == len(data) else None
