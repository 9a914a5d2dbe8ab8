"""The columns of raw rows: their types, how their values are read, and what is looked up for rows that lack them."""

import re
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import pyarrow as pa
from pydantic import Field

from rayrec.config import Config
from rayrec.config.base import NumberFormat, TimeFormat, Zone
from rayrec.features.text_forms import TextForm

STATISTICS_FOLDER = "statistics"
"""Tables in which columns or features of rows are looked up; export copies them into the model folder."""

RawType = Literal["number", "integer", "text", "time", "numbers", "integers", "texts"]
_SCALARS = {"number": pa.float64(), "integer": pa.int64(), "text": pa.string(), "time": pa.timestamp("us", "UTC")}
_ARROW_TYPES = _SCALARS | {f"{name}s": pa.list_(_SCALARS[name]) for name in ("number", "integer", "text")}


class RawColumn(Config):
    """A column of raw rows, and how its values are read; the same in files and in requests."""

    name: str
    type: RawType
    """The type of a value: numbers, integers and texts are lists. An integer read as a text is its decimal digits."""
    separator: str | None = None
    """What separates the values of a list that a file or a request gives as one text (`rayrec.features.list_texts`);
    None takes lists alone.
    """
    time_format: TimeFormat = "iso"
    zone: Zone = "UTC"
    """The IANA time zone of times that do not name one."""
    form: TextForm = "text"
    """How texts are spelled (`rayrec.features.text_forms`)."""
    null_values: tuple[str, ...] = ()
    """Texts that stand for a missing value, as the empty text does."""
    number_format: NumberFormat = Field("plain", exclude_if=lambda given: given == "plain")
    """How texts are numbers; of a column of texts, those that are numbers so have one spelling. Left out of files where
    `plain`, as before there were others.
    """

    @property
    def arrow(self) -> pa.DataType:
        """Return the type of the column in raw rows: float64, int64, string, timestamp[us, UTC], or lists."""
        return _ARROW_TYPES[self.type]


class ListLength(NamedTuple):
    """Required length of the lists of numbers in a raw column."""

    column: str
    length: int | str
    """A number of elements, or the raw column of the lists whose elements these numbers weigh."""

    def renamed(self, name: Callable[[str], str]) -> "ListLength":
        """Return this rule for columns that have other names."""
        return ListLength(name(self.column), name(self.length) if isinstance(self.length, str) else self.length)


class SideTable(Config):
    """Raw columns that are looked up by a key, unless a request gives them."""

    kind: Literal["table"] = "table"
    name: str
    """The table lies in the folder `statistics/tables/NAME` (`rayrec.features.lookup_table`)."""
    key: str
    """The raw column (text) whose value is looked up."""
    columns: tuple[str, ...]
    """The raw columns that it gives; a column NAME_x is x in the table's files."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the raw columns that it is looked up by."""
        return (self.key,)


class Rate(Config):
    """A raw column (number) that is looked up by keys: the smoothed rate of the label in rows of `train`.

    (positives + smoothing * mean) / (rows + smoothing); `mean` where the keys were never seen or one is missing. A row
    of `train` counts only the rows of other folds (docs/own-data.md).
    """

    kind: Literal["rate"] = "rate"
    name: str
    """The raw column; the table lies in the folder `statistics/rates/NAME` (`rayrec.features.lookup_table`)."""
    keys: tuple[str, ...]
    """Raw columns of texts or numbers."""
    smoothing: float
    mean: float

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the raw columns that it gives."""
        return (self.name,)


Lookup = Annotated[SideTable | Rate, Field(discriminator="kind")]


def is_index(name: str) -> bool:
    """Tell whether a column is the index of a data frame, as pandas writes one without a name: numbers of rows."""
    return re.fullmatch(r"__index_level_\d+__", name) is not None
