"""Checked tensors of a request as the columns that a predictor reads: raw, or encoded as a dataset has them."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.schema import CategoricalFeature, Feature
from rayrec.inference.predictor import Predictor
from serve.protocol import RequestError
from serve.served_version import Rows
from serve.tensors import INTEGERS, Tensor

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def rows_of(tensors: list[Tensor], predictor: Predictor, max_rows: int, *, encoded: bool) -> Rows:
    """The rows that the inputs of a request hold. Raises RequestError: 413 too many, 422 what does not fit."""
    by_name = _together(tensors, max_rows)
    try:
        columns = _encoded_columns(by_name, predictor) if encoded else _raw_columns(by_name, predictor)
    except UserError as error:
        raise RequestError(422, str(error)) from None
    return Rows(columns, encoded)


def _together(tensors: list[Tensor], max_rows: int) -> dict[str, Tensor]:
    """By name: each given once, all of the same number of rows."""
    by_name: dict[str, Tensor] = {}
    for tensor in tensors:
        where = f"input '{tensor.name[:100]}'"
        if tensor.name in by_name:
            raise RequestError(422, f"{where}: given twice")
        if tensor.rows > max_rows:
            raise RequestError(413, f"{where}: {tensor.rows} rows, at most {max_rows} a request; send several")
        if tensor.rows == 0:
            raise RequestError(422, f"{where}: no rows; send at least one")
        if tensor.rows != tensors[0].rows:
            first = f"input '{tensors[0].name[:100]}' has {tensors[0].rows}"
            raise RequestError(422, f"{where}: {tensor.rows} rows, but {first}")
        by_name[tensor.name] = tensor
    return by_name


def _raw_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    raw = predictor.raw_rows
    for name in tensors:
        if name not in raw.columns.names:
            raise UserError(raw.unknown(name))
    rows = next(iter(tensors.values())).rows
    columns = []
    for field in raw.columns:
        tensor = tensors.get(field.name)
        if tensor is None:
            columns.append(pa.nulls(rows, field.type))
            continue
        is_list = pa.types.is_list(field.type)
        _require_width(tensor, is_list)
        dtype = field.type.value_type if is_list else field.type
        _require_datatype(tensor, dtype)
        if isinstance(tensor.values, list):
            values = [_without_padding(row) for row in _rows_of(tensor)] if is_list else tensor.values
            columns.append(raw.from_values(field.name, values))
        else:
            flat = _as_arrow(tensor, dtype)
            columns.append(pa.ListArray.from_arrays(_offsets(tensor), flat) if is_list else flat)
    return pa.RecordBatch.from_arrays(columns, schema=raw.columns)


def _encoded_columns(tensors: dict[str, Tensor], predictor: Predictor) -> pa.RecordBatch:
    """Columns as `FeatureEncoder.encode` makes them: float32 numbers, ids of the tables; every feature is there."""
    known = [feature.name for feature in predictor.schema.features]
    for name in tensors:
        if name not in known:
            raise UserError(predictor.raw_rows.unknown(name))
    columns = []
    for feature in predictor.schema.features:
        tensor = tensors.get(feature.name)
        if tensor is None:
            raise UserError(f"input '{feature.name}': missing; encoded rows have every feature of the model")
        field = predictor.encoded_columns.field(feature.name)
        columns.append(_encoded_column(tensor, feature, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=predictor.encoded_columns)


def _encoded_column(tensor: Tensor, feature: Feature, dtype: pa.DataType) -> pa.Array:
    is_list = pa.types.is_list(dtype)
    _require_width(tensor, is_list)
    where = f"input '{tensor.name}'"
    _require_datatype(tensor, pa.int64() if isinstance(feature, CategoricalFeature) else pa.float64())
    wanted: type = np.float64
    if isinstance(feature, CategoricalFeature):
        wanted = np.int64
    if isinstance(tensor.values, list) and any(
        isinstance(value, bool) or not isinstance(value, int if wanted is np.int64 else (int, float))
        for value in tensor.values
    ):
        raise UserError(f"{where}: a value of another type than {tensor.datatype}")
    try:
        values: NDArray[Any] = np.asarray(tensor.values).astype(wanted)
    except (OverflowError, ValueError, TypeError):
        raise UserError(f"{where}: a value is out of range") from None
    if not isinstance(feature, CategoricalFeature):
        if not (np.abs(values) <= _FLOAT32_MAX).all():  # NaN too
            raise UserError(f"{where}: encoded numbers are finite float32")
        return pa.array(values.astype(np.float32))
    present = values >= 0 if is_list else np.ones(len(values), bool)
    if not ((values[present] >= 0) & (values[present] < feature.cardinality)).all():
        raise UserError(f"{where}: encoded ids go from 0 to {feature.cardinality - 1}")
    if not is_list:
        return pa.array(values, dtype)
    offsets = np.concatenate([[0], np.cumsum(present.reshape(tensor.rows, tensor.width).sum(axis=1))])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values[present], dtype.value_type))


def _require_width(tensor: Tensor, is_list: bool) -> None:
    if tensor.width != 1 and not is_list:
        raise UserError(f"input '{tensor.name}': {tensor.width} values a row; the feature has one, shape [rows]")


def _require_datatype(tensor: Tensor, dtype: pa.DataType) -> None:
    if pa.types.is_string(dtype):
        fits, needs = tensor.datatype == "BYTES", "BYTES"
    elif pa.types.is_integer(dtype):
        fits, needs = tensor.datatype in INTEGERS, "INT64 (or another integer)"
    else:
        fits, needs = tensor.datatype != "BYTES", "FP64 (or another number)"
    if not fits:
        raise UserError(f"input '{tensor.name}': datatype {tensor.datatype}, needs {needs}")


def _rows_of(tensor: Tensor) -> list[list[Any]]:
    assert isinstance(tensor.values, list)
    return [tensor.values[row * tensor.width : (row + 1) * tensor.width] for row in range(tensor.rows)]


def _without_padding(values: list[Any]) -> list[Any]:
    """Ids are padded with -1; of strings the encoder leaves out the empty ones."""
    return [None if isinstance(value, int) and value == -1 else value for value in values]


def _offsets(tensor: Tensor) -> pa.Array:
    return pa.array(np.arange(tensor.rows + 1) * tensor.width, pa.int32())


def _as_arrow(tensor: Tensor, dtype: pa.DataType) -> pa.Array:
    """Binary data as the values of a raw column; NaN numbers, the empty string and -1 among ids are missing."""
    where = f"input '{tensor.name}'"
    if isinstance(tensor.values, pa.Array):
        return tensor.values
    values = np.asarray(tensor.values)
    if pa.types.is_floating(dtype):
        with np.errstate(invalid="ignore"):
            numbers = values.astype(np.float64)
            too_large = np.flatnonzero(np.abs(numbers) > _FLOAT32_MAX)
        if len(too_large):
            raise UserError(f"row {too_large[0]}, {where}: out of range; numbers go up to {_FLOAT32_MAX:.3g}")
        return pa.array(numbers)
    if values.dtype == np.uint64 and (values >= 2**63).any():
        raise UserError(f"{where}: an id is out of range")
    ids = values.astype(np.int64)
    return pa.array(ids, mask=ids == -1)
