"""The few rows of a request, before and after the encoder, without an Arrow array for each of their columns.

To make the arrays of some forty columns of one row takes longer than everything else that an answer needs. Arrow's
batches are made of such rows where they are counted or compared, many rows at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


@dataclass(frozen=True)
class PlainColumns:
    """Raw columns in the order of the rows of `PlainRows`."""

    schema: pa.Schema
    """All raw columns, as Arrow has them."""
    numbers: tuple[str, ...]
    texts: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, schema: pa.Schema) -> "PlainColumns":
        """Sort raw columns by type."""
        numbers, texts = (tuple(f.name for f in schema if f.type == kind) for kind in (pa.float64(), pa.string()))
        return cls(schema, numbers, texts, tuple(name for name in schema.names if name not in {*numbers, *texts}))


@dataclass(frozen=True)
class PlainRows:
    """A few raw rows that were read and checked, with the content of a batch of the raw columns."""

    columns: PlainColumns
    num_rows: int
    numbers: NDArray[np.float64]
    """(columns of numbers, n), finite; NaN where missing."""
    texts: list[list[str | None]]
    """For each column of texts its n values."""
    others: Mapping[str, pa.Array]
    """The columns of other types, by name."""

    @property
    def schema(self) -> pa.Schema:
        """Return the raw columns, as Arrow has them."""
        return self.columns.schema

    def batch(self) -> pa.RecordBatch:
        """Return the rows as Arrow's batch."""
        return pa.RecordBatch.from_arrays([self.column(name) for name in self.schema.names], schema=self.schema)

    def column(self, name: str) -> pa.Array:
        """Return one raw column as Arrow has it."""
        if name in self.others:
            return self.others[name]
        if name in self.columns.texts:
            return pa.array(self.texts[self.columns.texts.index(name)], pa.string())
        return pa.array(self.numbers[self.columns.numbers.index(name)], from_pandas=True)

    @staticmethod
    def joined(parts: Sequence["PlainRows"]) -> "PlainRows":
        """Put rows of the same columns one after the other."""
        first = parts[0]
        if len(parts) == 1:
            return first
        return PlainRows(
            first.columns,
            sum(part.num_rows for part in parts),
            np.concatenate([part.numbers for part in parts], axis=1),
            [list(chain(*values)) for values in zip(*(part.texts for part in parts), strict=True)],
            {name: pa.concat_arrays([part.others[name] for part in parts]) for name in first.others},
        )


@dataclass(frozen=True)
class EncodedRows:
    """A few encoded rows, with the content of a batch that `FeatureEncoder.encode` gives."""

    schema: pa.Schema
    num_rows: int
    number_places: tuple[int, ...]
    """The places in `schema` of the columns in `numbers`."""
    numbers: NDArray[np.float32]
    """(len(number_places), n)."""
    id_places: tuple[int, ...]
    """The places in `schema` of the columns in `ids`."""
    ids: NDArray[np.int32]
    """(len(id_places), n)."""
    others: Mapping[int, pa.Array]
    """The other columns, by place."""

    def batch(self) -> pa.RecordBatch:
        """Return the rows as Arrow's batch."""
        columns = dict(self.others)
        for places, values in ((self.number_places, self.numbers), (self.id_places, self.ids)):
            flat = pa.array(values.ravel())
            columns |= {p: flat.slice(index * self.num_rows, self.num_rows) for index, p in enumerate(places)}
        return pa.RecordBatch.from_arrays([columns[place] for place in range(len(columns))], schema=self.schema)

    @staticmethod
    def joined(parts: Sequence["EncodedRows"]) -> "EncodedRows":
        """Put rows of one encoder one after the other."""
        first = parts[0]
        return EncodedRows(
            first.schema,
            sum(part.num_rows for part in parts),
            first.number_places,
            np.concatenate([part.numbers for part in parts], axis=1),
            first.id_places,
            np.concatenate([part.ids for part in parts], axis=1),
            {place: pa.concat_arrays([part.others[place] for part in parts]) for place in first.others},
        )
