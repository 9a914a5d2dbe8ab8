"""Lists of raw rows and of encoded ones, over Arrow and NumPy: their lengths, vectors, and ids with a weight each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError
from rayrec.features.feature_kinds import VectorFeature
from rayrec.features.numeric import as_float64, finite_float32
from rayrec.features.raw_columns import ListLength

_FLOAT32_MAX = float(np.finfo(np.float32).max)


def wrong_lists(needed: ListLength, columns: Mapping[str, pa.Array]) -> NDArray[np.bool_]:
    """Tell (n,) whether a list is there that is not as long as it must be, or has a weight that is no number >= 0."""
    lists = columns[needed.column]
    if isinstance(needed.length, int):
        return wrong_lengths(lists, needed.length)
    return wrong_weights(lists, columns[needed.length])


def wrong_lengths(lists: pa.Array, size: int) -> NDArray[np.bool_]:
    """Tell (n,) whether a list is there and has another length than `size`."""
    return pc.fill_null(pc.not_equal(pc.list_value_length(lists), size), False).to_numpy(zero_copy_only=False)


def wrong_weights(weights: pa.Array, values: pa.Array) -> NDArray[np.bool_]:
    """Tell (n,) whether weights are there that are not a finite float32 from 0 on for each of the row's `values`."""
    own = lengths_of(weights)
    wrong = weights.is_valid().to_numpy(zero_copy_only=False) & (own != lengths_of(values))
    numbers = _as_float64(weights.flatten())
    is_weight = (numbers >= 0) & (numbers <= _FLOAT32_MAX)
    wrong[np.repeat(np.arange(len(weights)), own)[~is_weight]] = True
    return wrong


def encode_vector(feature: VectorFeature, column: pa.Array) -> pa.Array:
    """Return fixed_size_list<float32>[size] from a column of lists of numbers; all 0 of a null.

    Numbers that are missing or not finite are 0. The arithmetic is float64, rounded once at the end. Raises UserError
    naming the feature if a list has another length, or the column is of another type.
    """
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.float64()))
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise UserError(f"feature '{feature.name}': needs a list of numbers in each row, got {column.type}")
    wrong = wrong_lengths(column, feature.size)
    if wrong.any():
        length = pc.list_value_length(column)[int(wrong.argmax())].as_py()
        raise UserError(f"feature '{feature.name}': a list of {length} numbers; needs {feature.size}")
    present = column.is_valid().to_numpy(zero_copy_only=False)
    numbers = finite_float32(as_float64(feature.name, column.flatten()))
    rows = np.zeros((len(column), feature.size), np.float32)
    rows[present] = numbers.reshape(-1, feature.size)
    if feature.normalize:
        exact = rows.astype(np.float64)  # squares of float32 neither overflow nor vanish in float64
        length = np.sqrt((exact * exact).sum(axis=1, keepdims=True))
        rows = (exact / np.where(length > 0, length, 1.0)).astype(np.float32)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), feature.size)


def lengths_of(lists: pa.Array) -> NDArray[np.int32]:
    """Return (n,) the lengths of n lists; 0 of a null."""
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)


def weights_of(lists: pa.Array, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return (sum of `lengths`,) the weights of n rows, one after the other; 1 in rows whose weights are null."""
    weights = np.ones(lengths.sum(), np.float32)
    if not pa.types.is_null(lists.type):
        is_given = np.repeat(lists.is_valid().to_numpy(zero_copy_only=False), lengths)
        weights[is_given] = _as_float64(lists.flatten())
    return weights


def weighted_type(ids: pa.DataType) -> pa.StructType:
    """Return the type of an id with its weight."""
    return pa.struct([pa.field("id", ids, False), pa.field("weight", pa.float32(), False)])


def with_weights(ids: NDArray[np.signedinteger], weights: NDArray[np.float32]) -> pa.StructArray:
    """Return (n,) ids with their weights."""
    arrays = [pa.array(ids), pa.array(weights)]
    return pa.StructArray.from_arrays(arrays, fields=list(weighted_type(arrays[0].type)))


def ids_of(elements: pa.Array) -> pa.Array:
    """Return (n,) the ids of elements of encoded lists, which may have weights."""
    return elements.field("id") if pa.types.is_struct(elements.type) else elements


def element_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return NumPy's type for elements of encoded lists of this type; that of weighted ids is structured."""
    if pa.types.is_struct(kind):
        return np.dtype([(field.name, field.type.to_pandas_dtype()) for field in kind])
    return np.dtype(kind.to_pandas_dtype())


def elements_to_numpy(elements: pa.Array) -> NDArray[Any]:
    """Return (n,) elements of encoded lists, of their `element_dtype`."""
    if not pa.types.is_struct(elements.type):
        return elements.to_numpy()
    result = np.empty(len(elements), element_dtype(elements.type))
    for field in elements.type:
        result[field.name] = elements.field(field.name).to_numpy()
    return result


def elements_from_numpy(elements: NDArray[Any]) -> pa.Array:
    """Return (n,) what `elements_to_numpy` gave, as Arrow again."""
    if elements.dtype.names is None:
        return pa.array(elements)
    return with_weights(np.ascontiguousarray(elements["id"]), np.ascontiguousarray(elements["weight"]))


def _as_float64(numbers: pa.Array) -> NDArray[np.float64]:
    return numbers.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
