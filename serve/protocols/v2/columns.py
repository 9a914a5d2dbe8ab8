"""Checked tensors of a request as the columns that a predictor reads: raw, or encoded as a dataset has them."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.lists import with_weights
from rayrec.features.schema import CategoricalFeature, Feature, VectorFeature
from rayrec.inference.predictor import Predictor
from serve.errors import RequestError
from serve.models.served_version import Rows
from serve.protocols.v2.tensors import INTEGERS, Tensor

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def rows_of(tensors: list[Tensor], predictor: Predictor, max_rows: int, *, encoded: bool) -> Rows:
    """The rows that the inputs of a request hold. Raises RequestError: 413 too many, 422 wrong content."""
    by_name = _by_name(tensors, max_rows)
    known = list((predictor.encoded_columns if encoded else predictor.raw_rows.columns).names)
    known += [weights_input(feature.name) for feature in predictor.schema.weighted] if encoded else []
    for name in by_name:
        if name not in known:
            raise RequestError(422, predictor.raw_rows.unknown(name))
    try:
        columns = _encoded_columns(by_name, predictor) if encoded else _raw_columns(by_name, predictor)
    except UserError as error:
        raise RequestError(422, str(error)) from None
    return Rows(columns, encoded)


def weights_input(feature: str) -> str:
    """The name of the input of the weights of an encoded list."""
    return f"{feature} (weights)"


def _by_name(tensors: list[Tensor], max_rows: int) -> dict[str, Tensor]:
    """Tensors by name; each must be given once, and all must have the same number of rows."""
    by_name: dict[str, Tensor] = {}
    for tensor in tensors:
        if tensor.name in by_name:
            raise RequestError(422, f"{tensor.where}: given twice")
        if tensor.rows > max_rows:
            raise RequestError(413, f"{tensor.where}: {tensor.rows} rows, at most {max_rows} a request; send several")
        if tensor.rows == 0:
            raise RequestError(422, f"{tensor.where}: no rows; send at least one")
        if tensor.rows != tensors[0].rows:
            first = f"{tensors[0].where} has {tensors[0].rows}"
            raise RequestError(422, f"{tensor.where}: {tensor.rows} rows, but {first}")
        by_name[tensor.name] = tensor
    return by_name


def _raw_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    raw = predictor.raw_rows
    rows = next(iter(tensors.values())).rows
    columns = []
    for field in raw.columns:
        tensor = tensors.get(field.name)
        if tensor is None:
            columns.append(pa.nulls(rows, field.type))
            continue
        is_list = pa.types.is_list(field.type)
        dtype = field.type.value_type if is_list else field.type
        _require_fitting(tensor, dtype, is_list)
        if isinstance(tensor.values, list) or pa.types.is_timestamp(dtype):
            values = tensor.values if isinstance(tensor.values, list) else tensor.values.tolist()
            columns.append(raw.from_values(field.name, _lists(tensor, dtype) if is_list else values))
            continue
        flat = _as_arrow(tensor, dtype)
        offsets = pa.array(np.arange(tensor.rows + 1) * tensor.width, pa.int32())
        columns.append(pa.ListArray.from_arrays(offsets, flat) if is_list else flat)
    return raw.checked(columns)


def _encoded_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    """Columns as `FeatureEncoder.encode` makes them: float32 numbers, ids of the tables; every feature is there.

    The weights of a list of ids are an input of their own, without which they are 1.
    """
    columns = []
    for feature in predictor.schema.features:
        if feature.name not in tensors:
            raise UserError(f"input '{feature.name}': missing; encoded rows have every feature of the model")
        dtype = predictor.encoded_columns.field(feature.name).type
        weights = tensors.get(weights_input(feature.name))
        columns.append(_encoded_column(tensors[feature.name], feature, dtype, weights))
    return pa.RecordBatch.from_arrays(columns, schema=predictor.encoded_columns)


def _encoded_column(tensor: Tensor, feature: Feature, dtype: pa.DataType, weights: Tensor | None) -> pa.Array:
    is_list, is_category = pa.types.is_list(dtype), isinstance(feature, CategoricalFeature)
    size = feature.size if isinstance(feature, VectorFeature) else None
    _require_fitting(tensor, pa.int64() if is_category else pa.float64(), is_list or size is not None)
    if size is not None and tensor.width != size:
        raise UserError(f"{tensor.where}: {tensor.width} values a row; the feature has {size}")
    values = _values(tensor, is_integer=is_category)
    if not isinstance(feature, CategoricalFeature):
        if not (np.abs(values) <= _FLOAT32_MAX).all():  # NaN too
            raise UserError(f"{tensor.where}: encoded numbers are finite float32")
        numbers = pa.array(values.astype(np.float32))
        return numbers if size is None else pa.FixedSizeListArray.from_arrays(numbers, size)
    present = values >= 0 if is_list else np.ones(len(values), bool)
    if not ((values[present] >= 0) & (values[present] < feature.cardinality)).all():
        raise UserError(f"{tensor.where}: encoded ids go from 0 to {feature.cardinality - 1}")
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
    """The weight of each value of the tensor `ids`."""
    if tensor is None:
        return np.ones(ids.rows * ids.width, np.float32)
    _require_fitting(tensor, pa.float64(), is_list=True)
    values = _values(tensor, is_integer=False)
    if tensor.width != ids.width or not ((values >= 0) & (values <= _FLOAT32_MAX)).all():
        raise UserError(f"{tensor.where}: needs a number from 0 on for each value of {ids.where}, padding too")
    return values.astype(np.float32)


def _values(tensor: Tensor, *, is_integer: bool) -> NDArray[Any]:
    """(n,) int64 or float64 of a tensor of numbers."""
    python_type = int if is_integer else (int, float)
    if isinstance(tensor.values, list) and any(
        isinstance(value, bool) or not isinstance(value, python_type) for value in tensor.values
    ):
        raise UserError(f"{tensor.where}: a value of another type than {tensor.datatype}")
    try:
        return np.asarray(tensor.values).astype(np.int64 if is_integer else np.float64)
    except (OverflowError, ValueError, TypeError):
        raise UserError(f"{tensor.where}: a value is out of range") from None


def _require_fitting(tensor: Tensor, dtype: pa.DataType, is_list: bool) -> None:
    """Raises UserError unless the width and data type of a tensor are those of its feature."""
    if tensor.width != 1 and not is_list:
        raise UserError(f"{tensor.where}: {tensor.width} values a row; the feature has one, shape [rows]")
    if pa.types.is_string(dtype):
        fits, needs = tensor.datatype == "BYTES", "BYTES"
    elif pa.types.is_timestamp(dtype):
        fits, needs = True, "any"
    elif pa.types.is_integer(dtype):
        fits, needs = tensor.datatype in INTEGERS, "INT64 (or another integer)"
    else:
        fits, needs = tensor.datatype != "BYTES", "FP64 (or another number)"
    if not fits:
        raise UserError(f"{tensor.where}: datatype {tensor.datatype}, needs {needs}")


def _lists(tensor: Tensor, dtype: pa.DataType) -> list[list[Any]]:
    """The rows of JSON values without their padding: -1 among ids; the encoder itself leaves out empty strings."""
    assert isinstance(tensor.values, list)
    values = tensor.values
    if pa.types.is_integer(dtype):
        values = [None if isinstance(value, int) and value == -1 else value for value in values]
    return [values[row * tensor.width : (row + 1) * tensor.width] for row in range(tensor.rows)]


def _as_arrow(tensor: Tensor, dtype: pa.DataType) -> pa.Array:
    """Binary data as the values of a raw column; NaN numbers, the empty string and -1 among ids are missing."""
    if isinstance(tensor.values, pa.Array):
        return tensor.values
    values = np.asarray(tensor.values)
    if pa.types.is_floating(dtype):
        with np.errstate(invalid="ignore"):
            numbers = values.astype(np.float64)
            too_large = np.flatnonzero(np.abs(numbers) > _FLOAT32_MAX)
        if len(too_large):
            raise UserError(f"row {too_large[0]}, {tensor.where}: out of range; numbers go up to {_FLOAT32_MAX:.3g}")
        return pa.array(numbers)
    if values.dtype == np.uint64 and (values >= 2**63).any():
        raise UserError(f"{tensor.where}: an id is out of range")
    ids = values.astype(np.int64)
    return pa.array(ids, mask=ids == -1)
