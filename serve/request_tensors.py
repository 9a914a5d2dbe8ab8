"""Tensors of the Open Inference Protocol, checked and read as the columns that a predictor takes.

`make_tensor` makes one from JSON, bytes or gRPC's typed values; `rows_of` makes columns of all of a request:
raw ones, read as columns of files are, or encoded as a dataset has them.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.raw_columns import is_events
from rayrec.features.raw_values import Values
from rayrec.features.schema import CategoricalFeature, Feature, VectorFeature
from rayrec.features.stacked_columns import StackedColumns
from rayrec.features.transforms import with_weights
from rayrec.inference.predictor import Predictor
from rayrec.inference.raw_rows import RawRows
from serve.models import RequestRows
from serve.requests import RequestError, content_errors

_FLOAT32_MAX = float(np.finfo(np.float32).max)
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


def tensor_columns(raw_rows: RawRows) -> list[pa.Field]:
    """Return the raw columns that tensors can hold: all but the events that rows bring."""
    return [field for field in raw_rows.columns if not is_events(field.type)]


def rows_of(tensors: list[Tensor], predictor: Predictor, max_rows: int, *, encoded: bool) -> RequestRows:
    """Return the rows that the inputs of a request hold. Raises RequestError: 413 too many, 422 wrong content."""
    by_name = _by_name(tensors, max_rows, predictor.raw_rows)
    known = [field.name for field in (predictor.encoded_columns if encoded else tensor_columns(predictor.raw_rows))]
    known += [weights_input(feature.name) for feature in predictor.schema.weighted] if encoded else []
    for name in by_name:
        if name not in known and name in predictor.raw_rows.columns.names and not encoded:
            raise RequestError(422, f"input '{name}': no tensor holds events; send JSON or Arrow to :predict")
        if name not in known and not predictor.raw_rows.is_unneeded(name):
            raise RequestError(422, predictor.raw_rows.unknown(name))
    with content_errors():
        columns = _encoded_columns(by_name, predictor) if encoded else _raw_columns(by_name, predictor)
    return RequestRows(StackedColumns.of(columns), encoded)


def weights_input(feature: str) -> str:
    """Return the name of the input of the weights of an encoded list."""
    return f"{feature} (weights)"


def _by_name(tensors: list[Tensor], max_rows: int, raw_rows: RawRows) -> dict[str, Tensor]:
    """Return the tensors by the column's name; each must be given once, and all must have the same number of rows."""
    by_name: dict[str, Tensor] = {}
    for tensor, name in zip(tensors, raw_rows.named(tensor.name for tensor in tensors), strict=True):
        if name in by_name:
            raise RequestError(422, f"{tensor.where}: given twice")
        if tensor.rows > max_rows:
            raise RequestError(413, f"{tensor.where}: {tensor.rows} rows, at most {max_rows} a request; send several")
        if tensor.rows == 0:
            raise RequestError(422, f"{tensor.where}: no rows; send at least one")
        if tensor.rows != tensors[0].rows:
            first = f"{tensors[0].where} has {tensors[0].rows}"
            raise RequestError(422, f"{tensor.where}: {tensor.rows} rows, but {first}")
        by_name[name] = tensor
    return by_name


def _raw_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    """Read the tensors of raw columns, of any data type, as columns of files are read."""
    columns: dict[str, Values] = {}
    for field in tensor_columns(predictor.raw_rows):
        if (tensor := tensors.get(field.name)) is None:
            continue
        is_list = pa.types.is_list(field.type)
        _require_width(tensor, is_list)
        is_id = pa.types.is_integer(field.type.value_type if is_list else field.type)
        if isinstance(tensor.values, list):
            values = [None if is_id and _is_padding(value) else value for value in tensor.values]
            rows = [values[row * tensor.width : (row + 1) * tensor.width] for row in range(tensor.rows)]
            columns[field.name] = rows if is_list else values
        else:
            flat = _as_arrow(tensor, is_id=is_id)
            offsets = pa.array(np.arange(tensor.rows + 1) * tensor.width, pa.int32())
            columns[field.name] = pa.ListArray.from_arrays(offsets, flat) if is_list else flat
    return predictor.raw_rows.from_columns(columns, next(iter(tensors.values())).rows)


def _is_padding(value: Any) -> bool:
    """Tell whether a value fills up a row of ids."""
    return isinstance(value, int) and value == -1


def _encoded_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    """Return the columns as `FeatureEncoder.encode` makes them: float32 numbers, ids of the tables; every feature is
    there.

    The weights of a list of ids are an input of their own, without which they are 1.
    """
    columns = []
    for feature in predictor.schema.features:
        if feature.name not in tensors:
            raise UserError(f"input '{feature.name}': missing; encoded rows must have every feature of the model")
        dtype = predictor.encoded_columns.field(feature.name).type
        weights = tensors.get(weights_input(feature.name))
        columns.append(_encoded_column(tensors[feature.name], feature, dtype, weights))
    return pa.RecordBatch.from_arrays(columns, schema=predictor.encoded_columns)


def _encoded_column(tensor: Tensor, feature: Feature, dtype: pa.DataType, weights: Tensor | None) -> pa.Array:
    is_list, is_category = pa.types.is_list(dtype), isinstance(feature, CategoricalFeature)
    size = feature.size if isinstance(feature, VectorFeature) else None
    _require_fitting(tensor, is_list or size is not None, is_id=is_category)
    if size is not None and tensor.width != size:
        raise UserError(f"{tensor.where}: {tensor.width} values a row; the feature has {size}")
    values = _values(tensor, is_integer=is_category)
    if not isinstance(feature, CategoricalFeature):
        if not (np.abs(values) <= _FLOAT32_MAX).all():  # NaN too
            raise UserError(f"{tensor.where}: encoded numbers must be finite float32")
        numbers = pa.array(values.astype(np.float32))
        return numbers if size is None else pa.FixedSizeListArray.from_arrays(numbers, size)
    present = values >= 0 if is_list else np.ones(len(values), bool)
    if not ((values[present] >= 0) & (values[present] < feature.cardinality)).all():
        raise UserError(f"{tensor.where}: encoded ids must be from 0 to {feature.cardinality - 1}")
    if not is_list:
        return pa.array(values, dtype)
    offsets = np.concatenate([[0], np.cumsum(present.reshape(tensor.rows, tensor.width).sum(axis=1))])
    if pa.types.is_struct(dtype.value_type):
        ids = values[present].astype(dtype.value_type.field("id").type.to_pandas_dtype())
        elements = with_weights(ids, _weights(weights, tensor)[present])
    else:
        elements = pa.array(values[present], dtype.value_type)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)


def _weights(tensor: Tensor | None, ids: Tensor) -> NDArray[np.float32]:
    """Return the weight of each value of the tensor `ids`."""
    if tensor is None:
        return np.ones(ids.rows * ids.width, np.float32)
    _require_fitting(tensor, is_list=True, is_id=False)
    values = _values(tensor, is_integer=False)
    if tensor.width != ids.width or not ((values >= 0) & (values <= _FLOAT32_MAX)).all():
        raise UserError(f"{tensor.where}: needs a number of at least 0 for each value of {ids.where}, padding included")
    return values.astype(np.float32)


def _values(tensor: Tensor, *, is_integer: bool) -> NDArray[Any]:
    """Return the values of a tensor of numbers, (n,) int64 or float64."""
    python_type = int if is_integer else (int, float)
    if isinstance(tensor.values, list) and any(
        isinstance(value, bool) or not isinstance(value, python_type) for value in tensor.values
    ):
        raise UserError(f"{tensor.where}: a value of another type than {tensor.datatype}")
    try:
        return np.asarray(tensor.values).astype(np.int64 if is_integer else np.float64)
    except (OverflowError, ValueError, TypeError):
        raise UserError(f"{tensor.where}: a value is out of range") from None


def _require_width(tensor: Tensor, is_list: bool) -> None:
    """Raise UserError if a tensor has several values a row for a feature of one."""
    if tensor.width != 1 and not is_list:
        raise UserError(f"{tensor.where}: {tensor.width} values a row; the feature has one, shape [rows]")


def _require_fitting(tensor: Tensor, is_list: bool, *, is_id: bool) -> None:
    """Raise UserError unless the width and data type of a tensor are those of an encoded feature."""
    _require_width(tensor, is_list)
    if is_id and tensor.datatype not in INTEGERS:
        raise UserError(f"{tensor.where}: datatype {tensor.datatype}, needs INT64 (or another integer)")
    if tensor.datatype in {"BYTES", "BOOL"}:
        raise UserError(f"{tensor.where}: datatype {tensor.datatype}, needs FP64 (or another number)")


def _as_arrow(tensor: Tensor, *, is_id: bool) -> pa.Array:
    """Hold binary data in Arrow; -1 among ids is missing. Raises UserError if a number is out of range."""
    if isinstance(tensor.values, pa.Array):
        return tensor.values
    values = np.asarray(tensor.values)
    values = values.astype(values.dtype.newbyteorder("="))
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            too_large = np.flatnonzero(np.abs(values.astype(np.float64)) > _FLOAT32_MAX)
        if len(too_large):
            raise UserError(f"row {too_large[0]}, {tensor.where}: out of range; numbers go up to {_FLOAT32_MAX:.3g}")
    return pa.array(values, mask=(values == -1) if is_id and values.dtype.kind == "i" else None)
