"""Lists of numbers of a fixed length, over Arrow and NumPy: the one implementation for Spark and for requests."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rayrec.common.errors import UserError
from rayrec.features.lists import wrong_lengths
from rayrec.features.numeric import as_float64, finite_float32
from rayrec.features.schema import VectorFeature


def encode_vector(feature: VectorFeature, column: pa.Array) -> pa.Array:
    """fixed_size_list<float32>[size] from a column of lists of numbers; all 0 of a null.

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
