"""Tensors of the Open Inference Protocol: their data types, and their values as JSON or as bytes."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from serve.errors import RequestError

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
    """rows * width values in row-major order: a list if they came as JSON, a string array for BYTES."""

    @property
    def where(self) -> str:
        """The input, for messages."""
        return _where(self.name)


@dataclass(frozen=True)
class TensorHead:
    """What a request says of an input before its values."""

    name: str
    datatype: str
    shape: list[int]
    """[rows] or [rows, values of a row]."""

    @classmethod
    def checked(cls, index: int, name: Any, datatype: Any, shape: Any) -> "TensorHead":
        """The head of the input at position `index`. Raises RequestError 422."""
        if not isinstance(name, str):
            raise RequestError(422, f"inputs[{index}]: has no name; name a feature of the model")
        if datatype not in DATA_TYPES:
            raise RequestError(422, f"{_where(name)}: datatype must be one of {', '.join(DATA_TYPES)}")
        if (
            not isinstance(shape, list)
            or len(shape) not in (1, 2)
            or not all(isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**31 for size in shape)
        ):
            raise RequestError(422, f"{_where(name)}: shape must be [rows] or [rows, values of a row]")
        return cls(name, datatype, shape)

    def with_values(self, values: list[Any] | NDArray[Any] | pa.Array | None) -> Tensor:
        """The tensor of flat values. Raises RequestError 422 unless they are as many as the shape says."""
        count = prod(self.shape)
        if values is None or len(values) != count:
            where = _where(self.name)
            raise RequestError(422, f"{where}: data must be a list of the {count} values that its shape says")
        rows, width = (*self.shape, 1)[:2]
        return Tensor(self.name, self.datatype, rows, width, values)

    def with_json(self, data: Any) -> Tensor:
        """The tensor of a JSON value, flat or nested as the shape says. Raises RequestError 422."""
        rows, width = (*self.shape, 1)[:2]
        if not isinstance(data, list):
            return self.with_values(None)
        if len(self.shape) == 2 and len(data) == rows and all(isinstance(row, list) for row in data):
            fits = all(len(row) == width for row in data)
            data = [value for row in data for value in row] if fits else None
        return self.with_values(data)

    def with_bytes(self, data: bytes) -> Tensor:
        """The tensor of values in the binary form of the protocol. Raises RequestError 422."""
        count = prod(self.shape)
        if self.datatype == "BYTES":
            return self.with_values(_strings(_where(self.name), data, count))
        dtype = np.dtype(_NUMPY[self.datatype]).newbyteorder("<")
        if len(data) != count * dtype.itemsize:
            where = _where(self.name)
            raise RequestError(422, f"{where}: {len(data)} bytes for {count} values of {self.datatype}")
        return self.with_values(np.frombuffer(data, dtype))


def read_tensor(entry: Any, index: int, binary: bytes) -> tuple[Tensor, int]:
    """The tensor of one entry of `inputs`, and how many bytes of `binary` it took. Raises RequestError 422."""
    if not isinstance(entry, dict):
        raise RequestError(422, f"inputs[{index}]: must be an object with name, shape, datatype and data")
    head = TensorHead.checked(index, entry.get("name"), entry.get("datatype"), entry.get("shape"))
    parameters = entry.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        return head.with_json(entry.get("data")), 0
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(binary):
        most = f"a whole number up to the {len(binary)} bytes left"
        raise RequestError(422, f"{_where(head.name)}: binary_data_size must be {most}")
    return head.with_bytes(binary[:size]), size


def _where(name: str) -> str:
    return f"input '{name[:100]}'"


def _strings(where: str, data: bytes, count: int) -> pa.Array:
    """The strings of BYTES data: each is its length (4 bytes, little endian) and its UTF-8."""
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
    """The lengths of `count` strings that fill `data`; None if they do not."""
    if count == 0:
        return None if data else np.empty(0, np.int64)
    if len(data) < 4 * count:
        return None
    # Hashed categories all have one length, which is read without a loop.
    if len(data) % count == 0:
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
