"""Columns of which some are stacked: of one type, one after the other in one array, as the blocks of pandas are.

To make and to read an Arrow array for each of forty columns takes longer than everything else that the score of one row
needs, so the few rows of a request go from JSON to the model in stacks. A batch has a stack for each column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Stack: TypeAlias = pa.Array | NDArray
"""Values of columns, one column after the other; NumPy's of encoded features of one value a row."""


@dataclass(frozen=True)
class StackedColumns:
    """The content of a batch of n rows."""

    schema: pa.Schema
    num_rows: int
    stacks: Mapping[tuple[str, ...], Stack]
    """Each by the names of its columns, all of which are in one stack alone: (columns * n,)."""

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "StackedColumns":
        """Return the columns of a batch, each alone."""
        columns = zip(batch.schema.names, batch.columns, strict=True)
        return cls(batch.schema, batch.num_rows, {(name,): column for name, column in columns})

    def batch(self) -> pa.RecordBatch:
        """Return the columns as Arrow's batch."""
        return pa.RecordBatch.from_arrays([self.stack((name,)) for name in self.schema.names], schema=self.schema)

    def stack(self, names: tuple[str, ...]) -> Stack:
        """Return the values (len(names) * n,) of columns of one type, one column after the other."""
        if names in self.stacks:
            return self.stacks[names]
        n, runs = self.num_rows, _runs(tuple(self.stacks), names)
        parts = [self.stacks[stacked][first * n : (first + count) * n] for stacked, first, count in runs]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)

    @staticmethod
    def joined(parts: Sequence["StackedColumns"]) -> "StackedColumns":
        """Put rows of the same columns one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first
        layouts = {tuple(part.stacks) for part in parts}
        layout = layouts.pop() if len(layouts) == 1 else tuple((name,) for name in first.schema.names)
        stacks = {}
        for names in layout:
            values = pa.concat_arrays([pa.array(part.stack(names)) for part in parts])
            if len(names) > 1:
                column = np.concatenate([np.repeat(np.arange(len(names)), part.num_rows) for part in parts])
                values = values.take(pa.array(column.argsort(kind="stable")))
            stacks[names] = values
        return StackedColumns(first.schema, sum(part.num_rows for part in parts), stacks)


@lru_cache(maxsize=1024)
def _runs(layout: tuple[tuple[str, ...], ...], names: tuple[str, ...]) -> list[tuple[tuple[str, ...], int, int]]:
    """Return where columns lie in stacks: those that follow one another as (stack, place of the first, columns)."""
    places = {name: (stacked, place) for stacked in layout for place, name in enumerate(stacked)}
    runs: list[tuple[tuple[str, ...], int, int]] = []
    for name in names:
        stacked, place = places[name]
        if runs and runs[-1][0] == stacked and sum(runs[-1][1:]) == place:
            runs[-1] = (stacked, runs[-1][1], runs[-1][2] + 1)
        else:
            runs.append((stacked, place, 1))
    return runs
