"""Sorted rows, cut where the sorting column changes."""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa


def runs(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """For each value of an integer column that the rows are sorted by, its rows as a stream of batches.

    A stream must be read to its end before the next is asked for.
    """
    for value, group in groupby(_cut(batches, column), key=lambda item: item[0]):
        yield value, (batch for _, batch in group)


def _cut(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        values = batch[column].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)] if len(values) else []
        for low, high in pairwise(bounds):
            yield int(values[low]), batch.slice(low, high - low)
