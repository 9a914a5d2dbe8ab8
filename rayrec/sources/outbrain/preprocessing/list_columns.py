"""Columns of lists, from their elements and what each belongs to."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def list_column(owner: NDArray[np.int64], elements: pa.Array, count: int) -> pa.Array:
    """`count` lists; `owner`: ascending, for each element its list."""
    offsets = np.searchsorted(owner, np.arange(count + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), elements)
