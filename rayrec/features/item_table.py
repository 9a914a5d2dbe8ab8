"""Columns of the items of a catalogue, by which answers are filtered: an Arrow file in the order of the items' ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.common.errors import UserError, did_you_mean
from rayrec.features.lookup_table import read_arrow, write_arrow
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_values

ITEMS_FILE = "items.arrow"
"""The name of the file among a dataset's and a model's statistics."""


def item_column(name: str) -> RawColumn:
    """Return how values of files and requests are read: those that are numbers have one spelling."""
    return RawColumn(name=name, type="text", form="number")


@dataclass(frozen=True)
class ItemTable:
    """Row r has the values of the item of id r + 1; null where there are none."""

    columns: Mapping[str, pa.DictionaryArray]
    """Texts by name."""

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        batch = pa.RecordBatch.from_arrays([*self.columns.values()], names=[*self.columns])
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrow(path, batch.schema, [batch])

    @classmethod
    def load(cls, path: Path, items: int) -> "ItemTable | None":
        """Map the file; None if there is none. Raises UserError if it is damaged, or not of so many items."""
        if not path.is_file():
            return None
        _, batches = read_arrow(path, "export the model again")
        if len(batches) != 1 or len(batches[0]) != items:
            raise UserError(f"{path}: does not fit the {items} items of schema.json; export the model again")
        return cls(dict(zip(batches[0].schema.names, batches[0].columns, strict=True)))

    def has(self, name: str, values: Sequence[str]) -> NDArray[np.bool_]:
        """Return (items,) whether an item's value in a column is one of some. Raises UserError if there is no such
        column.
        """
        if name not in self.columns:
            there = did_you_mean(name, [*self.columns], "there are")
            raise UserError(f"filter: no column '{name[:100]}' of items; {there}")
        column, (texts, _) = self.columns[name], read_values(list(values), item_column(name))
        is_one = pc.is_in(column.dictionary, value_set=texts.drop_null()).to_numpy(zero_copy_only=False)
        # The place after the last value is that of items without one.
        places = column.indices.fill_null(len(is_one)).to_numpy()
        return np.append(is_one, False)[places]
