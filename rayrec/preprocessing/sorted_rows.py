"""Cuts sorted rows into row groups that end where a column changes, and writes look-up tables of them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.table_parts import HASH, write_file
from rayrec.ingest import order

ROWS_PER_RANGE = 262_144
"""Rows of a look-up table that a task writes, to a file; the same on every cluster, so that the files are."""
_MOST_RANGES = 4_096
_ROWS_PER_BATCH = 131_072


def range_count(rows: int) -> int:
    """Return the number of ranges of hashes in which about so many rows of a look-up table are written."""
    return max(1, min(_MOST_RANGES, -(-rows // ROWS_PER_RANGE)))


def write_sorted(rows: Iterable[pa.RecordBatch], folder: Path, schema: pa.Schema) -> int:
    """Write rows sorted by hash, which have the columns of `schema` among others, as a file of a look-up table
    (`rayrec.features.lookup_table`); return their number.
    """
    # Cut by the rows alone: they may come in any batches.
    whole = (table.select(schema.names).cast(schema) for table in cut_row_groups(rows, _ROWS_PER_BATCH, HASH))
    return write_file(folder, schema, (table.combine_chunks().to_batches()[0] for table in whole))


def group_starts(column: pa.Array) -> NDArray[np.int64]:
    """Return the positions at which groups of equal integers or strings begin in a column without nulls."""
    numbers = column if pa.types.is_integer(column.type) else column.dictionary_encode().indices
    return order.group_starts(numbers.to_numpy())


def cut_row_groups(batches: Iterable[pa.RecordBatch], size: int, group: str | None = None) -> Iterator[pa.Table]:
    """Yield the rows in tables of `size` rows, or with `group` up to the end of the last row's group; the rest comes
    last.
    """
    buffered: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        buffered.append(batch)
        held += batch.num_rows
        while held >= size:
            table = pa.Table.from_batches(buffered)
            end = size if group is None else _end_of_group(table[group], size)
            if end is None:
                break
            yield table.slice(0, end)
            buffered = table.slice(end).to_batches()
            held -= end
    if held:
        yield pa.Table.from_batches(buffered)


def _end_of_group(column: pa.ChunkedArray, rows: int) -> int | None:
    """Return the end of the group of row `rows` - 1; None if it may continue after the column."""
    starts = group_starts(column.slice(rows - 1).combine_chunks())
    return rows - 1 + int(starts[1]) if len(starts) > 1 else None
