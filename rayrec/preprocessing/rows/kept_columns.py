"""Names the columns that a job keeps of rows: label, roles such as weight and group, and raw columns."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rayrec.features.hashes import by_distinct_text, hash_texts
from rayrec.features.raw_columns import RawColumn
from rayrec.features.raw_values import read_column
from rayrec.features.text_forms import in_form
from rayrec.preprocessing.rows.column_plan import KeptColumn

_INTEGER = r"^(0|-?[1-9][0-9]*)$"


@dataclass(frozen=True)
class KeptColumns:
    """The columns of rows as a job keeps them."""

    label: str
    roles: tuple[KeptColumn, ...]
    raw: tuple[pa.Field, ...]

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns that go to the dataset as they are: the label, the weight, the group and the candidate."""
        kinds = {"weight": pa.float32(), "group": pa.int64(), "candidate": pa.int64()}
        roles = (pa.field(column.name, kinds[column.role], False) for column in self.roles)
        return (pa.field(self.label, pa.float32(), False), *roles)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.fields, *self.raw])

    def of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the kept columns of rows that have none of them missing."""
        roles = [
            rows[column.column].cast(pa.float32(), safe=False)
            if column.role == "weight"
            else pa.array(integers_of(rows[column.column]))
            for column in self.roles
        ]
        raw = [rows[field.name] for field in self.raw]
        return pa.RecordBatch.from_arrays([rows[self.label], *roles, *raw], schema=self.schema)


def integers_of(texts: pa.Array) -> NDArray[np.int64]:
    """(n,) numbers for n texts or integers, none of them null: an integer of 64 bits itself, of other texts the hash.

    `007` is no integer, as it is another text than `7`; `7.0` is 7.
    """

    def numbers(values: pa.Array) -> NDArray[np.int64]:
        values = in_form(values.cast(pa.string()), "number")
        digits = pc.if_else(pc.match_substring_regex(values, _INTEGER), values, "")
        integers, _ = read_column(digits, RawColumn(name="texts", type="integer"))
        return np.where(integers.is_valid(), integers.fill_null(0).to_numpy(), hash_texts(values))

    return texts.to_numpy() if pa.types.is_integer(texts.type) else by_distinct_text(texts, numbers, 0)
