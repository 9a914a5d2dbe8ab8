"""Rows of a segment with the columns that are looked up for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rayrec.features.lookups import Lookups
from rayrec.features.schema import Schema
from rayrec.features.text_forms import in_form
from rayrec.preprocessing.row_splits import integers_of
from rayrec.preprocessing.segments import Segment, read_piece
from rayrec.random.arrays import StatelessRandom


@dataclass(frozen=True)
class Folds:
    """The folds of `train`, and the tables of rates that hold the counts of each fold."""

    count: int
    seed: int
    tables: Path
    """Folder of a table for each rate, by name; only preprocessing has it."""

    group: str | None = None
    """The column whose rows of equal value share a fold: where one row of a list is positive, the others tell its
    label."""

    def of(self, rows: pa.RecordBatch, first: int) -> NDArray[np.int64]:
        """Return the folds of n rows of `train`, (n,); the first row is at position `first`.

        They follow from the seed and the position, or the group, so that they are the same however the rows come in
        files.
        """
        if self.group is None:
            numbers = np.arange(first, first + rows.num_rows)
        else:
            numbers = integers_of(rows[self.group])
        return StatelessRandom(self.seed % 2**64).choice("rate folds", numbers, self.count)


@dataclass(frozen=True)
class CompletedRows:
    """Reads rows and looks up what they lack."""

    schema: Schema
    """The schema whose columns and look-ups are read; its features play no part."""
    dataset: Path
    """Folder that holds the tables in `statistics/`."""
    folds: Folds | None = None
    """For rows of `train`: their rates leave their own fold out."""

    def read(
        self, segment: Segment, columns: Sequence[str], dictionaries: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a segment, a row group at a time, with `columns` of the files or of look-ups, in this
        order.

        Only what these are taken from is read. The columns named in `dictionaries` come dictionary encoded.
        """
        by_fold = self.folds.tables if self.folds else None
        lookups = Lookups.cached(self.schema, self.dataset, by_fold, frozenset(columns))
        first = segment.first
        reads = lookups.reads(columns)
        forms = {column.name: column.form for column in self.schema.columns}
        group = [self.folds.group] if self.folds and self.folds.group and self.folds.group not in reads else []
        for batch in read_piece(segment.piece, [*reads, *group], [name for name in reads if name in dictionaries]):
            folds = self.folds.of(batch, first) if self.folds else None
            first += batch.num_rows
            # The files hold texts as the raw files have them: all of these are looked at before the forms are known.
            spelled = [in_form(batch[name], forms.get(name, "text")) for name in batch.schema.names]
            completed = lookups.complete(pa.RecordBatch.from_arrays(spelled, names=batch.schema.names), folds)
            arrays = [completed.column(name) for name in columns]
            for place, name in enumerate(columns):
                if name in dictionaries and name not in reads and pa.types.is_string(arrays[place].type):
                    arrays[place] = arrays[place].dictionary_encode()
            yield pa.RecordBatch.from_arrays(arrays, names=list(columns))
