"""Cuts sorted rows where the sorting column changes."""

from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def rows_by_value(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The rows of each value of an integer column that they are sorted by, as a stream of batches.

    A stream must be read to its end before the next.
    """
    for value, group in groupby(_cut(batches, column), key=lambda item: item[0]):
        yield value, (batch for _, batch in group)


def _cut(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        values = batch[column].to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)] if len(values) else []
        for low, high in pairwise(bounds):
            yield int(values[low]), batch.slice(low, high - low)


def whole_groups(batches: Iterable[pa.RecordBatch], column: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Sorted rows in batches of about `rows` rows, or more, that do not cut between equal values of a column."""
    held: list[pa.RecordBatch] = []
    count, enough = 0, rows
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count < enough:
            continue
        whole = _combined(held)
        cut = int(group_starts(whole[column])[-1])
        if cut:
            yield whole.slice(0, cut)
        held, count = [whole.slice(cut)], whole.num_rows - cut
        # A group longer than `rows` is not searched again for every batch that continues it.
        enough = max(rows, 2 * count)
    if count:
        yield _combined(held)


def group_starts(column: pa.Array) -> NDArray[np.int64]:
    """Where groups of equal values begin in a column without nulls."""
    if len(column) == 0:
        return np.empty(0, np.int64)
    is_new = pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    return np.concatenate(([0], np.flatnonzero(is_new) + 1))


def _combined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch
